"""`hf-posswap compare MODEL --schemes none,yarn:factor=4 --text SOURCE`: several schemes on the same tokens."""

import argparse

from hf_posswap.cli.rows import measure_rows
from hf_posswap.cli.typed_schemes import typed_schemes


def run(args: argparse.Namespace) -> str:
    """The tables, or with `--json` the results."""
    return measure_rows(args, typed_schemes(args.schemes))
