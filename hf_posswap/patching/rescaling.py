"""What `extend` does with rotation: which scheme a method is, and which length, base and fields that goes on from."""

import numbers
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

from hf_posswap.errors import SchemeError
from hf_posswap.patching.checks import ORIGINAL, checked, make, refuse_unrecorded_length
from hf_posswap.schemes import SCHEMES, Geometry, ProportionalRoPE, Scheme, YaRN
from hf_posswap.schemes.composition import Composition
from hf_posswap.schemes.rope import RescaledRoPE, RoPE

THETA = "theta"

RESCALINGS: list[type[RoPE]] = [YaRN, *(s for s in SCHEMES if issubclass(s, RescaledRoPE) and s is not YaRN)]

ROTARY_METHODS: dict[str, type[RoPE]] = {**{s.name: s for s in RESCALINGS}, THETA: RoPE}
PROPORTIONAL_METHODS: dict[str, type[RoPE]] = {ProportionalRoPE.name: ProportionalRoPE, THETA: ProportionalRoPE}

FOR_ONE_LENGTH = ("factor", "attention_factor", "long_factor")
"""Fields that were made for the present length: a longer one does not inherit them."""


def rotary_methods(scheme: Scheme) -> dict[str, type[RoPE]]:
    """Method to the scheme that it patches in, the default first; empty where no rescaling fits.

    p-RoPE has a part of the pairs at the frequencies of all of them, which the other formulas would replace; so do the
    formulas of other classes that derive from RoPE. A composition has the methods of the rotations that it is made of.
    """
    turning = rotations(scheme)
    if len({tuple(rotary_methods(inner)) for inner in turning}) > 1:
        return {}
    if turning:
        return rotary_methods(turning[0])
    if isinstance(scheme, ProportionalRoPE):
        return PROPORTIONAL_METHODS
    return ROTARY_METHODS if type(scheme) is RoPE or isinstance(scheme, RescaledRoPE) else {}


def rotations(scheme: Scheme) -> list[Scheme]:
    """The schemes that can be rescaled inside of a composition; none in a scheme that is no composition."""
    parts = scheme.parts if isinstance(scheme, Composition) else ()
    return [part for part in parts if rotary_methods(part)]


def rescaled(
    config: Any, scheme: Scheme, geometry: Geometry, method: str, length: int, fields: dict[str, Any]
) -> tuple[Scheme, Geometry]:
    """The scheme that makes `length` positions of a model that has `scheme`, resolved, and what it was resolved from.

    Raises:
        SchemeError: a field that is wrong or missing, or a length before any extension that is wrong or unknown.
    """
    if isinstance(scheme, RoPE):
        return _rescaled(config, scheme, geometry, method, length, fields)
    assert isinstance(scheme, Composition)
    longer = {part: rescaled(config, part, geometry, method, length, fields) for part in rotations(scheme)}
    _, geometry = next(iter(longer.values()))
    return scheme.with_parts(tuple(longer[part][0] if part in longer else part for part in scheme.parts)), geometry


def _rescaled(
    config: Any, scheme: RoPE, geometry: Geometry, method: str, length: int, fields: dict[str, Any]
) -> tuple[Scheme, Geometry]:
    target = rotary_methods(scheme)[method]
    if method == THETA:
        if set(fields) != {"rope_theta"}:
            raise SchemeError("extend(method='theta') needs the new base and nothing else: rope_theta=500000.")
        original = geometry.trained_length
    else:
        if "factor" in fields:
            raise SchemeError("extend() works out the factor from max_length; patch() takes it as a field.")
        original = original_length(config, scheme, geometry, length, fields.get(ORIGINAL))
        lengths = {"factor": length / original, ORIGINAL: original}
        given = {name: value for name, value in fields.items() if name != ORIGINAL}
        fields = {**given, **{name: value for name, value in lengths.items() if name in _names(target)}}
    wanted = make(target.name, **{**_inherited(scheme, target, geometry), **fields})
    resolved, geometry = checked(config, wanted, allow_unordered=True)
    return resolved, replace(geometry, trained_length=original)


def _inherited(scheme: RoPE, target: type[RoPE], geometry: Geometry) -> dict[str, Any]:
    """Fields that the present scheme hands on to one of class `target`."""
    names = _names(target) if type(scheme) is target else {"partial_rotary_factor"}
    kept = {name: getattr(scheme, name) for name in names if name not in FOR_ONE_LENGTH}
    # An architecture without a rotation of its own has no base to go back to but the one that it was given.
    return {**kept, "rope_theta": geometry.rope_theta or scheme.rope_theta}


def original_length(config: Any, scheme: RoPE, geometry: Geometry, length: int, given: Any) -> int:
    """The length before any extension, which the factor counts from.

    Raises:
        SchemeError: it is unknown, or `length` is not beyond it.
    """
    if given is not None and (isinstance(given, bool) or not isinstance(given, numbers.Integral) or given < 1):
        raise SchemeError(f"{ORIGINAL} is the number of positions before any extension, not {given!r}.")
    if given is None:
        refuse_unrecorded_length(config, scheme, geometry)
    original = int(given or getattr(scheme, ORIGINAL, None) or geometry.trained_length)
    if original >= length:
        raise SchemeError(f"max_length={length} is no extension of the {original} positions from before any.")
    return original


def _names(scheme: type[Scheme]) -> set[str]:
    return {declared.name for declared in fields_of(scheme)}
