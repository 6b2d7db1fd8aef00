"""The command line `hf-posswap`: results on stdout, everything else on stderr.

Bad input is one line and exit code 2. Each command is a module of its own with `run(args) -> str`, imported when it is
called: help and usage errors load neither torch nor transformers.
"""

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from hf_posswap.cli.arguments import parse_arguments
from hf_posswap.cli.parser import BAD_INPUT, one_line
from hf_posswap.errors import PosswapError

INTERRUPTED, NOBODY_READS = 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    if sys.stdout is None:
        return _say("there is no output to print to", BAD_INPUT)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a path may have letters that the terminal has not
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # What is left in the buffer would be written, and fail, once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except OSError as error:  # a full disk behind the output
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _say(error, BAD_INPUT)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)


def _run(argv: Sequence[str]) -> int:
    try:
        args = parse_arguments(argv)
        with contextlib.redirect_stdout(sys.stderr):  # libraries print where results belong
            result = import_module(f"hf_posswap.cli.{args.command}").run(args)
    except SystemExit as done:  # argparse, after help or a usage error
        return int(done.code or 0)
    except (PosswapError, OSError) as error:
        return _say(error, BAD_INPUT)
    if result:  # of several processes one prints
        print(result)
    return 0


def _say(what: object, code: int) -> int:
    print("hf-posswap:", one_line(what), file=sys.stderr)
    return code
