"""What a scheme alone does to scores by distance, no model needed."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.evaluation.results import Result
from hf_posswap.profiles.distances import dense_near_zero
from hf_posswap.profiles.effects import Effect, effects_of
from hf_posswap.profiles.inputs import refuse_zeros
from hf_posswap.profiles.without_model import EXAMPLE, resolved_alone, shown_length
from hf_posswap.schemes.base import Geometry, Scheme
from hf_posswap.schemes.layered import Layered


@dataclass(frozen=True, kw_only=True)
class Decay(Result):
    """Bias, inner product of turned equal vectors, or similarity of input encodings, by distance."""

    kind: ClassVar[str] = "decay"

    scheme: dict[str, Any]
    what: str
    """"bias" (added to scores), "inner product" (of a query and a key of ones, over head_dim; 1 where nothing turns) or
    "similarity" (mean cosine between the input encodings of positions that are so far apart)."""
    causal: bool
    trained_length: int
    distances: tuple[int, ...]
    """Query position minus key position."""
    labels: tuple[str, ...]
    """What each row of `heads` is: a scheme, and a head of it where heads differ."""
    heads: tuple[tuple[float, ...], ...]
    """Values by distance, for each head; one row where all are alike."""


def decay(scheme: Scheme | str, geometry: Geometry = EXAMPLE, *, max_length: int | None = None) -> Decay:
    """The scheme's own profile, as it starts: biases that are learned from zero are zero.

    The query is the last of `max_length` positions (None: as many as the scheme extends to, at least four times the
    trained length), so where frequencies depend on length they are those of that length, in every mode. On an encoder
    keys lie on both sides of it. Factors on queries count in inner products. A scheme without positions is a flat line.

    Raises:
        SchemeError: the scheme has no meaning for this geometry; it is a table of zeros before it is trained; or it
            does different things in different layers, which have no common unit.
    """
    resolved = resolved_alone(scheme, geometry, {"max_length": max_length})
    last = (max_length or shown_length(resolved, geometry)) - 1
    distances = dense_near_zero(last, geometry.causal)
    effects = effects_of(resolved, geometry)
    what = _what(effects, resolved)
    rows = [_row(effect, what, distances, last, resolved) for effect in effects]
    names = _names(resolved, effects, geometry)
    labelled = [each for name, row in zip(names, rows, strict=True) for each in _by_head(name, row)]
    return Decay(
        scheme=resolved.to_dict(),
        what=what,
        causal=geometry.causal,
        trained_length=geometry.trained_length,
        distances=tuple(distances.tolist()),
        labels=tuple(label for label, _ in labelled),
        heads=tuple(tuple(values) for _, values in labelled),
    )


def _what(effects: list[Effect], scheme: Scheme) -> str:
    """What there is; nothing fits beside anything."""
    kinds = {effect.what for effect in effects if effect.modules} or {effects[0].what}
    if len(kinds) > 1:
        raise SchemeError(f"{scheme.name} has {' and '.join(sorted(kinds))}: ask for the decay of each scheme alone.")
    return kinds.pop()


def _row(effect: Effect, what: str, distances: Tensor, last: int, scheme: Scheme) -> Tensor:
    """`[H, R]`."""
    if not effect.modules:
        return torch.full((1, len(distances)), 0.0 if what == "bias" else 1.0, dtype=torch.float64)
    found = effect.profile(distances, last)
    return refuse_zeros(found, scheme) if what == "similarity" else found


def _names(scheme: Scheme, effects: list[Effect], geometry: Geometry) -> list[str]:
    """The scheme; of a layered one the members, and in how many layers they are."""
    if not isinstance(scheme, Layered):
        return [scheme.name for _ in effects]
    layers = scheme.assignment(geometry.num_hidden_layers)
    counts = [layers.count(i) for i in range(len(scheme.schemes))]
    members = zip(scheme.schemes, counts, strict=True)
    return [f"{member.name} ({count} of {len(layers)} layers)" for member, count in members]


def _by_head(name: str, values: Tensor) -> list[tuple[str, list[float]]]:
    if bool((values == values[0]).all()):
        return [(name, values[0].tolist())]
    return [(f"{name}, head {head}", row) for head, row in enumerate(values.tolist(), start=1)]
