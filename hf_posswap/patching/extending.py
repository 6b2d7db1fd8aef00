"""extend: a longer context. What that means depends on the scheme the model has."""

import numbers
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from hf_posswap.errors import SchemeError
from hf_posswap.families import Family, family_of
from hf_posswap.patching import patch_state, replace_scheme, scheme_of
from hf_posswap.patching.checks import checked, make, refuse_wrapped
from hf_posswap.patching.install import encoding_of
from hf_posswap.schemes import Geometry, Learned, Scheme
from hf_posswap.schemes.fields import MAX_POSITIONS
from hf_posswap.schemes.learned import LearnedEncoding
from hf_posswap.schemes.rope import RoPE
from hf_posswap.transfer import GROWTH

Model = TypeVar("Model", bound=nn.Module)

ROTARY_METHODS = {"yarn": "yarn", "linear": "linear", "ntk": "ntk", "theta": "rope"}
"""Method to the scheme it patches in; the first is the default."""

LENGTH_ONLY = "length"


def extend(model: Model, max_length: int, method: str | None = None, *, tokenizer: Any = None, **fields: Any) -> Model:
    """Raises the length that the model accepts to `max_length` positions, in place, and returns it.

    `method` depends on the scheme: a learned table grows by "interpolate" (default), "tile" or "repeat_last"; RoPE and
    its rescalings go on from the trained length and base by "yarn" (default), "linear", "ntk" or "theta", which needs
    `rope_theta`; all other schemes take "length" alone. `fields` go to the rotary scheme. `tokenizer.model_max_length`
    is raised along when a tokenizer is given.

    Raises:
        FamilyError: the model is not supported, or is wrapped.
        SchemeError: no such method for this scheme, or `max_length` is not longer. The model is unchanged.
    """
    refuse_wrapped(model)
    length = _checked_length(model, max_length)
    family = family_of(model.config)
    scheme = scheme_of(model)
    checked(model.config, scheme, allow_unordered=True)
    geometry = family.geometry(model.config)
    if isinstance(scheme, Learned):
        _grow_table(model, family, scheme, geometry, length, method, fields)
    elif isinstance(scheme, RoPE) and scheme.kind == "rotary":
        _rescale(model, family, geometry, length, method, fields)
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


def _method(method: str | None, known: Any, scheme: str) -> str:
    names = list(known)
    if method is not None and method not in names:
        raise SchemeError(f"{scheme} has no extension method {method!r}; it has: {', '.join(names)}.")
    return method or names[0]


def _no_fields(fields: dict[str, Any], scheme: str) -> None:
    if fields:
        raise SchemeError(f"Extending {scheme} takes no fields, so {', '.join(fields)} has no meaning here.")


def _grow_table(
    model: Any, family: Family, scheme: Learned, geometry: Geometry, length: int, method: str | None, fields: dict
) -> None:
    rule = GROWTH[_method(method, GROWTH, scheme.name)]
    _no_fields(fields, scheme.name)
    state = patch_state(model)
    if state is None:
        assert family.input_slot is not None
        table = model.base_model.get_submodule(family.input_slot).weight
    else:
        former = encoding_of(model.base_model, state)
        assert isinstance(former, LearnedEncoding)
        table = former.weight
    longer = replace(scheme, max_position_embeddings=length)
    encoding = LearnedEncoding(longer, geometry)
    encoding.take(rule(table, length))
    replace_scheme(model, family, longer, geometry, encoding=encoding)


def _rescale(
    model: Any, family: Family, geometry: Geometry, length: int, method: str | None, fields: dict[str, Any]
) -> None:
    name = ROTARY_METHODS[_method(method, ROTARY_METHODS, "rope")]
    if name == "rope":
        if set(fields) != {"rope_theta"}:
            raise SchemeError("extend(method='theta') needs the new base and nothing else: rope_theta=500000.")
    else:
        if "factor" in fields:
            raise SchemeError("extend() works out the factor from max_length; patch() takes it as a field.")
        fields = {"factor": length / geometry.trained_length, **fields}
    wanted = make(name, **fields)
    resolved, geometry = checked(model.config, wanted, allow_unordered=True)
    replace_scheme(model, family, resolved, geometry, max_length=length)


def _only_length(
    model: Any,
    family: Family,
    scheme: Scheme,
    geometry: Geometry,
    length: int,
    method: str | None,
    fields: dict[str, Any],
) -> None:
    _method(method, (LENGTH_ONLY,), scheme.name)
    _no_fields(fields, scheme.name)
    state = patch_state(model)
    # What the scheme has learned stays: its encoding is put back in.
    encoding = None if state is None else encoding_of(model.base_model, state)
    replace_scheme(model, family, scheme, geometry, encoding=encoding, max_length=length)
