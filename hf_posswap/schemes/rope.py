"""Rotary position embedding: pairs of query and key dimensions turn by an angle proportional to position.

Su et al. 2104.09864, equation 34. A larger `rope_theta` is the base rescaling of 2309.16039.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry, Kind, RotaryEncoding, Scheme
from hf_posswap.schemes.fields import number

Rotary = TypeVar("Rotary", bound="RoPE")


def inverse_frequencies(dim: int, base: float) -> Tensor:
    """`theta_i = base^(-2i/dim)`, i = 0..dim/2-1, float64 on the CPU: `[dim/2]`."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)


@dataclass(frozen=True, kw_only=True)
class RoPE(Scheme):
    """`theta_i = rope_theta^(-2i/D)`. The rescalings derive from this class and supply `inv_freq` and `scaling`."""

    name: ClassVar[str] = "rope"
    kind: ClassVar[Kind] = "rotary"
    source: ClassVar[str] = "2104.09864"
    rope_type: ClassVar[str | None] = "default"
    """The value of `rope_parameters["rope_type"]` that means this class; None when transformers has no such type."""

    rope_theta: float | None = number(None, low=1.0001, high=1e15, optional=True)

    def resolve(self: Rotary, geometry: Geometry) -> Rotary:
        if geometry.head_dim % 2:
            raise SchemeError(
                f"{self.name} turns pairs of dimensions and needs an even head_dim, not {geometry.head_dim}."
            )
        return self.with_defaults(rope_theta=geometry.rope_theta or 10000.0)

    @property
    def theta(self) -> float:
        """The base of a resolved scheme."""
        assert self.rope_theta is not None
        return self.rope_theta

    def inv_freq(self, geometry: Geometry) -> Tensor:
        """Radians per position of each pair: `[D/2]` float64."""
        return inverse_frequencies(geometry.head_dim, self.theta)

    def scaling(self, geometry: Geometry) -> float:
        """The factor on cos and sin."""
        return 1.0

    def build(self, geometry: Geometry) -> RotaryEncoding:
        return RotaryEncoding(self.inv_freq(geometry), self.scaling(geometry))

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any] | None:
        return {"rope_type": self.rope_type, "rope_theta": self.theta}

    @classmethod
    def from_rope_parameters(cls, parameters: Mapping[str, Any]) -> "RoPE":
        """The scheme that a config's `rope_parameters` of this type describe."""
        return cls(rope_theta=parameters.get("rope_theta"))


@dataclass(frozen=True, kw_only=True)
class RescaledRoPE(RoPE):
    """What the rescalings share: `factor` times the trained length. Abstract: it is no scheme itself."""

    factor: float = number(low=1.0, high=65536.0)
    original_max_position_embeddings: int | None = number(None, low=1, high=2**24, integer=True, optional=True)

    def resolve(self: Rotary, geometry: Geometry) -> Rotary:
        resolved = super().resolve(geometry)
        return resolved.with_defaults(original_max_position_embeddings=geometry.trained_length)

    def max_length(self, geometry: Geometry) -> int | None:
        assert self.original_max_position_embeddings is not None
        return round(self.factor * self.original_max_position_embeddings)
