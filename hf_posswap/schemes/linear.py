"""Position interpolation: all frequencies divided by the factor. Chen et al. 2306.15595, equation 4."""

from collections.abc import Mapping
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

    def inv_freq(self, geometry: Geometry) -> Tensor:
        return super().inv_freq(geometry) / self.factor

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any]:
        return {"rope_type": "linear", "rope_theta": self.theta, "factor": self.factor}

    @classmethod
    def from_rope_parameters(cls, parameters: Mapping[str, Any]) -> "LinearRoPE":
        return cls(rope_theta=parameters.get("rope_theta"), factor=parameters["factor"])
