"""A scheme where there is no model: the geometry that stands in for one, and what is refused."""

from collections.abc import Mapping

from hf_posswap.errors import SchemeError
from hf_posswap.schemes import BY_NAME
from hf_posswap.schemes.base import Geometry, Scheme, make_scheme
from hf_posswap.schemes.fields import MAX_POSITIONS

EXAMPLE = Geometry(
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=128,
    hidden_size=128,
    num_hidden_layers=32,
    trained_length=4096,
    causal=True,
)
"""LLaMA 2's lengths, layers and head_dim; fewer heads and a smaller hidden size, so that they can be told apart."""
SMALLEST = {"num_attention_heads": 1, "head_dim": 2, "hidden_size": 2}
SHORTEST = 16
"""Tokens, trained and asked for."""
LARGEST = {"num_attention_heads": 256, "head_dim": 512, "hidden_size": 65536, "trained_length": MAX_POSITIONS}

LARGEST_TABLE = 2**27
"""Values of input encodings that are held at once: a gigabyte of float64."""


def resolved_alone(scheme: Scheme | str, geometry: Geometry, asked: Mapping[str, int | None]) -> Scheme:
    """The scheme, or the one of that name, resolved for a geometry without a model. `asked` are lengths by name.

    Raises:
        SchemeError: it has no meaning for this geometry, or a size is out of range.
    """
    if isinstance(scheme, str):
        scheme = make_scheme(scheme, {}, BY_NAME)
    _refuse_sizes(geometry, asked)
    if not geometry.causal and scheme.causal_only is not None:
        raise SchemeError(f"{scheme.name} does not work on an encoder: {scheme.causal_only}.")
    resolved = scheme.resolve(geometry)
    refuse_table(resolved.limit() or 0, geometry)
    return resolved


def refuse_table(positions: int, geometry: Geometry) -> None:
    """Raises SchemeError where input encodings of so many positions would fill the memory."""
    if positions * geometry.hidden_size > LARGEST_TABLE:
        size = f"{positions} x {geometry.hidden_size}"
        raise SchemeError(f"A table of {size} is too large without a model: take fewer positions.")


def shown_length(scheme: Scheme, geometry: Geometry) -> int:
    """How many positions show what a resolved scheme does: those it extends to, at least four times the trained length;
    never past the end of a scheme that has one."""
    length = max(scheme.max_length(geometry) or 0, 4 * geometry.trained_length)
    return min(length, scheme.limit() or length)


def _refuse_sizes(geometry: Geometry, asked: Mapping[str, int | None]) -> None:
    lengths = {name: length for name, length in asked.items() if length is not None}
    for name, size in {**{name: getattr(geometry, name) for name in LARGEST}, **lengths}.items():
        low, high = SMALLEST.get(name, SHORTEST), LARGEST.get(name, MAX_POSITIONS)
        if not low <= size <= high:
            raise SchemeError(f"What is shown without a model needs {name} from {low} to {high}, not {size}.")
