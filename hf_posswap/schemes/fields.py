"""Declared fields: a scheme states type and range once; checking, error texts and tables derive from it."""

import numbers
from collections.abc import Mapping
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


def series(default: Any = REQUIRED, *, low: float, high: float, optional: bool = False) -> Any:
    """A field that takes a list of numbers in `[low, high]`; it is kept as a tuple."""
    metadata = {"kind": tuple, "low": low, "high": high, "optional": optional}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


def text(default: str) -> Any:
    """A field that takes any string that is not empty."""
    return field(default=default, metadata={"kind": "text", "optional": False})


def member() -> Any:
    """A required field that takes another scheme: an instance, a name, or what its `to_dict` gives."""
    return field(metadata={"kind": "scheme", "optional": False})


def members() -> Any:
    """A required field that takes a list of schemes."""
    return field(metadata={"kind": "schemes", "optional": False})


def describe(declared: Field) -> str:
    """What a field accepts, in words for an error or a table."""
    rules = declared.metadata
    if rules["kind"] is bool:
        return "true or false"
    if rules["kind"] is str:
        return "one of " + ", ".join(rules["options"])
    if rules["kind"] in _COMPOSED:
        return _COMPOSED[rules["kind"]]
    kinds = {int: "an integer", float: "a finite number", tuple: "a list of numbers"}
    what = kinds[rules["kind"]]
    none = ", or None for the default" if rules["optional"] else ""
    return f"{what} from {_plain(rules['low'])} to {_plain(rules['high'])}{none}"


def example_of(declared: Field) -> str:
    """A value that a field accepts, as one would write it."""
    return {tuple: "[1.0, 2.0]", "scheme": '"rope"', "schemes": '["rope", "nope"]'}.get(declared.metadata["kind"], "4")


_COMPOSED = {"text": "a string", "scheme": "a scheme or its name", "schemes": "a list of schemes or their names"}


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
    if rules["kind"] is tuple:
        return _series(value, rules)
    if rules["kind"] == "text":
        return value if isinstance(value, str) and value else _WRONG
    if rules["kind"] == "scheme":
        return _scheme(value)
    if rules["kind"] == "schemes":
        several = tuple(map(_scheme, value)) if isinstance(value, (list, tuple)) else ()
        return several if several and all(inner is not _WRONG for inner in several) else _WRONG
    return _number(value, rules)


def _scheme(value: Any) -> Any:
    # The registry is made of modules that import this one.
    from hf_posswap.schemes import BY_NAME, Scheme
    from hf_posswap.schemes.base import make_scheme, scheme_from_dict

    if isinstance(value, Scheme):
        return value
    if isinstance(value, Mapping) and value:
        return scheme_from_dict(value, BY_NAME)
    return make_scheme(value, {}, BY_NAME) if isinstance(value, str) else _WRONG


def _series(value: Any, rules: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not value:
        return _WRONG
    normal = tuple(_number(number, {**rules, "kind": float}) for number in value)
    return _WRONG if any(number is _WRONG for number in normal) else normal


def _number(value: Any, rules: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return _WRONG
    number: Any = value
    if not rules["low"] <= number <= rules["high"]:  # NaN is in no range
        return _WRONG
    normal = int(number) if rules["kind"] is int else float(number)
    return normal if normal == number or rules["kind"] is float else _WRONG
