"""Different schemes in different layers: RoPE in most and none in some (SmolLM3, Llama 4; Yang et al. 2501.18795)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import (
    Encoding,
    Encodings,
    Geometry,
    Kind,
    NoBias,
    NoRotation,
    PositionPairEncoding,
    Scheme,
)
from hf_posswap.schemes.composition import Composition
from hf_posswap.schemes.fields import members, text
from hf_posswap.schemes.nope import NoPE

T = TypeVar("T")


@dataclass(frozen=True)
class PerLayer(Generic[T]):
    """A value for every layer: layer i has `members[assignment[i]]`."""

    members: tuple[T, ...]
    assignment: tuple[int, ...]

    def of(self, layer: int) -> T:
        """The value for a layer."""
        return self.members[self.assignment[layer]]

    def to(self, device: torch.device, non_blocking: bool = False) -> "PerLayer":
        """For models that accelerate has spread over several devices."""
        return replace(self, members=tuple(_moved(member, device) for member in self.members))


@dataclass(frozen=True, kw_only=True)
class Layered(Composition):
    """`Layered(RoPE(), NoPE(), pattern="RRRN")`: the pattern repeats over the layers, and a letter stands for a scheme
    in order of first appearance.

    Schemes that are added to the token embeddings reach all layers and have no place here.
    """

    name: ClassVar[str] = "layered"
    kind: ClassVar[Kind] = "rotary"
    source: ClassVar[str] = "2501.18795"

    schemes: tuple[Scheme, ...] = members()
    pattern: str = text("RRRN")

    @classmethod
    def positional(cls, values: Sequence[Any]) -> dict[str, Any]:
        """`Layered(a, b)` and `Layered([a, b])` are `Layered(schemes=[a, b])`."""
        single = len(values) == 1 and not isinstance(values[0], Scheme)
        return {"schemes": values[0] if single else tuple(values)}

    def __post_init__(self) -> None:
        super().__post_init__()
        letters = len(set(self.pattern))
        if letters != len(self.schemes):
            raise SchemeError(
                f"layered: pattern {self.pattern!r} has {letters} letters for {len(self.schemes)} schemes."
            )
        for scheme in self.schemes:
            if isinstance(scheme, Layered):
                raise SchemeError("layered: a layered scheme cannot be one of the layers' schemes; write one pattern.")
        kinds = {scheme.kind for scheme in self.schemes}
        self._say(
            kind=next((kind for kind in ("score", "bias", "rotary") if kind in kinds), "input"),
            relative=all(s.relative for s in self.schemes),
        )

    @property
    def parts(self) -> tuple[Scheme, ...]:
        return self.schemes

    def with_parts(self, parts: tuple[Any, ...]) -> "Layered":
        return replace(self, schemes=parts)

    @property
    def rotation(self) -> Scheme | None:
        """The one scheme beside NoPE; None when there is none, or more than one."""
        others = [scheme for scheme in self.schemes if not isinstance(scheme, NoPE)]
        return others[0] if len(others) == 1 else None

    def resolve(self, geometry: Geometry) -> "Layered":
        missing = sorted(set(range(len(self.schemes))) - set(self.assignment(geometry.num_hidden_layers)))
        if missing:
            raise SchemeError(
                f"layered: pattern {self.pattern!r} gives {self.schemes[missing[0]].name} no layer in a model of "
                f"{geometry.num_hidden_layers}."
            )
        resolved = super().resolve(geometry)
        for scheme in resolved.schemes:
            if scheme.encodings(geometry).input is not None:
                raise SchemeError(f"layered: {scheme.name} is added to the token embeddings and so reaches all layers.")
        return resolved

    def assignment(self, layers: int) -> tuple[int, ...]:
        """Which of the schemes each layer has."""
        order = list(dict.fromkeys(self.pattern))
        return tuple(order.index(self.pattern[i % len(self.pattern)]) for i in range(layers))

    def build(self, geometry: Geometry) -> None:
        return None

    def encodings(self, geometry: Geometry) -> Encodings:
        parts = [scheme.encodings(geometry) for scheme in self.schemes]
        layers = self.assignment(geometry.num_hidden_layers)
        return Encodings(
            rotary=_together([p.rotary for p in parts], lambda: NoRotation(geometry.head_dim), layers, LayeredRotation),
            scores=_together([p.scores for p in parts], NoBias, layers, LayeredScores),
        )

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "schemes": [s.to_dict() for s in self.schemes], "pattern": self.pattern}


class LayeredRotation(Encoding):
    """cos and sin for every layer, where the network expects those of all: a hook on each attention takes its own."""

    def __init__(self, members: Sequence[nn.Module], assignment: tuple[int, ...]) -> None:
        super().__init__()
        self.members, self.assignment = nn.ModuleList(members), assignment

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> PerLayer:
        return PerLayer(tuple(member(x, position_ids) for member in self.members), self.assignment)


class LayeredScores(PositionPairEncoding):
    """The bias or score encoding of every layer. A member's parameters are shared by its layers."""

    def __init__(self, members: Sequence[nn.Module], assignment: tuple[int, ...]) -> None:
        super().__init__()
        self.members, self.assignment = nn.ModuleList(members), assignment


def layered_pattern(letters: Sequence[str]) -> str:
    """The shortest pattern that repeats to these letters, one a layer."""
    whole = "".join(letters)
    for length in range(1, len(whole) + 1):
        if (whole[:length] * len(whole))[: len(whole)] == whole and set(whole[:length]) == set(whole):
            return whole[:length]
    return whole


def _together(
    parts: list[nn.Module | None], nothing: Callable[[], nn.Module], layers: tuple[int, ...], container: Any
) -> nn.Module | None:
    if not any(parts):
        return None
    return container([nothing() if part is None else part for part in parts], layers)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, tuple):
        return tuple(part.to(device) for part in value)
    return value.to(device)
