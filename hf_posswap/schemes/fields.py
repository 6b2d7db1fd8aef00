"""Declared fields: a scheme states type and range once; checking, error texts and tables derive from it."""

import numbers
from dataclasses import Field, field, fields
from typing import Any

from hf_posswap.errors import SchemeError

MAX_POSITIONS = 2**24
"""Longest table or length that is accepted: beyond every model, below what could exhaust memory by a typing error."""

REQUIRED: Any = object()


def number(default: Any = REQUIRED, *, low: float, high: float, integer: bool = False, optional: bool = False) -> Any:
    """A numeric field in `[low, high]`; `optional` admits None, which means "take the model's own"."""
    metadata = {"kind": int if integer else float, "low": low, "high": high, "optional": optional}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


def flag(default: bool) -> Any:
    """A boolean field."""
    return field(default=default, metadata={"kind": bool, "optional": False})


def choice(default: str, options: tuple[str, ...]) -> Any:
    """A field that takes one of a few strings."""
    return field(default=default, metadata={"kind": str, "options": options, "optional": False})


def describe(declared: Field) -> str:
    """What a field accepts, in words for an error or a table."""
    rules = declared.metadata
    if rules["kind"] is bool:
        return "true or false"
    if rules["kind"] is str:
        return "one of " + ", ".join(rules["options"])
    what = "an integer" if rules["kind"] is int else "a finite number"
    none = ", or None for the default" if rules["optional"] else ""
    return f"{what} from {_plain(rules['low'])} to {_plain(rules['high'])}{none}"


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:g}"


def checked(scheme: Any) -> None:
    """Checks every declared field of a frozen scheme and normalises numbers to plain int and float.

    Raises:
        SchemeError: a value has the wrong type, is not finite or is out of range.
    """
    for declared in fields(scheme):
        value = getattr(scheme, declared.name)
        normal = _normalised(value, declared.metadata)
        if normal is _WRONG:
            raise SchemeError(f"{scheme.name}: {declared.name}={value!r} is not {describe(declared)}.")
        object.__setattr__(scheme, declared.name, normal)


_WRONG = object()


def _normalised(value: Any, rules: Any) -> Any:
    if value is None:
        return None if rules["optional"] else _WRONG
    if rules["kind"] is bool:
        return value if isinstance(value, bool) else _WRONG
    if rules["kind"] is str:
        return value if isinstance(value, str) and value in rules["options"] else _WRONG
    return _number(value, rules)


def _number(value: Any, rules: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return _WRONG
    number: Any = value
    if not rules["low"] <= number <= rules["high"]:  # NaN is in no range
        return _WRONG
    normal = int(number) if rules["kind"] is int else float(number)
    return normal if normal == number or rules["kind"] is float else _WRONG
