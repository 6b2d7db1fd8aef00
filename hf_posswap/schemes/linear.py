"""Position interpolation: all frequencies divided by the factor. Chen et al. 2306.15595, equation 4."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.rope import RescaledRoPE


@dataclass(frozen=True, kw_only=True)
class LinearRoPE(RescaledRoPE):
    """`theta_i / factor`."""

    name: ClassVar[str] = "linear"
    source: ClassVar[str] = "2306.15595"
    rope_type: ClassVar[str | None] = "linear"
    fine_tuning: ClassVar[str] = "on a RoPE model: yes, a short one (2306.15595: 1000 steps)"

    def inv_freq(self, geometry: Geometry) -> Tensor:
        return super().inv_freq(geometry) / self.factor

    def native_fields(self, geometry: Geometry) -> dict[str, Any]:
        return {"rope_theta": self.theta, "factor": self.factor}
