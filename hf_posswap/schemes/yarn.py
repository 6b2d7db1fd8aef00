"""YaRN: interpolate slow pairs, leave fast ones, a ramp between, and a temperature on the scores.

Peng et al. 2309.00071: equations 17 to 21 (ramp between numbers of rotations in the trained length), 22 (temperature).
The ramp is linear in the index of the pair, as in the published code and in transformers.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.fields import choice, flag, number
from hf_posswap.schemes.length_dependent import MODES, LengthDependentRoPE, doublings
from hf_posswap.schemes.rope import inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class YaRN(LengthDependentRoPE):
    """A pair that turns more than `beta_fast` times in the trained length is kept, one that turns less than `beta_slow`
    times is divided by `factor`. Both defaults are the paper's for LLaMA.

    `truncate` rounds the ramp's borders to whole pairs (the published code; False as in gpt-oss). cos and sin are
    multiplied by `attention_factor`: given, or `0.1 ln(factor) + 1`, or from `mscale` and `mscale_all_dim` (DeepSeek).
    `mode="static"` is YaRN; the others are the paper's dynamic scaling (section 3.4), where `factor` grows with the
    length up to the one that is given.
    """

    name: ClassVar[str] = "yarn"
    source: ClassVar[str] = "2309.00071"
    rope_type: ClassVar[str | None] = "yarn"
    native_modes: ClassVar[tuple[str, ...]] = ("static",)

    beta_fast: float = number(32.0, low=1e-3, high=1e6)
    beta_slow: float = number(1.0, low=1e-3, high=1e6)
    truncate: bool = flag(True)
    attention_factor: float | None = number(None, low=1e-3, high=1e3, optional=True)
    mscale: float | None = number(None, low=0.0, high=1e3, optional=True)
    mscale_all_dim: float | None = number(None, low=0.0, high=1e3, optional=True)
    mode: str = choice("static", MODES)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_betas(self)

    def segment_lengths(self) -> list[int]:
        # Rounded up, and cut off in `frequencies`: the last segment has `factor` itself.
        return doublings(self.original, math.ceil(self.factor * self.original))

    def frequencies(self, length: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        factor = (length / self.original).clamp(1.0, self.factor)
        kept = inverse_frequencies(self.dim(geometry), self.theta).to(length.device)
        share = interpolated_share(self, geometry).to(length.device)
        return kept / factor[..., None] * share + kept * (1 - share), self._attention_factor(factor)

    def _attention_factor(self, factor: Tensor) -> Tensor:
        if self.attention_factor is not None:
            return torch.full_like(factor, self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return _temperature(self.mscale, factor) / _temperature(self.mscale_all_dim, factor)
        return _temperature(1.0, factor)


def interpolated_share(scheme: Any, geometry: Geometry) -> Tensor:
    """How much of each pair is interpolated, from 0 for fast ones to 1 for slow ones: `[d/2]` float64.

    `scheme` has the fields `beta_fast`, `beta_slow` and `truncate`.
    """
    dim = scheme.dim(geometry)
    low, high = (_pair_turning(scheme, beta, dim) for beta in (scheme.beta_fast, scheme.beta_slow))
    if scheme.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    # The published code's guard against a ramp without width.
    high = high + 0.001 if low == high else high
    pairs = torch.arange(dim // 2, dtype=torch.float64, device="cpu")
    return ((pairs - low) / (high - low)).clamp(0, 1)


def refuse_betas(scheme: Any) -> None:
    """Raises SchemeError for a ramp that runs backwards."""
    if scheme.beta_fast <= scheme.beta_slow:
        raise SchemeError(
            f"{scheme.name}: beta_fast={scheme.beta_fast} must be larger than beta_slow={scheme.beta_slow}."
        )


def _pair_turning(scheme: Any, rotations: float, dim: int) -> float:
    """The (fractional) pair that makes `rotations` full turns in the trained length."""
    return dim * math.log(scheme.original / (rotations * 2 * math.pi)) / (2 * math.log(scheme.theta))


def _temperature(mscale: float, factor: Tensor) -> Tensor:
    return 0.1 * mscale * factor.log() + 1.0
