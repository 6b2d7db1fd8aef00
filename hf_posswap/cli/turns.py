"""How often each pair of dimensions turns within the trained context: pairs below one turn never showed all angles."""

import math
from typing import Any

import torch
from torch import Tensor

from hf_posswap.schemes import Geometry, Layered, LogScaled, Scheme
from hf_posswap.schemes.length_dependent import LengthDependentRoPE
from hf_posswap.schemes.rope import RoPE


def rope_turns(scheme: Scheme, geometry: Geometry, length: int) -> list[dict[str, Any]]:
    """A row for every set of frequencies of a resolved scheme that a model of `length` positions uses; none where
    nothing rotates.

    `turns` are `inv_freq * trained_length / (2 pi)` of every pair, 0 for one that does not turn. `layers` have these
    frequencies, and `where` says at which positions or in which calls; None for all.
    """
    rows: list[dict[str, Any]] = []
    for member, layers in _members(scheme, geometry):
        rotation = member.inner if isinstance(member, LogScaled) else member
        if isinstance(rotation, RoPE):
            for where, inv_freq in _frequencies(rotation, geometry, length):
                turns = _turns(inv_freq, rotation, geometry)
                rows.append({"scheme": rotation.name, "layers": layers, "where": where, "turns": turns})
    return rows


def _members(scheme: Scheme, geometry: Geometry) -> list[tuple[Scheme, list[int] | None]]:
    if not isinstance(scheme, Layered):
        return [(scheme, None)]
    chosen = list(enumerate(scheme.assignment(geometry.num_hidden_layers)))
    return [(member, [layer for layer, of in chosen if of == own]) for own, member in enumerate(scheme.schemes)]


def _frequencies(scheme: RoPE, geometry: Geometry, length: int) -> list[tuple[str | None, Tensor]]:
    """Where frequencies hold, and `inv_freq [d/2]`."""
    if not isinstance(scheme, LengthDependentRoPE) or scheme.mode == "static":
        return [(None, scheme.inv_freq(geometry))]
    if scheme.mode == "call":
        call = geometry.trained_length
        wide = torch.tensor(call, dtype=torch.float64, device="cpu")
        return [(f"a call of {call}", scheme.frequencies(wide, geometry)[0])]
    rotation: Any = scheme.build(geometry)
    starts = [0, *rotation.ends.tolist()]
    ends = [*starts[1:], max(length, starts[-1] + 1)]
    rows = zip(starts, ends, rotation.inv_freq, strict=True)
    return [(f"positions {a} to {min(b, length) - 1}", inv_freq) for a, b, inv_freq in rows if a < length]


def _turns(inv_freq: Tensor, scheme: RoPE, geometry: Geometry) -> list[float]:
    turns = inv_freq * geometry.trained_length / (2 * math.pi)
    return [*turns.tolist(), *[0.0] * scheme.still(geometry)]
