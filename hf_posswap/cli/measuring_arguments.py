"""What can be typed after the commands that measure models: evaluate, compare, advise and report."""

import argparse
from collections.abc import Sequence
from typing import Any

from hf_posswap.cli.measures import MEASURES
from hf_posswap.cli.parser import FIELDS, SCHEME_WITHIN, Once, Parser, admit_fields

CHOICES = {
    "protocol": ("sliding", "disjoint", "prefix"),
    "reduction": ("token", "yarn"),
    "bos": ("none", "document", "window"),
    "form": ("token", "within_word_l2r"),
}
"""As in `hf_posswap.evaluation`, which help does without."""

DEFAULT_BOS = "window if the tokenizer puts one in front of a text, else none"

CONTROLS = ("no-position", "shuffled-context")

PROCESSES = """
 Processes that `torchrun --nproc-per-node N -m hf_posswap ...` or `accelerate launch -m hf_posswap ...` starts share
the work; the figures are the same."""

HELP = {
    "--text": "a file (text, jsonl, parquet; token ids as npy or safetensors), a folder of them, or a data set",
    "--field": "where jsonl, parquet and data sets have the text (default: text)",
    "--split": "of a data set",
    "--tokenizer": "default: the one beside the model",
    "--auto-class": "default: the one that fits the model's architecture",
    "--attn-implementation": "eager, sdpa, flex_attention ...",
    "--output": "write the results there, as JSON",
    "--state": "keeps what is finished, so that the same command goes on after an interruption "
    "(default: --output with .state behind it, removed at the end)",
}
NUMBERS = {
    "--documents": "read the first N documents only",
    "--tokens-per-batch": "tokens that go through the model at once, at most, or one window (default: 8192)",
    "--positions": "of pseudo_perplexity: score a sample of N tokens of each window (default: all)",
}
HOW = {
    "--stride": "new tokens in a sliding window (default: 256, or half of a shorter length)",
    "--trials": "of passkey and ruler_lite for each length (default: 200), of needle for each length and depth too "
    "(default: 20)",
}
LENGTHS = """tokens to read at once; measurements of one length take the longest (default: 1, 2 and 4 times the trained
length, as far as the model has positions and documents of such a length hold half of the text)"""
MEASURE = f"""{", ".join(MEASURES)} (default: perplexity; of a masked language model pseudo_perplexity)"""
CONTROL = """measure beside it: no-position, the model without any; shuffled-context, with the tokens in front of the
scored ones in a random order"""
SCHEMES = """none (the model as it is), names, names with fields (yarn:factor=4:mode=segment) or JSON objects, separated
by commas"""


def add_measuring(commands: Any, argv: Sequence[str]) -> None:
    """The commands, below those that `commands` has already."""
    shared, rows = _shared(), _rows()
    fields = FIELDS + SCHEME_WITHIN + " --seed is that of the measurement." + PROCESSES
    evaluate = commands.add_parser("evaluate", parents=[shared, rows], epilog=fields, help="measure a model on a text")
    evaluate.add_argument("--scheme", metavar="NAME", action=Once, help="measure it with another scheme; or JSON")
    evaluate.add_argument("--label", metavar="TEXT", help="what tables and pictures call it (default: its scheme)")
    admit_fields(evaluate, argv)
    several = "measure several schemes on a model and a text"
    compare = commands.add_parser("compare", parents=[shared, rows], epilog=PROCESSES, help=several)
    compare.add_argument("--schemes", metavar="LIST", required=True, help=SCHEMES)
    longer = "try the ways to a longer context on a text"
    _add_advice(commands.add_parser("advise", parents=[shared], epilog=PROCESSES, help=longer))
    _add_report(commands.add_parser("report", help="make a page of saved results"))


def _shared() -> argparse.ArgumentParser:
    """The model, the text and where results go."""
    shared = Parser(add_help=False)
    shared.add_argument("model", metavar="MODEL", help="a directory, or a name on the Hugging Face Hub")
    for option, meaning in HELP.items():
        shared.add_argument(option, metavar="NAME" if option not in ("--output", "--state") else "FILE", help=meaning)
    for option, meaning in NUMBERS.items():
        shared.add_argument(option, metavar="N", type=natural, help=meaning)
    shared.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default: as saved")
    shared.add_argument("--cpu", action="store_true", help="leave a GPU alone")
    shared.add_argument("--overwrite", action="store_true", help="replace what is in --output")
    shared.add_argument("--json", action="store_true", help="print JSON")
    shared.set_defaults(field="text", dry_run=False)
    return shared


def _rows() -> argparse.ArgumentParser:
    """What is measured, and how."""
    rows = Parser(add_help=False)
    rows.add_argument("--lengths", metavar="N,...", type=naturals, help=LENGTHS)
    rows.add_argument("--measure", metavar="NAME,...", type=measures, help=MEASURE)
    rows.add_argument("--control", metavar="NAME,...", type=controls, default=(), help=CONTROL)
    for option, meaning in HOW.items():
        rows.add_argument(option, metavar="N", type=natural, help=meaning)
    for name, choices in CHOICES.items():
        default = DEFAULT_BOS if name == "bos" else choices[0]
        rows.add_argument(f"--{name}", choices=choices, help=f"default: {default}")
    rows.add_argument("--seed", metavar="N", type=int, help="of what is drawn at random (default: 0)")
    return rows


def _add_advice(advise: argparse.ArgumentParser) -> None:
    advise.add_argument("--max-length", metavar="N", type=natural, required=True, help="how many positions to accept")
    begin = "begin nothing new after that (default: 300)"
    advise.add_argument("--seconds", metavar="N", type=float, default=300.0, help=begin)
    advise.add_argument("--windows", metavar="N", type=natural, help="windows of text to read (default: 32)")
    original = "positions before any extension, where the config does not say"
    advise.add_argument("--original-max-position-embeddings", metavar="N", type=natural, help=original)


def _add_report(report: argparse.ArgumentParser) -> None:
    report.add_argument("results", metavar="RESULTS", nargs="+", help="files that evaluate, compare or advise wrote")
    report.add_argument("--output", metavar="FILE", required=True, help="the page, an .html file")
    report.add_argument("--overwrite", action="store_true", help="replace what is there")


def natural(text: str) -> int:
    """A number from 1 up."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number from 1 up")
    return number


def naturals(text: str) -> list[int]:
    """Numbers from 1 up, separated by commas."""
    return [natural(part) for part in text.split(",")]


def measures(text: str) -> list[str]:
    """Names of measurements."""
    return _names(text, tuple(MEASURES))


def controls(text: str) -> list[str]:
    """Names of controls."""
    return _names(text, CONTROLS)


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; there are {', '.join(known)}")
        if names.count(name) > 1:
            raise argparse.ArgumentTypeError(f"{name} is given twice")
    return names
