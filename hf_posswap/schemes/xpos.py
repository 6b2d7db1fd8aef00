"""xPos: RoPE whose pairs also decay with distance, slow pairs least. Sun et al. 2212.10554, equation 9, algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hf_posswap.schemes.base import Geometry, Kind, ScoreEncoding, float64_angles
from hf_posswap.schemes.fields import number
from hf_posswap.schemes.rope import RoPE, inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class XPos(RoPE):
    """Pair i of the score is that of RoPE times `zeta_i^((p_query - p_key) / scale_base)`,
    `zeta_i = (2i/D + gamma) / (1 + gamma)`. `scale_base=512` and `gamma=0.4` are the paper's.
    """

    name: ClassVar[str] = "xpos"
    kind: ClassVar[Kind] = "score"
    source: ClassVar[str] = "2212.10554"
    rope_type: ClassVar[str | None] = None
    causal_only: ClassVar[str | None] = "its decay would grow without bound towards keys that come after the query"

    scale_base: float = number(512.0, low=1.0, high=1e9)
    gamma: float = number(0.4, low=1e-6, high=1e6)

    def rope_parameters(self, geometry: Geometry) -> None:
        return None

    def build(self, geometry: Geometry) -> "XPosEncoding":  # type: ignore[override]
        return XPosEncoding(self, geometry)


class XPosEncoding(ScoreEncoding):
    """Both decays are taken from the first query of the block, so that neither over- nor underflows at any length."""

    def __init__(self, scheme: XPos, geometry: Geometry) -> None:
        super().__init__()
        dim = geometry.head_dim
        self.inv_freq = inverse_frequencies(dim, scheme.theta)
        zeta = (torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim + scheme.gamma) / (1 + scheme.gamma)
        self.log_decay = zeta.log() / scheme.scale_base

    def tables(self, positions: Tensor) -> tuple[Tensor, ...]:
        angles = float64_angles(positions, self.inv_freq)
        cos, sin = (x.to(device=positions.device, dtype=self.exact_dtype) for x in (angles.cos(), angles.sin()))
        return positions, cos, sin

    def forward(
        self, query: Tensor, key: Tensor, query_tables: tuple[Tensor, ...], key_tables: tuple[Tensor, ...]
    ) -> Tensor:
        # Keys after the last query are masked: holding their exponent there keeps them finite.
        centre, last = (x(query_tables[0], dim=-1, keepdim=True) for x in (torch.amin, torch.amax))
        rotated_query = self._rotate(query, query_tables, query_tables[0] - centre)
        rotated_key = self._rotate(key, key_tables, centre - key_tables[0].minimum(last))
        return rotated_query @ rotated_key.transpose(-1, -2)

    def _rotate(self, x: Tensor, tables: tuple[Tensor, ...], distance: Tensor) -> Tensor:
        """`x [B, H, L, D]` rotated, pair i times `zeta_i^(distance / scale_base)`."""
        exponent = float64_angles(distance, self.log_decay)
        decay = exponent.exp().to(device=x.device, dtype=self.exact_dtype)
        cos, sin = ((table * decay).unsqueeze(1).to(x.dtype) for table in tables[1:])
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
