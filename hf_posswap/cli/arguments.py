"""What can be typed. A scheme's fields are options too, but only the scheme knows which ones there are."""

import argparse
import contextlib
import json
from collections.abc import Sequence
from typing import Any, NoReturn

from hf_posswap import __version__

BAD_INPUT = 2

WORDS = {"true": True, "false": False, "none": None}

FIELDS = "Fields of the scheme are options too: --factor 4 --truncate false. `hf-posswap schemes` lists them."


class Parser(argparse.ArgumentParser):
    """Says usage errors in one line. Options cannot be abbreviated: they would take a field's place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"hf-posswap: {one_line(message)} (see {self.prog} --help)\n")


class Field(argparse.Action):
    """Collects one field of the scheme in `fields`."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option_string: str | None = None) -> None:
        namespace.fields[self.option_strings[0][2:].replace("-", "_")] = plain_value(value)


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
    return parser.parse_args(argv)


def _add_reading(commands: Any) -> None:
    shared = Parser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print JSON")
    commands.add_parser("schemes", parents=[shared], help="list the schemes and their fields")
    inspect = commands.add_parser("inspect", parents=[shared], help="say which scheme a model has, from its config")
    inspect.add_argument("model", metavar="MODEL", help="a directory, or a name on the Hugging Face Hub")


def _add_writing(commands: Any, argv: Sequence[str]) -> None:
    shared = Parser(add_help=False)
    shared.add_argument("model", metavar="MODEL", help="a directory, or a name on the Hugging Face Hub")
    shared.add_argument("out", metavar="OUT", help="the directory to save to")
    shared.add_argument("--overwrite", action="store_true", help="replace the model that is in OUT")
    shared.add_argument("--auto-class", metavar="NAME", help="default: the one that fits the model's architecture")
    patch = commands.add_parser("patch", parents=[shared], epilog=FIELDS, help="save a model with another scheme")
    patch.add_argument("--scheme", metavar="NAME", required=True, help="a name that `hf-posswap schemes` lists")
    patch.add_argument("--allow-unordered", action="store_true", help="an encoder may become a bag of words")
    extend = commands.add_parser("extend", parents=[shared], epilog=FIELDS, help="save a model with a longer context")
    extend.add_argument("--max-length", metavar="N", type=int, required=True, help="how many positions to accept")
    extend.add_argument("--method", metavar="NAME", help="which ones there are depends on the scheme of the model")
    for command in (patch, extend):
        command.set_defaults(fields={})
        _admit_fields(command, argv)


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
