"""Log-length scaling: queries grow with the logarithm of what they attend to, so that attention stays as sharp.

Chiang & Cholak 2202.12172, section 5.3; Su Jianlin's "log n" attention (2021).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Encodings, Geometry, Kind, NoBias, PositionPairEncoding, Scheme
from hf_posswap.schemes.composition import Composition
from hf_posswap.schemes.fields import member, number
from hf_posswap.schemes.layered import Layered


@dataclass(frozen=True, kw_only=True)
class LogScaled(Composition):
    """`LogScaled(RoPE())`: another scheme, with queries times `max(1, ln(p + 1) / ln L)` for a position p.

    On an encoder, where every row is read whole, the number of its tokens stands for p + 1. L is
    `original_max_position_embeddings` (None: the model's trained length).
    """

    name: ClassVar[str] = "log_scaled"
    kind: ClassVar[Kind] = "bias"
    source: ClassVar[str] = "2202.12172"
    fine_tuning: ClassVar[str] = "as the scheme inside of it, which stays as it is up to the trained length"

    inner: Scheme = member()  # noqa: RUF009
    original_max_position_embeddings: int | None = number(None, low=2, high=2**24, integer=True, optional=True)

    @classmethod
    def positional(cls, values: Sequence[Any]) -> dict[str, Any]:
        """`LogScaled(a)` is `LogScaled(inner=a)`."""
        if len(values) != 1:
            raise SchemeError(f"LogScaled takes one scheme, as in LogScaled(RoPE()), not {len(values)}.")
        return {"inner": values[0]}

    def __post_init__(self) -> None:
        super().__post_init__()
        inner = self.inner
        if isinstance(inner, (Layered, LogScaled)):
            raise SchemeError(f"log_scaled: {inner.name} cannot be inside of it; put log_scaled inside of layered.")
        self._say(kind="score" if inner.kind == "score" else "bias")

    @property
    def parts(self) -> tuple[Scheme, ...]:
        return (self.inner,)

    def with_parts(self, parts: tuple[Any, ...]) -> "LogScaled":
        return replace(self, inner=parts[0])

    def resolve(self, geometry: Geometry) -> "LogScaled":
        resolved = super().resolve(geometry)
        return resolved.with_defaults(original_max_position_embeddings=max(2, geometry.trained_length))

    def build(self, geometry: Geometry) -> "LogScaledScores":
        assert self.original_max_position_embeddings is not None
        inner = self.inner.encodings(geometry).scores
        return LogScaledScores(inner or NoBias(), self.original_max_position_embeddings, geometry.causal)

    def encodings(self, geometry: Geometry) -> Encodings:
        return replace(self.inner.encodings(geometry), scores=self.build(geometry))

    def to_dict(self) -> dict[str, Any]:
        length = self.original_max_position_embeddings
        return {"name": self.name, "inner": self.inner.to_dict(), "original_max_position_embeddings": length}


class LogScaledScores(PositionPairEncoding):
    """`inner` with scaled queries. Attention scales them before it asks `inner` for anything."""

    def __init__(self, inner: nn.Module, length: int, causal: bool) -> None:
        super().__init__()
        self.inner, self.length, self.causal = inner, length, causal

    def query_scale(self, positions: Tensor, tokens: Tensor) -> Tensor:
        """`[1 or B, Q]` for query `positions [1 or B, Q]` that may read `tokens [1 or B, 1 or Q]`."""
        read = positions + 1 if self.causal else tokens.expand(-1, positions.shape[1])
        wide = torch.float32 if read.device.type == "mps" else torch.float64
        scale = (read.clamp(min=1).to(wide).log() / math.log(self.length)).clamp(min=1.0)
        return scale.to(self.exact_dtype)
