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
    """Queries are taken a few at a time. Against earlier keys both decays are counted from the first of these queries,
    so that neither exceeds 1; among the few the decay is that of each pair. Positions may jump and restart anywhere.
    """

    SLICE = 32
    """Queries at a time: their pairs with each other cost as much memory as they have pairs of dimensions."""

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
        self,
        query: Tensor,
        key: Tensor,
        query_tables: tuple[Tensor, ...],
        key_tables: tuple[Tensor, ...],
        own: Tensor,
    ) -> Tensor:
        queries, keys = query_tables[0], key_tables[0]
        query, key = rotated(query, *query_tables[1:]), rotated(key, *key_tables[1:])
        parts = []
        for start in range(0, query.shape[2], self.SLICE):
            few = slice(start, start + self.SLICE)
            first = queries[:, start : start + 1]
            near = query[:, :, few] * self.decay(queries[:, few] - first, query.dtype)
            far = key * self.decay(first - keys, key.dtype)
            distances = queries[:, few, None] - keys.index_select(1, own[few])[:, None, :]
            among = self._among(query[:, :, few], key.index_select(2, own[few]), distances)
            parts.append((near @ far.transpose(-1, -2)).index_copy(3, own[few], among))
        return torch.cat(parts, dim=2)

    def decay(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """`zeta_i^(distance / scale_base)` for `[B, L]` distances: `[B, 1, L, D]`, 1 for hidden keys (negative)."""
        half = float64_angles(distances.clamp(min=0), self.log_decay).exp()
        return torch.cat((half, half), dim=-1).to(device=distances.device, dtype=dtype).unsqueeze(1)

    def _among(self, query: Tensor, key: Tensor, distances: Tensor) -> Tensor:
        """Scores `[B, H, q, q]` of a few queries with the keys of their own tokens, all rotated, `[B, q, q]` apart."""
        decay = self.decay(distances.flatten(1), query.dtype).unflatten(2, distances.shape[1:])
        return (query[:, :, :, None] * key[:, :, None] * decay).sum(-1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x [B, H, L, D]` turned by the angles of `cos, sin [B, L, D/2]`."""
    cos, sin = (table.unsqueeze(1).to(x.dtype) for table in (cos, sin))
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
