"""How what is typed is read: options that cannot be abbreviated or repeated, and fields of schemes as options."""

import argparse
import contextlib
import json
from collections.abc import Sequence
from typing import Any, NoReturn

BAD_INPUT = 2

WORDS = {"true": True, "false": False, "none": None}

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


def admit_fields(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Every option that the command does not have is a field with a value, right or wrong; collected in `fields`."""
    parser.set_defaults(fields={})
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
