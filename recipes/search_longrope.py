"""LongRoPE factors found on your own model and text, beside linear, NTK and YaRN: one table, in minutes.

Without arguments, network or GPU: the byte-level LLaMA of quickstart.py (trained once, at 64 tokens, then cached) is
taken to 4 times its length without any training. The search reads one half of the held-out text, the table is of the
other half. With `--model NAME_OR_FOLDER` the same is done to a model of yours:

    python recipes/search_longrope.py --model my_llama/ --text my_texts/ --factor 4 --seconds 3600 --windows 4

The same command again goes on where the last one stopped. `--smoke` shows in under a minute that everything runs.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from quickstart import TINY, held_out_blocks, read_tokens, tiny_model  # beside this file

import hf_posswap as hp
from hf_posswap.evaluation import perplexity
from hf_posswap.search import search_longrope


@dataclass
class Arguments:
    text: str | None = field(default=None, metadata={"help": "file or folder; default: Python's standard library"})
    model: str | None = field(default=None, metadata={"help": "name or folder; default: train a tiny LLaMA"})
    output: str = field(default="runs/search_longrope", metadata={"help": "folder for table, state and model"})
    cache: str = field(default="~/.cache/hf_posswap", metadata={"help": "folder that keeps the tiny model"})
    factor: int = field(default=4, metadata={"help": "how many trained lengths the model shall read"})
    evaluations: int | None = field(default=None, metadata={"help": "end after so many; default: 300, if no seconds"})
    seconds: float | None = field(default=None, metadata={"help": "end after so many seconds"})
    population: int = field(default=32, metadata={"help": "individuals of the first generation"})
    windows: int = field(default=32, metadata={"help": "calibration windows that every individual reads"})
    attention_factor: str = field(default="search", metadata={"help": "search, formula or a number"})
    eval_tokens: int = field(default=65536, metadata={"help": "about how many held-out tokens every row reads"})
    batch_tokens: int = field(default=2048, metadata={"help": "tokens in a training step of the tiny model"})
    tiny_steps: int = field(default=1200, metadata={"help": "training steps of the tiny model"})
    seed: int = 0
    smoke: bool = field(default=False, metadata={"help": "a tiny model hardly trained, a few evaluations"})


def halves(documents: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Text to search on and text to judge by: every other document, or the two halves of a single one."""
    if len(documents) == 1:
        cut = len(documents[0]) // 2
        return [documents[0][:cut]], [documents[0][cut:]]
    return documents[::2], documents[1::2]


def attention_factor(given: str) -> str | float | None:
    return {"search": "search", "formula": None}[given] if given in ("search", "formula") else float(given)


def compare(model, result, blocks: list[torch.Tensor]) -> list[dict]:
    """Perplexity of every scheme on held-out text, at the trained length and at the longer one."""
    found, lengths = result.scheme, [result.scheme.original, result.max_length]
    base = {"rope_theta": found.rope_theta, "partial_rotary_factor": found.partial_rotary_factor}
    longer = {**base, "factor": found.factor, "original_max_position_embeddings": found.original}
    schemes = {
        "rope": hp.RoPE(**base),
        "linear": hp.LinearRoPE(**longer),
        "ntk": hp.NTKRoPE(**longer),
        "yarn": hp.YaRN(**longer),
        "yarn, attention factor 1": hp.YaRN(**longer, attention_factor=1.0),
        "longrope found": found,
        "longrope found, mode=segment": replace(found, mode="segment"),
    }
    rows = []
    for name, scheme in schemes.items():
        hp.patch(model, scheme)
        calibration = result.perplexity if name == "longrope found" else result.baselines.get(name)
        measured = perplexity(model, blocks, lengths, protocol="disjoint")
        rows.append({"name": name, "calibration": calibration, **measured.to_dict()})
    return rows


def table(rows: list[dict]) -> str:
    lengths = [length["length"] for length in rows[0]["lengths"]]
    lines = [["scheme", "calibration text", *(f"held out, {n}" for n in lengths)]]
    for row in rows:
        calibration = "" if row["calibration"] is None else f"{row['calibration']:.3f}"
        lines.append([row["name"], calibration, *(f"{length['perplexity']:.3f}" for length in row["lengths"])])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)


def shrink(args: Arguments) -> None:
    """What --smoke means."""
    args.tiny_steps, args.evaluations, args.windows, args.population = 120, 40, 4, 12
    args.eval_tokens = min(args.eval_tokens, 8192)


def main(args: Arguments) -> None:
    if args.smoke:
        shrink(args)
    if args.factor < 2 or min(args.eval_tokens, args.tiny_steps, args.batch_tokens) < 1:
        raise hp.EvaluationError("--factor is at least 2; --eval_tokens, --tiny_steps and --batch_tokens at least 1")
    if args.evaluations is None and args.seconds is None:
        args.evaluations = 300
    transformers.logging.disable_progress_bar()
    accelerator, output, started = Accelerator(), Path(args.output), time.perf_counter()
    config = transformers.AutoConfig.from_pretrained(args.model) if args.model else transformers.LlamaConfig(**TINY)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model) if args.model else transformers.ByT5Tokenizer()
    stream, held_out = read_tokens(args.text, tokenizer)
    searched, judged = halves(held_out)
    source = args.model or tiny_model(accelerator, config, tokenizer, stream, args)
    model = hp.load(source, dtype=torch.float32).to(accelerator.device)
    length = args.factor * config.max_position_embeddings
    blocks = held_out_blocks(judged, length, args.eval_tokens)
    if not blocks:
        raise hp.EvaluationError(f"the text is too short: no held-out document has {length} tokens")
    output.mkdir(parents=True, exist_ok=True)
    result = search_longrope(
        model,
        searched,
        length,
        seconds=args.seconds,
        evaluations=args.evaluations,
        population=args.population,
        windows=args.windows,
        attention_factor=attention_factor(args.attention_factor),
        seed=args.seed,
        state=output / "search.json",
    )
    rows = compare(model, result, blocks)
    seconds = time.perf_counter() - started
    saved = {"arguments": asdict(args), "search": result.to_dict(), "rows": rows, "seconds": seconds}
    (output / "table.json").write_text(json.dumps(saved, indent=2))
    hp.save(hp.patch(model, result.scheme), output / "model", tokenizer=tokenizer)
    tokens = rows[0]["lengths"][-1]["tokens"]
    print(
        f"\nPerplexity; {result.windows} windows of {length} tokens to search on, {tokens} held-out tokens to judge by"
    )
    print(f"{result.evaluations} evaluations in {result.seconds:.0f} s, {seconds:.0f} s in all\n\n{table(rows)}\n")
    print(f"{output / 'model'} has the model with {result.scheme}")


if __name__ == "__main__":
    try:
        main(*transformers.HfArgumentParser(Arguments).parse_args_into_dataclasses())
    except (OSError, ValueError, KeyboardInterrupt) as error:  # a PosswapError is a ValueError
        print("search_longrope:", " ".join(str(error).split()) or "interrupted", file=sys.stderr)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 2)
