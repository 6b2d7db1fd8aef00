"""Rotary position embedding: pairs of query and key dimensions turn by an angle proportional to position.

Su et al. 2104.09864, equation 34. A larger `rope_theta` is the base rescaling of 2309.16039.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry, Kind, RotaryEncoding, Scheme
from hf_posswap.schemes.fields import number

Rotary = TypeVar("Rotary", bound="RoPE")


def inverse_frequencies(dim: int, base: float) -> Tensor:
    """`theta_i = base^(-2i/dim)`, i = 0..dim/2-1, float64 on the CPU: `[dim/2]`."""
    return base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim)


@dataclass(frozen=True, kw_only=True)
class RoPE(Scheme):
    """`theta_i = rope_theta^(-2i/d)`, the rescalings derive from this class and supply `inv_freq` and `scaling`.

    `partial_rotary_factor`: d is that part of `head_dim` (None: the model's own, 1 for most). The first d/2 pairs turn,
    pairs being those of the model, so that what it has learned of them stays: on LLaMA dimensions i and i + D/2, on a
    model that rotates the first d dimensions (GLM, Phi-3) those within them.
    """

    name: ClassVar[str] = "rope"
    kind: ClassVar[Kind] = "rotary"
    source: ClassVar[str] = "2104.09864"
    relative: ClassVar[bool] = True
    rope_type: ClassVar[str | None] = "default"
    """The value of `rope_parameters["rope_type"]` that can say it; None when transformers has no such type."""
    reads_native: ClassVar[bool] = True
    """Whether this type, found in a config, is read as this class."""

    rope_theta: float | None = number(None, low=1.0001, high=1e15, optional=True)
    partial_rotary_factor: float | None = number(None, low=0.0, high=1.0, optional=True)

    def resolve(self: Rotary, geometry: Geometry) -> Rotary:
        if geometry.head_dim % 2:
            raise SchemeError(
                f"{self.name} turns pairs of dimensions and needs an even head_dim, not {geometry.head_dim}."
            )
        resolved = self.with_defaults(
            rope_theta=geometry.rope_theta or 10000.0, partial_rotary_factor=geometry.partial_rotary_factor
        )
        resolved.check_width(geometry)
        return resolved

    def check_width(self, geometry: Geometry) -> None:
        """Raises SchemeError when `partial_rotary_factor` does not leave whole pairs."""
        turning = int(geometry.head_dim * self.part)
        if turning < 2 or turning % 2:
            raise SchemeError(
                f"{self.name}: partial_rotary_factor={self.part} of head_dim {geometry.head_dim} is {turning} "
                "dimensions; an even number of at least 2 is needed."
            )

    @property
    def theta(self) -> float:
        """The base of a resolved scheme."""
        assert self.rope_theta is not None
        return self.rope_theta

    @property
    def part(self) -> float:
        """The part of a head that turns, of a resolved scheme."""
        assert self.partial_rotary_factor is not None
        return self.partial_rotary_factor

    def dim(self, geometry: Geometry) -> int:
        """How many dimensions of a head turn: d of the formulas."""
        return int(geometry.head_dim * self.part)

    def still(self, geometry: Geometry) -> int:
        """How many pairs of the tables do not turn."""
        return 0 if geometry.rotates_prefix else (geometry.head_dim - self.dim(geometry)) // 2

    def inv_freq(self, geometry: Geometry) -> Tensor:
        """Radians per position of each pair that turns: `[d/2]` float64."""
        return inverse_frequencies(self.dim(geometry), self.theta)

    def scaling(self, geometry: Geometry) -> float:
        """The factor on cos and sin."""
        return 1.0

    def build(self, geometry: Geometry) -> nn.Module:
        return RotaryEncoding(self.inv_freq(geometry), self.scaling(geometry), self.still(geometry))

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any] | None:
        if self.rope_type is None or (self.part != 1 and not geometry.rotates_prefix):
            return None
        partial = {"partial_rotary_factor": self.part} if geometry.rotates_prefix else {}
        return {"rope_type": self.rope_type, **self.native_fields(geometry), **partial}

    def native_fields(self, geometry: Geometry) -> dict[str, Any]:
        """What `rope_parameters` holds beside the type."""
        return {"rope_theta": self.theta}

    @classmethod
    def from_rope_parameters(cls: type[Rotary], parameters: Mapping[str, Any]) -> Rotary:
        """The scheme that a config's `rope_parameters` of this type describe; `max_position_embeddings` is among
        them."""
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in parameters.items() if k in known and v is not None})


@dataclass(frozen=True, kw_only=True)
class RescaledRoPE(RoPE):
    """What the rescalings share: `factor` times the trained length. Abstract: it is no scheme itself."""

    fine_tuning: ClassVar[str] = "on a RoPE model: usable without, better after a little"

    factor: float = number(low=1.0, high=65536.0)
    original_max_position_embeddings: int | None = number(None, low=1, high=2**24, integer=True, optional=True)

    def resolve(self: Rotary, geometry: Geometry) -> Rotary:
        resolved = super().resolve(geometry)
        return resolved.with_defaults(original_max_position_embeddings=geometry.trained_length)

    @property
    def original(self) -> int:
        """The length before rescaling, of a resolved scheme."""
        assert self.original_max_position_embeddings is not None
        return self.original_max_position_embeddings

    def max_length(self, geometry: Geometry) -> int | None:
        return round(self.factor * self.original)

    def native_fields(self, geometry: Geometry) -> dict[str, Any]:
        """The fields under their own names, but for those that `rope_parameters` adds or has no word for."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v for k, v in values.items() if v is not None and k not in ("mode", "partial_rotary_factor")}

    @classmethod
    def from_rope_parameters(cls: type[Rotary], parameters: Mapping[str, Any]) -> Rotary:
        # DeepSeek and Phi-3 leave the factor out: transformers then takes the ratio of the config's lengths.
        length, original = (parameters.get(n) for n in ("max_position_embeddings", "original_max_position_embeddings"))
        implied = max(1.0, length / original) if length and original else None
        return super().from_rope_parameters({**parameters, "factor": parameters.get("factor") or implied})
