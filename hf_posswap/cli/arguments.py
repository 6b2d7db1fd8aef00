"""What can be typed. A scheme's fields are options too, but only the scheme knows which ones there are."""

import argparse
import contextlib
import json
from collections.abc import Sequence
from typing import Any, NoReturn

from hf_posswap import __version__

BAD_INPUT = 2

WORDS = {"true": True, "false": False, "none": None}

PLOT_SIZES = {
    "--trained-length": "the trained length",
    "--head-dim": "the head dim",
    "--heads": "the number of heads",
    "--hidden-size": "the hidden size",
}

FIELDS = "Fields of the scheme are options too: --factor 4 --truncate false. `hf-posswap schemes` lists them."

SCHEME_WITHIN = """
 Lists and schemes are JSON: --schemes '["rope", "nope"]' --pattern RRRN, or --inner '{"name": "yarn", "factor": 4}' in
the form that `hf-posswap inspect --json` prints; --scheme itself takes such JSON as well."""


class Parser(argparse.ArgumentParser):
    """Says usage errors in one line. Options cannot be abbreviated: they would take a field's place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"hf-posswap: {one_line(message)} (see {self.prog} --help)\n")


class Once(argparse.Action):
    """An option that cannot be given twice: the first would be dropped without a word."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest, None) is not None:
            parser.error(f"{option_string} is given twice")
        setattr(namespace, self.dest, value)


class Field(argparse.Action):
    """Collects one field of the scheme in `fields`."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option_string: str | None = None) -> None:
        name = self.option_strings[0][2:].replace("-", "_")
        if name in namespace.fields:
            parser.error(f"{option_string} is given twice")
        namespace.fields[name] = plain_value(value)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments with `command`, the name of the module that runs them.

    Raises:
        SystemExit: after help, or after a usage error was printed.
    """
    parser = Parser(prog="hf-posswap", description="Swap and extend the positional scheme of a Hugging Face model.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND", title="commands")
    _add_reading(commands)
    _add_writing(commands, argv)
    _add_plot(commands, argv)
    return parser.parse_args(argv)


def _add_reading(commands: Any) -> None:
    shared = Parser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print JSON")
    schemes = commands.add_parser("schemes", parents=[shared], help="list the schemes and where they work")
    schemes.add_argument("--family", metavar="F", help="gpt2, bert or llama: all of its model types, with reasons")
    inspect = commands.add_parser("inspect", parents=[shared], help="say which scheme a model has, from its config")
    inspect.add_argument("model", metavar="MODEL", help="a directory, or a name on the Hugging Face Hub")


def _add_writing(commands: Any, argv: Sequence[str]) -> None:
    shared = Parser(add_help=False)
    shared.add_argument("model", metavar="MODEL", help="a directory, or a name on the Hugging Face Hub")
    shared.add_argument("out", metavar="OUT", help="the directory to save to")
    shared.add_argument("--overwrite", action="store_true", help="replace the model that is in OUT")
    shared.add_argument("--auto-class", metavar="NAME", help="default: the one that fits the model's architecture")
    shared.add_argument("--dry-run", action="store_true", help="check everything and say what would be written")
    shared.add_argument("--json", action="store_true", help="print JSON")
    patch_fields = FIELDS + SCHEME_WITHIN
    patch = commands.add_parser("patch", parents=[shared], epilog=patch_fields, help="save a model with another scheme")
    name_or_json = {"metavar": "NAME", "required": True, "help": "a name that `hf-posswap schemes` lists, or JSON"}
    patch.add_argument("--scheme", action=Once, **name_or_json)
    patch.add_argument("--allow-unordered", action="store_true", help="an encoder may become a bag of words")
    extend = commands.add_parser("extend", parents=[shared], epilog=FIELDS, help="save a model with a longer context")
    extend.add_argument("--max-length", metavar="N", type=int, required=True, help="how many positions to accept")
    extend.add_argument("--method", metavar="NAME", help="which ones there are depends on the scheme of the model")
    export = commands.add_parser("export", parents=[shared], help="save without hf_posswap, and say who can run it")
    export.add_argument("--compat", choices=("v5", "v4+v5"), default="v5", help="transformers 5, or 4 as well")
    for command in (patch, extend):
        command.set_defaults(fields={})
        _admit_fields(command, argv)


def _add_plot(commands: Any, argv: Sequence[str]) -> None:
    plot = commands.add_parser("plot", epilog=FIELDS, help="draw what a scheme does; no model is needed")
    plot.add_argument("scheme", metavar="SCHEME", help="a name that `hf-posswap schemes` lists")
    plot.add_argument("--output", metavar="FILE", help="a .png or .svg (default: SCHEME.png)")
    plot.add_argument("--overwrite", action="store_true", help="replace FILE")
    plot.add_argument("--dark", action="store_true", help="light lines on a dark ground")
    plot.add_argument("--max-length", metavar="N", type=int, help="how many positions to draw")
    for option, of_what in PLOT_SIZES.items():
        plot.add_argument(option, metavar="N", type=int, help=f"{of_what} of the model that it is drawn for")
    plot.set_defaults(fields={})
    _admit_fields(plot, argv)


def _admit_fields(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Every option that the command does not have is a field with a value, right or wrong."""
    for name in {argument.partition("=")[0] for argument in argv}:
        if name.startswith("--") and name != "--":
            with contextlib.suppress(argparse.ArgumentError):  # the command has it
                parser.add_argument(name, action=Field, dest=argparse.SUPPRESS, help=argparse.SUPPRESS)


def plain_value(text: str) -> Any:
    """A number, a list, a boolean or None where the text reads as one, else the text."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def one_line(message: object) -> str:
    """A message without its line breaks."""
    return " ".join(str(message).split())
