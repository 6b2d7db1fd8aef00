"""ALiBi: a penalty on attention scores that grows linearly with distance, steeper in some heads than in others.

Press et al. 2108.12409, section 3; slopes for head counts that are no power of two from the authors' code.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_posswap.schemes.base import DistanceBias, Geometry, Kind, Scheme


def alibi_slopes(num_heads: int) -> list[float]:
    """`2^(-8h/H)`, h = 1..H; else those of the power of two below, then every other one of the power above."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    return slopes + [2.0 ** (-4.0 * h / power) for h in range(1, 2 * (num_heads - power), 2)]


@dataclass(frozen=True, kw_only=True)
class ALiBi(Scheme):
    """`-slope_h * (p_query - p_key)`; on an encoder the distance counts in both directions."""

    name: ClassVar[str] = "alibi"
    kind: ClassVar[Kind] = "bias"
    source: ClassVar[str] = "2108.12409"
    relative: ClassVar[bool] = True

    def build(self, geometry: Geometry) -> "ALiBiEncoding":
        return ALiBiEncoding(geometry)


class ALiBiEncoding(DistanceBias):
    """The product is taken in float64 and rounded once, so that distances of a million keep seven digits."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry.num_attention_heads)
        self.slopes = torch.tensor(alibi_slopes(self.num_heads), dtype=torch.float64, device="cpu")

    def bias(self, distances: Tensor, heads: Tensor) -> Tensor:
        if distances.device.type == "mps":  # has no float64
            return self.bias(distances.cpu(), heads.cpu()).to(distances.device)
        wide = distances.abs().to(torch.float64)
        return (-self.slopes.to(distances.device)[heads] * wide).to(self.exact_dtype)
