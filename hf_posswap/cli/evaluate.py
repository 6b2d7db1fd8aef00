"""`hf-posswap evaluate MODEL --text SOURCE`: measures a model, as it is or with a scheme on the fly."""

import argparse

from hf_posswap.cli.rows import measure_rows
from hf_posswap.cli.typed_scheme import typed_scheme
from hf_posswap.errors import SchemeError


def run(args: argparse.Namespace) -> str:
    """The tables, or with `--json` the results."""
    if args.scheme is None and args.fields:
        raise SchemeError(f"{', '.join(args.fields)}: fields are of a scheme, which --scheme names.")
    scheme = None if args.scheme is None else typed_scheme(args.scheme, args.fields)
    return measure_rows(args, {args.label or (scheme.name if scheme else ""): scheme})
