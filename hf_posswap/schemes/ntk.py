"""NTK-aware scaling: a larger base, so that the slowest pair is interpolated and the fastest is not.

bloc97's "NTK-aware scaled RoPE"; written down in 2309.00071, section 3.1, equations 14 to 16.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.rope import RescaledRoPE, inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class NTKRoPE(RescaledRoPE):
    """`theta_i` with base `rope_theta * factor^(D/(D-2))`."""

    name: ClassVar[str] = "ntk"
    source: ClassVar[str] = "2309.00071"
    rope_type: ClassVar[str | None] = None

    def resolve(self, geometry: Geometry) -> "NTKRoPE":
        if geometry.head_dim <= 2:
            raise SchemeError(f"ntk divides by head_dim - 2 and needs a head_dim above 2, not {geometry.head_dim}.")
        return super().resolve(geometry)

    def scaled_theta(self, geometry: Geometry) -> float:
        """The larger base."""
        dim = geometry.head_dim
        return self.theta * self.factor ** (dim / (dim - 2))

    def inv_freq(self, geometry: Geometry) -> Tensor:
        return inverse_frequencies(geometry.head_dim, self.scaled_theta(geometry))

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any]:
        return {"rope_type": "default", "rope_theta": self.scaled_theta(geometry)}
