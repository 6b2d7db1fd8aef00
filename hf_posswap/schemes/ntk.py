"""NTK-aware scaling: a larger base, so that the slowest pair is interpolated and the fastest is not.

bloc97's "NTK-aware scaled RoPE"; written down in 2309.00071, section 3.1, equations 14 to 16.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.rope import RescaledRoPE, RoPE, inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class NTKRoPE(RescaledRoPE):
    """`theta_i` with base `rope_theta * factor^(D/(D-2))`."""

    name: ClassVar[str] = "ntk"
    source: ClassVar[str] = "2309.00071"
    rope_type: ClassVar[str | None] = "default"
    reads_native: ClassVar[bool] = False

    def check_width(self, geometry: Geometry) -> None:
        super().check_width(geometry)
        refuse_one_pair(self, geometry)

    def scaled_theta(self, geometry: Geometry) -> float:
        """The larger base."""
        dim = self.dim(geometry)
        return self.theta * self.factor ** (dim / (dim - 2))

    def inv_freq(self, geometry: Geometry) -> Tensor:
        return inverse_frequencies(self.dim(geometry), self.scaled_theta(geometry))

    def native_fields(self, geometry: Geometry) -> dict[str, Any]:
        return {"rope_theta": self.scaled_theta(geometry)}


def refuse_one_pair(scheme: RoPE, geometry: Geometry) -> None:
    """Raises SchemeError where the exponent d / (d - 2) does not exist."""
    if scheme.dim(geometry) <= 2:
        raise SchemeError(
            f"{scheme.name} divides by d - 2 and needs more than 2 dimensions that turn, not {scheme.dim(geometry)}."
        )
