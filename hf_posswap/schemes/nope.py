"""No position at all: a causal decoder still learns order from its mask.

Haviv et al. 2203.16634; Kazemnejad et al. 2305.19466 ("NoPE"); Wang et al. 2404.12224.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hf_posswap.schemes.base import Geometry, Kind, Scheme


@dataclass(frozen=True, kw_only=True)
class NoPE(Scheme):
    """No positional encoding. On an encoder it needs `allow_unordered=True`: BERT becomes a bag of words."""

    name: ClassVar[str] = "nope"
    kind: ClassVar[Kind] = "input"
    source: ClassVar[str] = "2305.19466"
    has_order: ClassVar[bool] = False
    relative: ClassVar[bool] = True

    def build(self, geometry: Geometry) -> None:
        return None

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any]:
        # transformers' "proportional" type rotates the first `partial_rotary_factor` of the pairs: here none.
        theta = geometry.rope_theta or 10000.0
        return {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": 0.0}
