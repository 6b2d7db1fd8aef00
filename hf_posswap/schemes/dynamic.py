"""Dynamic NTK scaling: the NTK-aware base grows with the length, and is untouched within the trained one.

emozilla's "dynamic NTK"; written down in 2309.00071, section 3.4, and in transformers' `rope_type="dynamic"`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hf_posswap.schemes.base import Geometry, Kind
from hf_posswap.schemes.fields import MAX_POSITIONS
from hf_posswap.schemes.length_dependent import LengthDependentRoPE, doublings
from hf_posswap.schemes.ntk import refuse_one_pair


@dataclass(frozen=True, kw_only=True)
class DynamicNTKRoPE(LengthDependentRoPE):
    """`theta_i` with base `rope_theta * (factor * l / L - (factor - 1))^(d/(d-2))` for a length l above the trained L.

    mode="segment" takes for l the next doubling of L above the query's position, without end.
    """

    name: ClassVar[str] = "dynamic"
    kind: ClassVar[Kind] = "score"
    source: ClassVar[str] = "2309.00071"
    relative: ClassVar[bool] = False
    rope_type: ClassVar[str | None] = "dynamic"

    def check_width(self, geometry: Geometry) -> None:
        super().check_width(geometry)
        refuse_one_pair(self, geometry)

    def segment_lengths(self) -> list[int]:
        return doublings(self.original, MAX_POSITIONS)

    def scaled_theta(self, length: Tensor, geometry: Geometry) -> Tensor:
        """The base for lengths `[...]`."""
        dim = self.dim(geometry)
        # Written so that it is 1 to the last digit within the trained length.
        stretch = 1 + self.factor * (length.clamp(min=self.original) - self.original) / self.original
        return self.theta * stretch ** (dim / (dim - 2))

    def frequencies(self, length: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        dim = self.dim(geometry)
        exponents = -torch.arange(0, dim, 2, dtype=torch.float64, device=length.device) / dim
        theta = self.scaled_theta(length, geometry)
        return theta[..., None] ** exponents, torch.ones_like(length)

    def stock_length(self) -> int | None:
        return self.original if self.mode == "call" else None

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any] | None:
        native = super().rope_parameters(geometry)
        return native and {**native, "rope_type": "default" if self.mode == "static" else "dynamic"}

    def native_fields(self, geometry: Geometry) -> dict[str, Any]:
        if self.mode == "call":
            return {"rope_theta": self.theta, "factor": self.factor}
        length = torch.tensor(self.longest, dtype=torch.float64, device="cpu")
        return {"rope_theta": float(self.scaled_theta(length, geometry))}

    @classmethod
    def from_rope_parameters(cls, parameters: Mapping[str, Any]) -> "DynamicNTKRoPE":
        # transformers takes the config's length for the trained one here, whatever else the config says.
        trained = {"original_max_position_embeddings": parameters["max_position_embeddings"]}
        return super().from_rope_parameters({**parameters, **trained, "mode": "call"})
