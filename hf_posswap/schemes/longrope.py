"""LongRoPE: a factor of its own for every pair, found by a search. Ding et al. 2402.13753; LongRoPE2 2502.20082.

`hf_posswap.search.search_longrope` is such a search, on a model and text of the user's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry, Kind
from hf_posswap.schemes.fields import number, series
from hf_posswap.schemes.length_dependent import LengthDependentRoPE
from hf_posswap.schemes.rope import inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class LongRoPE(LengthDependentRoPE):
    """`theta_i / short_factor[i]` up to the trained length, `theta_i / long_factor[i]` beyond; d/2 factors each.

    `short_factor` None: ones. cos and sin are multiplied by `attention_factor`, at every length: given, or
    `sqrt(1 + ln(factor) / ln(L))`.
    """

    name: ClassVar[str] = "longrope"
    kind: ClassVar[Kind] = "score"
    source: ClassVar[str] = "2402.13753"
    relative: ClassVar[bool] = False
    rope_type: ClassVar[str | None] = "longrope"

    long_factor: tuple[float, ...] = series(low=1e-3, high=1e6)
    short_factor: tuple[float, ...] | None = series(None, low=1e-3, high=1e6, optional=True)
    attention_factor: float | None = number(None, low=1e-3, high=1e3, optional=True)

    def check_width(self, geometry: Geometry) -> None:
        super().check_width(geometry)
        pairs = self.dim(geometry) // 2
        for name in ("long_factor", "short_factor"):
            given = getattr(self, name)
            if given is not None and len(given) != pairs:
                raise SchemeError(f"longrope: {name} has {len(given)} numbers, and {pairs} pairs of dimensions turn.")

    @property
    def longest(self) -> float:
        return max(self.original + 1, self.factor * self.original)

    def segment_lengths(self) -> list[int]:
        return [self.original, round(self.longest)]

    def frequencies(self, length: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        kept = inverse_frequencies(self.dim(geometry), self.theta).to(length.device)
        long, short = (
            kept / torch.tensor(factors or [1.0], dtype=torch.float64, device=length.device)
            for factors in (self.long_factor, self.short_factor)
        )
        inv_freq = torch.where(length[..., None] > self.original, long, short)
        return inv_freq, torch.full_like(length, self._attention_factor())

    def _attention_factor(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1 or self.original <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original))

    def native_fields(self, geometry: Geometry) -> dict[str, Any]:
        long = list(self.long_factor)
        # With both lists long, every reader's choice between them is the same.
        short = long if self.mode == "static" else list(self.short_factor or [1.0] * len(long))
        return {
            "rope_theta": self.theta,
            "factor": self.factor,
            "original_max_position_embeddings": self.original,
            "short_factor": short,
            "long_factor": long,
            "attention_factor": self._attention_factor(),
        }

    @classmethod
    def from_rope_parameters(cls, parameters: Mapping[str, Any]) -> "LongRoPE":
        return super().from_rope_parameters({**parameters, "mode": "call"})
