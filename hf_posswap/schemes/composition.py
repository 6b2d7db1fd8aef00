"""Schemes made of schemes: what is true of the parts is true of the whole."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from hf_posswap.schemes.base import Geometry, Scheme

Whole = TypeVar("Whole", bound="Composition")


@dataclass(frozen=True, kw_only=True)
class Composition(Scheme):
    """A subclass says which its `parts` are and builds `encodings` of theirs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._say(
            causal_only=self._first(lambda part: part.causal_only),
            refuses_cache=self._first(lambda part: part.refuses_cache),
            stock_differs=self._first(lambda part: part.stock_differs),
            has_order=any(part.has_order for part in self.parts),
        )

    def _first(self, reason: Callable[[Scheme], str | None]) -> str | None:
        return next(filter(None, map(reason, self.parts)), None)

    @property
    @abstractmethod
    def parts(self) -> tuple[Scheme, ...]:
        """The schemes that it is made of."""

    @abstractmethod
    def with_parts(self: Whole, parts: tuple[Any, ...]) -> Whole:
        """The same made of others, as many."""

    def resolve(self: Whole, geometry: Geometry) -> Whole:
        return self.with_parts(tuple(part.resolve(geometry) for part in self.parts))

    def max_length(self, geometry: Geometry) -> int | None:
        return max((n for part in self.parts if (n := part.max_length(geometry)) is not None), default=None)

    def limit(self) -> int | None:
        return min((n for part in self.parts if (n := part.limit()) is not None), default=None)
