"""`hf-posswap patch MODEL OUT --scheme NAME`: saves a model with another scheme."""

import argparse

from hf_posswap.cli.typed_scheme import typed_scheme
from hf_posswap.cli.writing import rewrite
from hf_posswap.patching import patch


def run(args: argparse.Namespace) -> str:
    """What was saved. All that can be refused is refused before weights are read."""
    scheme = typed_scheme(args.scheme, args.fields)
    return rewrite(args, lambda model, _: patch(model, scheme, allow_unordered=args.allow_unordered))
