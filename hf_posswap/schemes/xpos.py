"""xPos: RoPE whose pairs also decay with distance, slow pairs least. Sun et al. 2212.10554, equation 9, algorithm 1."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_posswap.schemes.base import Geometry, Kind, ScoreEncoding, cos_and_sin, float64_angles, rotated
from hf_posswap.schemes.fields import number
from hf_posswap.schemes.rope import RoPE


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

    def build(self, geometry: Geometry) -> "XPosEncoding":
        return XPosEncoding(self, geometry)


class XPosEncoding(ScoreEncoding):
    """Queries are taken a few at a time. Against earlier keys both decays are counted from the first of these queries,
    so that neither exceeds 1; among the few the decay is that of each pair. Positions may jump and restart anywhere.
    """

    SLICE = 32
    """Queries at a time: their pairs with each other cost as much memory as they have pairs of dimensions."""

    def __init__(self, scheme: XPos, geometry: Geometry) -> None:
        super().__init__()
        dim = scheme.dim(geometry)
        self.inv_freq = scheme.inv_freq(geometry)
        zeta = (torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim + scheme.gamma) / (1 + scheme.gamma)
        self.log_decay = zeta.log() / scheme.scale_base
        self.pairing, self.still = geometry.pairing, scheme.still(geometry)
        self.rest = geometry.head_dim - dim - 2 * self.still

    def tables(self, positions: Tensor) -> tuple[Tensor, ...]:
        cos, sin = cos_and_sin(positions, self.inv_freq, still=self.still)
        cos, sin = (x.to(device=positions.device, dtype=self.exact_dtype) for x in (cos, sin))
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
        query = rotated(query, query_tables[1], query_tables[2], self.pairing)
        key = rotated(key, key_tables[1], key_tables[2], self.pairing)
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
        decay = pad(float64_angles(distances.clamp(min=0), self.log_decay).exp(), (0, self.still), value=1.0)
        halves = self.pairing == "half"
        whole = torch.cat((decay, decay), dim=-1) if halves else decay.repeat_interleave(2, dim=-1)
        return pad(whole, (0, self.rest), value=1.0).to(device=distances.device, dtype=dtype).unsqueeze(1)

    def _among(self, query: Tensor, key: Tensor, distances: Tensor) -> Tensor:
        """Scores `[B, H, q, q]` of a few queries with the keys of their own tokens, all rotated, `[B, q, q]` apart."""
        decay = self.decay(distances.flatten(1), query.dtype).unflatten(2, distances.shape[1:])
        return (query[:, :, :, None] * key[:, :, None] * decay).sum(-1)
