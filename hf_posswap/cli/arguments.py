"""What can be typed. A scheme's fields are options too, but only the scheme knows which ones there are."""

import argparse
from collections.abc import Sequence
from typing import Any

from hf_posswap import __version__
from hf_posswap.cli.measuring_arguments import add_measuring
from hf_posswap.cli.parser import FIELDS, SCHEME_WITHIN, Once, Parser, admit_fields

PLOT_SIZES = {
    "--trained-length": "the trained length",
    "--head-dim": "the head dim",
    "--heads": "the number of heads",
    "--hidden-size": "the hidden size",
}


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
    add_measuring(commands, argv)
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
        admit_fields(command, argv)


def _add_plot(commands: Any, argv: Sequence[str]) -> None:
    plot = commands.add_parser("plot", epilog=FIELDS, help="draw what a scheme does; no model is needed")
    plot.add_argument("scheme", metavar="SCHEME", help="a name that `hf-posswap schemes` lists")
    plot.add_argument("--output", metavar="FILE", help="a .png or .svg (default: SCHEME.png)")
    plot.add_argument("--overwrite", action="store_true", help="replace FILE")
    plot.add_argument("--dark", action="store_true", help="light lines on a dark ground")
    plot.add_argument("--max-length", metavar="N", type=int, help="how many positions to draw")
    for option, of_what in PLOT_SIZES.items():
        plot.add_argument(option, metavar="N", type=int, help=f"{of_what} of the model that it is drawn for")
    admit_fields(plot, argv)
