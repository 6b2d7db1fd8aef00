"""Rotations whose frequencies depend on a length: which length, is the question that `mode` answers.

The published form, "the length of the call", is not a function of position at all: keys that were cached at an earlier
length stay rotated by other frequencies, so a decoder with a cache computes something that no single forward pass does.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posswap.schemes.base import Geometry, RotaryEncoding, ScoreEncoding, cos_and_sin, rotated
from hf_posswap.schemes.fields import choice
from hf_posswap.schemes.rope import RescaledRoPE

MODES = ("segment", "static", "call")
CALL_REFUSES_CACHE = (
    "with mode='call' its frequencies depend on the length of the whole call, and cached keys were rotated by those of "
    "an earlier one; pass use_cache=False, or use mode='segment'"
)

STOCK_DIFFERS = (
    "stock transformers takes one length for all rows of a batch, and runs it with a cache, where past the trained "
    "length decoding is another function than the forward pass; mode='segment' and mode='static' have neither"
)


@dataclass(frozen=True, kw_only=True)
class LengthDependentRoPE(RescaledRoPE):
    """What they share. A subclass supplies `frequencies`, a function of length, and where its segments end.

    - "segment": each query has the frequencies of the segment that its position lies in, for itself and for all keys
      that it sees. Cached = uncached; keys are cached un-rotated.
    - "static": the frequencies of the longest length, `factor` times the original one, for all positions.
    - "call": as published, by the last position of each row. Forward passes only: a cache is refused.
    """

    native_modes: ClassVar[tuple[str, ...]] = ("static", "call")
    """The modes that `rope_parameters` can say."""

    mode: str = choice("segment", MODES)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._say(kind="score" if self.mode == "segment" else "rotary", relative=self.mode == "static")
        if self.mode == "call":
            self._say(refuses_cache=CALL_REFUSES_CACHE, stock_differs=STOCK_DIFFERS)

    @abstractmethod
    def frequencies(self, length: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """inv_freq `[..., d/2]` and the factor on cos and sin `[...]` for float64 lengths `[...]`."""

    @abstractmethod
    def segment_lengths(self) -> list[int]:
        """The lengths whose frequencies the segments have, and at which they end; only the last one has no end."""

    @property
    def longest(self) -> float:
        """The length that mode="static" has the frequencies of."""
        return self.factor * self.original

    def inv_freq(self, geometry: Geometry) -> Tensor:
        return self.frequencies(_float64(self.longest), geometry)[0]

    def scaling(self, geometry: Geometry) -> float:
        return float(self.frequencies(_float64(self.longest), geometry)[1])

    def rope_parameters(self, geometry: Geometry) -> dict[str, Any] | None:
        return super().rope_parameters(geometry) if self.mode in self.native_modes else None

    def build(self, geometry: Geometry) -> nn.Module:
        if self.mode == "static":
            return super().build(geometry)
        return (SegmentedRotation if self.mode == "segment" else CallRotation)(self, geometry)


class CallRotation(RotaryEncoding):
    """Frequencies by the last position of each row. No branch depends on it, so that it compiles."""

    def __init__(self, scheme: LengthDependentRoPE, geometry: Geometry) -> None:
        super().__init__(scheme.inv_freq(geometry), 1.0, scheme.still(geometry))
        self.scheme, self.geometry = scheme, geometry

    def frequencies(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        last = positions.amax(dim=-1, keepdim=True)
        last = (last.cpu() if last.device.type == "mps" else last).to(torch.float64)
        inv_freq, scaling = self.scheme.frequencies(last + 1, self.geometry)
        return inv_freq, scaling[..., None]


class SegmentedRotation(ScoreEncoding):
    """Frequencies by the segment that a query's position lies in. `inv_freq [S, d/2]`, `scaling [S]`, `ends [S - 1]`.

    Calling it works for any positions without looking at them, as a compiler needs it: each segment's scores are
    computed and added up, queries of other segments being zero. Attention looks at the positions where it can, and
    rotates keys once per segment instead (`attention/segments.py`).
    """

    def __init__(self, scheme: LengthDependentRoPE, geometry: Geometry) -> None:
        super().__init__()
        lengths = torch.tensor(scheme.segment_lengths(), dtype=torch.long, device="cpu")
        self.inv_freq, self.scaling = scheme.frequencies(lengths.to(torch.float64), geometry)
        self.ends = lengths[:-1]
        self.still, self.pairing = scheme.still(geometry), geometry.pairing

    def segments(self, positions: Tensor) -> Tensor:
        """The segment of each of `positions [B, L]`, of the same shape."""
        return (positions[..., None] >= self.ends.to(positions.device)).sum(dim=-1)

    def tables(self, positions: Tensor) -> tuple[Tensor, ...]:
        # Segments are wanted of queries only, angles only of some keys at some frequencies.
        return (positions,)

    def angles(self, positions: Tensor, segments: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin `[1 or B, L, W/2]` at `positions [1 or B, L]`, by the frequencies of one segment a row."""
        rows = segments.to("cpu")
        inv_freq, scaling = self.inv_freq[rows][:, None], self.scaling[rows][:, None, None]
        cos, sin = cos_and_sin(positions, inv_freq, scaling, self.still)
        return cos.to(device=positions.device, dtype=dtype), sin.to(device=positions.device, dtype=dtype)

    def turned(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """`x [B, H, L, D]`, rotated."""
        return rotated(x, *angles, self.pairing)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        query_tables: tuple[Tensor, ...],
        key_tables: tuple[Tensor, ...],
        own: Tensor,
    ) -> Tensor:
        queries, keys = query_tables[0], key_tables[0]
        of_queries = self.segments(queries)
        if query.shape[2] == 1:
            return self._scores(query, key, queries, keys, of_queries[:, 0])
        total: Any = 0.0
        for segment in range(len(self.scaling)):
            here = torch.full((1,), segment, dtype=torch.long)
            own_queries = torch.where((of_queries == segment)[:, None, :, None], query, 0)
            total = total + self._scores(own_queries, key, queries, keys, here)
        return total

    def _scores(self, query: Tensor, key: Tensor, queries: Tensor, keys: Tensor, segments: Tensor) -> Tensor:
        query = self.turned(query, self.angles(queries, segments, query.dtype))
        key = self.turned(key, self.angles(keys, segments, key.dtype))
        return query @ key.transpose(-1, -2)


def doublings(original: int, last: int) -> list[int]:
    """`original`, twice that, four times ..., and `last`."""
    lengths = [original]
    while lengths[-1] < last:
        lengths.append(min(lengths[-1] * 2, last))
    return lengths


def _float64(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, device="cpu")
