"""YaRN: interpolate slow pairs, leave fast ones, a ramp between, and a temperature on the scores.

Peng et al. 2309.00071: equations 17 to 21 (ramp between numbers of rotations in the trained length), 22 (temperature).
The ramp is linear in the index of the pair, as in the published code and in transformers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.fields import flag, number
from hf_posswap.schemes.rope import RescaledRoPE


@dataclass(frozen=True, kw_only=True)
class YaRN(RescaledRoPE):
    """A pair that turns more than `beta_fast` times in the trained length is kept, one that turns less than `beta_slow`
    times is divided by `factor`. Both defaults are the paper's for LLaMA.

    `truncate` rounds the ramp's borders to whole pairs (the published code; False as in gpt-oss). cos and sin are
    multiplied by `attention_factor`: given, or `0.1 ln(factor) + 1`, or from `mscale` and `mscale_all_dim` (DeepSeek).
    """

    name: ClassVar[str] = "yarn"
    source: ClassVar[str] = "2309.00071"
    rope_type: ClassVar[str | None] = "yarn"

    beta_fast: float = number(32.0, low=1e-3, high=1e6)
    beta_slow: float = number(1.0, low=1e-3, high=1e6)
    truncate: bool = flag(True)
    attention_factor: float | None = number(None, low=1e-3, high=1e3, optional=True)
    mscale: float | None = number(None, low=0.0, high=1e3, optional=True)
    mscale_all_dim: float | None = number(None, low=0.0, high=1e3, optional=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta_fast <= self.beta_slow:
            raise SchemeError(f"yarn: beta_fast={self.beta_fast} must be larger than beta_slow={self.beta_slow}.")

    def inv_freq(self, geometry: Geometry) -> Tensor:
        kept = super().inv_freq(geometry)
        low, high = self._ramp_borders(geometry.head_dim)
        pairs = torch.arange(len(kept), dtype=torch.float64, device="cpu")
        interpolated = ((pairs - low) / (high - low)).clamp(0, 1)
        return kept / self.factor * interpolated + kept * (1 - interpolated)

    def _ramp_borders(self, dim: int) -> tuple[float, float]:
        low, high = self._pair_turning(self.beta_fast, dim), self._pair_turning(self.beta_slow, dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        # The published code's guard against a ramp without width.
        return low, high + 0.001 if low == high else high

    def _pair_turning(self, rotations: float, dim: int) -> float:
        """The (fractional) pair that makes `rotations` full turns in the trained length."""
        length = self.original_max_position_embeddings
        assert length is not None
        return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(self.theta))

    def scaling(self, geometry: Geometry) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._temperature(self.mscale) / self._temperature(self.mscale_all_dim)
        return self._temperature(1.0)

    def _temperature(self, mscale: float) -> float:
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"rope_type": "yarn", **{k: v for k, v in values.items() if v is not None}}

    @classmethod
    def from_rope_parameters(cls, parameters: Mapping[str, Any]) -> "YaRN":
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in parameters.items() if k in known and v is not None})
