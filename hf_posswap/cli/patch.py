"""`hf-posswap patch MODEL OUT --scheme NAME`: saves a model with another scheme."""

import argparse

from hf_posswap.cli.checkpoints import read_config, read_model, read_tokenizer, refuse_out, write
from hf_posswap.patching import check, patch
from hf_posswap.schemes import BY_NAME
from hf_posswap.schemes.base import make_scheme


def run(args: argparse.Namespace) -> str:
    """What was saved. All that can be refused is refused before weights are read."""
    scheme = make_scheme(args.scheme, args.fields, BY_NAME)
    refuse_out(args)
    config = read_config(args.model)
    check(config, scheme, allow_unordered=args.allow_unordered)
    model = read_model(args, config)
    patch(model, scheme, allow_unordered=args.allow_unordered)
    return write(model, read_tokenizer(args.model), args.out)
