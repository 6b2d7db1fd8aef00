"""p-RoPE: only the fastest pairs turn, at the frequencies that they have in full RoPE.

Barbero et al. 2410.06205, section 6.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.fields import number
from hf_posswap.schemes.rope import RoPE, inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class ProportionalRoPE(RoPE):
    """`theta_i` over the full head for the first `int(partial_rotary_factor * D / 2)` pairs, 0 for the rest, all
    divided by `factor`. 0.75 is the paper's best; Gemma's global layers use 0.25.
    """

    name: ClassVar[str] = "proportional"
    source: ClassVar[str] = "2410.06205"
    rope_type: ClassVar[str | None] = "proportional"

    partial_rotary_factor: float = number(0.75, low=0.0, high=1.0)
    factor: float = number(1.0, low=1.0, high=65536.0)

    def check_width(self, geometry: Geometry) -> None:
        if not int(self.part * geometry.head_dim // 2):
            raise SchemeError(
                f"proportional: of {geometry.head_dim // 2} pairs none turns with partial_rotary_factor={self.part}; "
                "that is the scheme nope."
            )

    def dim(self, geometry: Geometry) -> int:
        return 2 * int(self.part * geometry.head_dim // 2)

    def still(self, geometry: Geometry) -> int:
        # The tables cover the whole head on every model.
        return (geometry.head_dim - self.dim(geometry)) // 2

    def inv_freq(self, geometry: Geometry) -> Tensor:
        return inverse_frequencies(geometry.head_dim, self.theta)[: self.dim(geometry) // 2] / self.factor

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any]:
        factor = {} if self.factor == 1 else {"factor": self.factor}
        return {
            "rope_type": "proportional",
            "rope_theta": self.theta,
            "partial_rotary_factor": self.part,
            **factor,
        }
