"""`hf-posswap extend MODEL OUT --max-length N`: saves a model, and its tokenizer, with a longer context."""

import argparse
from dataclasses import fields
from typing import Any

from hf_posswap.cli.writing import rewrite
from hf_posswap.errors import SchemeError
from hf_posswap.extending import AUTO
from hf_posswap.patching.extending import extend
from hf_posswap.schemes import SCHEMES
from hf_posswap.transfer import GROWTH, growth_fields


def run(args: argparse.Namespace) -> str:
    """What was saved. All that can be refused is refused before weights are read."""
    if args.method == AUTO:
        raise SchemeError(
            "Methods are tried on a text: `hf-posswap advise MODEL --max-length N --text FILE` does, and prints the "
            "command that applies the best."
        )
    _refuse_fields(args.fields)

    def longer(model: Any, tokenizer: Any) -> None:
        extend(model, args.max_length, args.method, tokenizer=tokenizer, **args.fields)

    return rewrite(args, longer)


def _refuse_fields(given: dict[str, object]) -> None:
    """Arguments of `extend` that are no field of any scheme or method must not come in as fields."""
    known = {declared.name for scheme in SCHEMES for declared in fields(scheme)}
    known |= {name for rule in GROWTH for name in growth_fields(rule)}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise SchemeError(f"No scheme has a field {', '.join(unknown)}; `hf-posswap schemes` lists the fields.")
