"""extend: a longer context. What that means depends on the scheme the model has."""

import numbers
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from hf_posswap.errors import SchemeError
from hf_posswap.families import Family, family_of
from hf_posswap.patching import patch_state, replace_scheme, scheme_of
from hf_posswap.patching.checks import checked, refuse_wrapped
from hf_posswap.patching.install import encodings_of
from hf_posswap.patching.rescaling import rescaled, rotary_methods
from hf_posswap.schemes import Geometry, Learned, Scheme
from hf_posswap.schemes.base import Encodings
from hf_posswap.schemes.fields import MAX_POSITIONS
from hf_posswap.schemes.learned import LearnedEncoding
from hf_posswap.transfer import GROWTH, grow

Model = TypeVar("Model", bound=nn.Module)

LENGTH_ONLY = "length"


def extend(model: Model, max_length: int, method: str | None = None, *, tokenizer: Any = None, **fields: Any) -> Model:
    """`hf_posswap.extend` without `method="auto"`; what it does is said there."""
    refuse_wrapped(model)
    length = _checked_length(model, max_length)
    family = family_of(model.config)
    scheme = scheme_of(model)
    checked(model.config, scheme, allow_unordered=True)
    geometry = family.geometry(model.config)
    if isinstance(scheme, Learned):
        _grow_table(model, family, scheme, geometry, length, method, fields)
    elif rotary_methods(scheme):
        method = _method(method, scheme)
        longer, geometry = rescaled(model.config, scheme, geometry, method, length, fields)
        _refuse_learned(model, scheme)
        replace_scheme(model, family, longer, geometry, max_length=length)
    else:
        _only_length(model, family, scheme, geometry, length, method, fields)
    if tokenizer is not None:
        tokenizer.model_max_length = length
    return model


def _checked_length(model: Any, max_length: Any) -> int:
    now = model.config.max_position_embeddings
    if isinstance(max_length, bool) or not isinstance(max_length, numbers.Integral):
        raise SchemeError(f"max_length is a number of positions, not {max_length!r}.")
    max_length = int(max_length)
    if not now < max_length <= MAX_POSITIONS:
        raise SchemeError(f"max_length={max_length} must be longer than the {now} of now and at most {MAX_POSITIONS}.")
    return max_length


def extension_methods(scheme: Scheme) -> tuple[str, ...]:
    """The methods that `extend` has for a model with this scheme, the default first."""
    if isinstance(scheme, Learned):
        return tuple(GROWTH)
    return tuple(rotary_methods(scheme)) or (LENGTH_ONLY,)


def _method(method: str | None, scheme: Scheme) -> str:
    names = extension_methods(scheme)
    if method is not None and method not in names:
        raise SchemeError(f"{scheme.name} has no extension method {method!r}; it has: {', '.join(names)}.")
    return method or names[0]


def _no_fields(fields: dict[str, Any], scheme: str) -> None:
    if fields:
        raise SchemeError(f"Extending {scheme} takes no fields, so {', '.join(fields)} has no meaning here.")


def _grow_table(
    model: Any, family: Family, scheme: Learned, geometry: Geometry, length: int, method: str | None, fields: dict
) -> None:
    rule = _method(method, scheme)
    state = patch_state(model)
    if state is None:
        assert family.input_slot is not None
        table = model.base_model.get_submodule(family.input_slot).weight
    else:
        former = encodings_of(model.base_model, state).input
        assert isinstance(former, LearnedEncoding)
        table = former.weight
    longer = replace(scheme, max_position_embeddings=length)
    encoding = LearnedEncoding(longer, geometry)
    encoding.take(grow(rule, table, length, **fields))
    replace_scheme(model, family, longer, geometry, encodings=Encodings(input=encoding))


def _refuse_learned(model: Any, scheme: Scheme) -> None:
    """What a composition has learned would be lost with the encodings that are made anew."""
    state = patch_state(model)
    scores = None if state is None else encodings_of(model.base_model, state).scores
    if scores is not None and any(True for _ in scores.parameters()):
        raise SchemeError(
            f"{scheme.name} has learned parameters beside its rotation, which extending would start anew."
        )


def _only_length(
    model: Any,
    family: Family,
    scheme: Scheme,
    geometry: Geometry,
    length: int,
    method: str | None,
    fields: dict[str, Any],
) -> None:
    _method(method, scheme)
    _no_fields(fields, scheme.name)
    state = patch_state(model)
    # What the scheme has learned stays: its encoding is put back in.
    encodings = None if state is None else encodings_of(model.base_model, state)
    replace_scheme(model, family, scheme, geometry, encodings=encodings, max_length=length)
