"""The scheme that was typed: a name with fields, or the JSON of one."""

import json
from collections.abc import Mapping
from typing import Any

from hf_posswap.cli.parser import plain_value
from hf_posswap.errors import SchemeError
from hf_posswap.schemes import BY_NAME, Scheme
from hf_posswap.schemes.base import make_scheme, scheme_from_dict

EXAMPLE = json.dumps({"name": "log_scaled", "inner": "rope"})


def typed_scheme(typed: str, fields: Mapping[str, Any]) -> Scheme:
    """A scheme by name and `fields`, or by a JSON object with both, as `inspect --json` prints it; `fields` add to it.

    Raises:
        SchemeError: no such scheme or field, a wrong value, one given twice, or a broken object.
    """
    if not typed.lstrip().startswith("{"):
        return make_scheme(typed, fields, BY_NAME)
    block = plain_value(typed)
    if not isinstance(block, dict) or not isinstance(block.get("name"), str):
        raise SchemeError(f"--scheme takes a name, or a JSON object such as {EXAMPLE}, not {typed:.80}.")
    twice = [name for name in fields if name in block]
    if twice:
        raise SchemeError(f"{', '.join(twice)} is given twice: within --scheme and as an option.")
    return scheme_from_dict({**block, **fields}, BY_NAME)
