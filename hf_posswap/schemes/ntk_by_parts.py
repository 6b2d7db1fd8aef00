"""NTK-by-parts: YaRN's frequencies without its temperature. Peng et al. 2309.00071, section 3.2, equations 17 to 20."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.fields import flag, number
from hf_posswap.schemes.rope import RescaledRoPE
from hf_posswap.schemes.yarn import interpolated_share, refuse_betas


@dataclass(frozen=True, kw_only=True)
class NTKByPartsRoPE(RescaledRoPE):
    """As `yarn`, whose fields these are, with cos and sin as they come."""

    name: ClassVar[str] = "ntk_by_parts"
    source: ClassVar[str] = "2309.00071"
    rope_type: ClassVar[str | None] = "yarn"
    reads_native: ClassVar[bool] = False

    beta_fast: float = number(32.0, low=1e-3, high=1e6)
    beta_slow: float = number(1.0, low=1e-3, high=1e6)
    truncate: bool = flag(True)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_betas(self)

    def inv_freq(self, geometry: Geometry) -> Tensor:
        kept, share = super().inv_freq(geometry), interpolated_share(self, geometry)
        return kept / self.factor * share + kept * (1 - share)

    def native_fields(self, geometry: Geometry) -> dict[str, Any]:
        return {**super().native_fields(geometry), "attention_factor": 1.0}
