"""Which pairs of dimensions a model rotates, and how large they are in queries and keys.

The score of a query and a key is a sum over pairs, each of at most the product of the pair's norms, whatever the angle:
so norms say how much of the scores a frequency can make (Barbero et al. 2410.06205, section 4). Rotation keeps them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posswap.errors import CheckpointError, FamilyError, SchemeError
from hf_posswap.families import family_of
from hf_posswap.patching import patch_state, scheme_of
from hf_posswap.schemes import Layered, LogScaled, Scheme
from hf_posswap.schemes.base import Pairing
from hf_posswap.schemes.rope import RoPE

POSITIONS = 4096
"""Positions whose norms exist at one time."""


@dataclass(frozen=True)
class Rotation:
    """The first `width` dimensions of a head turn in pairs, in some of the layers."""

    inv_freq: tuple[float, ...]
    width: int
    pairing: Pairing
    layers: tuple[bool, ...]

    def norms(self, x: Tensor) -> Tensor:
        """Norms of the pairs of `x [B, H, L, D]`, summed over rows and positions: `[H, D/2]` float64 on the CPU."""
        parts = [self._norms(part).cpu().sum(dim=(0, 2), dtype=torch.float64) for part in x.split(POSITIONS, dim=2)]
        return torch.stack(parts).sum(dim=0)

    def _norms(self, x: Tensor) -> Tensor:
        turning, rest = x[..., : self.width], x[..., self.width :]
        half = self.width // 2
        first, second = (
            (turning[..., :half], turning[..., half:])
            if self.pairing == "half"
            else (turning[..., 0::2], turning[..., 1::2])
        )
        others = rest.shape[-1] // 2
        # Dimensions that do not turn have no pairs of their own: any will do to tell their size.
        first = torch.cat((first, rest[..., :others]), dim=-1)
        second = torch.cat((second, rest[..., others:]), dim=-1)
        return torch.hypot(first.float(), second.float())


def rotation_of(model: Any) -> Rotation | None:
    """The one rotation of a model, patched or not; None where there is none, or not one for all positions."""
    try:
        scheme = scheme_of(model)
    except (SchemeError, FamilyError, CheckpointError):
        return None
    state = patch_state(model)
    geometry = family_of(model.config).geometry(model.config) if state is None else state.geometry
    by_layer = [rotates_at_fixed_frequencies(each) for each in _by_layer(scheme, geometry.num_hidden_layers)]
    found = {rotation for rotation in by_layer if rotation is not None}
    if len(found) != 1:
        return None
    (rope,) = found
    inv_freq = rope.inv_freq(geometry).tolist()
    width = 2 * (len(inv_freq) + rope.still(geometry))
    return Rotation(tuple(inv_freq), width, geometry.pairing, tuple(each is not None for each in by_layer))


def _by_layer(scheme: Scheme, layers: int) -> list[Scheme]:
    if isinstance(scheme, Layered):
        return [_inner(scheme.schemes[i]) for i in scheme.assignment(layers)]
    return [_inner(scheme)] * layers


def _inner(scheme: Scheme) -> Scheme:
    return scheme.inner if isinstance(scheme, LogScaled) else scheme


def rotates_at_fixed_frequencies(scheme: Scheme) -> RoPE | None:
    """The scheme if it turns queries and keys by frequencies that depend on nothing."""
    fixed = isinstance(scheme, RoPE) and scheme.kind == "rotary" and scheme.refuses_cache is None
    return scheme if fixed else None  # type: ignore[return-value]
