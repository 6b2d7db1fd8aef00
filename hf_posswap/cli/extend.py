"""`hf-posswap extend MODEL OUT --max-length N`: saves a model, and its tokenizer, with a longer context."""

import argparse
from dataclasses import fields

from hf_posswap.cli.checkpoints import read_config, read_model, read_tokenizer, refuse_out, write
from hf_posswap.errors import SchemeError
from hf_posswap.patching.extending import extend
from hf_posswap.schemes import SCHEMES


def run(args: argparse.Namespace) -> str:
    """What was saved."""
    _refuse_fields(args.fields)
    refuse_out(args)
    model = read_model(args, read_config(args.model))
    tokenizer = read_tokenizer(args.model)
    extend(model, args.max_length, args.method, tokenizer=tokenizer, **args.fields)
    return write(model, tokenizer, args.out)


def _refuse_fields(given: dict[str, object]) -> None:
    """Arguments of `extend` that are no field of any scheme must not come in as fields."""
    known = {declared.name for scheme in SCHEMES for declared in fields(scheme)}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SchemeError(f"No scheme has a field {', '.join(unknown)}; `hf-posswap schemes` lists the fields.")
