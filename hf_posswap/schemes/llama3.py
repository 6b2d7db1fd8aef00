"""Llama 3.1's rescaling: slow pairs interpolated, fast ones kept, smooth between, by wavelength.

Llama 3 (2407.21783, section 3.4.3); the formula is that of Meta's reference code (`apply_scaling`).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.fields import number
from hf_posswap.schemes.rope import RescaledRoPE


@dataclass(frozen=True, kw_only=True)
class Llama3RoPE(RescaledRoPE):
    """A pair that turns more than `high_freq_factor` times in the trained length is kept, one that turns less than
    `low_freq_factor` times is divided by `factor`; between the two, linear in the number of turns. The defaults are
    Llama 3.1's.
    """

    name: ClassVar[str] = "llama3"
    source: ClassVar[str] = "2407.21783"
    rope_type: ClassVar[str | None] = "llama3"

    factor: float = number(8.0, low=1.0, high=65536.0)
    low_freq_factor: float = number(1.0, low=1e-3, high=1e6)
    high_freq_factor: float = number(4.0, low=1e-3, high=1e6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.high_freq_factor <= self.low_freq_factor:
            raise SchemeError(
                f"llama3: high_freq_factor={self.high_freq_factor} must be larger than "
                f"low_freq_factor={self.low_freq_factor}."
            )

    def inv_freq(self, geometry: Geometry) -> Tensor:
        kept = super().inv_freq(geometry)
        turns = kept * self.original / (2 * math.pi)
        share = ((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)
        return kept / self.factor * (1 - share) + kept * share
