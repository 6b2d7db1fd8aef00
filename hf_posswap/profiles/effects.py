"""What a scheme does in the layers of a model, as numbers of one form, whatever its kind of encoding.

Each scheme of a `layered` one has effects of its own. Of input encodings the inner products of positions stand for what
attention will see of them: Wang et al., "On Position Embeddings in BERT" (ICLR 2021), section 3.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError
from hf_posswap.profiles.by_distance import bias_by_distance, inner_products, ones, random_pair
from hf_posswap.profiles.distances import dense_near_zero, spread
from hf_posswap.profiles.inputs import input_values, similarity_by_distance
from hf_posswap.profiles.learned import drawn_if_zero
from hf_posswap.profiles.without_model import refuse_table
from hf_posswap.schemes.base import (
    BiasEncoding,
    Geometry,
    InputEncoding,
    NoBias,
    RotaryEncoding,
    Scheme,
    ScoreEncoding,
)
from hf_posswap.schemes.layered import Layered
from hf_posswap.schemes.log_scaled import LogScaledScores

What = Literal["bias", "inner product", "similarity"]
POINTS = 512
"""How many distances or positions are told apart: twice as many, the first ones and others up to the last."""
DRAWS = 16
"""Random queries and keys that tell distances apart."""


class Effect(ABC):
    """Distances `[R]` are those of keys from a query at position `at`."""

    points_are: ClassVar[str]
    """What is told apart."""

    def __init__(self, name: str, what: What, geometry: Geometry, modules: list[nn.Module | None]) -> None:
        self.name, self.what, self.geometry = name, what, geometry
        self.modules = [module for module in modules if module is not None]
        self.drawn = False
        """Its learned parameters are zero at the start, and were drawn from N(0, 1) instead."""

    @abstractmethod
    def profile(self, distances: Tensor, at: int) -> Tensor:
        """`[H, R]`, H 1 where all heads are alike: biases, inner products of a query and a key of ones by head_dim, or
        mean cosines of positions from 0 to `at`."""

    @abstractmethod
    def scores(self, distances: Tensor, at: int, draws: int = DRAWS) -> Tensor:
        """`[N, H, R]`, of at least `draws` random queries and keys in N * H where they matter."""

    @abstractmethod
    def points(self, length: int) -> Tensor:
        """Positions, or distances from the last of `length` positions: `[R]`."""

    @abstractmethod
    def fingerprints(self, points: Tensor, at: int) -> Tensor:
        """What tells points apart: `[R, N]`."""

    @abstractmethod
    def largest(self, length: int) -> float:
        """The largest number in `length` positions."""


class ScoreEffect(Effect):
    """On attention scores: a bias, something that turns queries and keys, a factor on queries, or nothing at all."""

    points_are = "distances"

    def __init__(self, name: str, geometry: Geometry, rotary: Any, scores: Any) -> None:
        self.scale: LogScaledScores | None = None
        if isinstance(scores, LogScaledScores):
            self.scale, scores = scores, scores.inner
        self.bias = scores if isinstance(scores, BiasEncoding) and not isinstance(scores, NoBias) else None
        self.turning = scores if isinstance(scores, ScoreEncoding) else rotary
        _refuse_unknown(name, rotary, RotaryEncoding)
        _refuse_unknown(name, scores, (BiasEncoding, ScoreEncoding))
        what: What = "inner product" if self.bias is None else "bias"
        super().__init__(name, what, geometry, [self.bias, self.turning, self.scale])

    def profile(self, distances: Tensor, at: int) -> Tensor:
        return self._ones(distances, at) if self.bias is None else bias_by_distance(self.bias, distances, at)

    def scores(self, distances: Tensor, at: int, draws: int = DRAWS) -> Tensor:
        pair = random_pair(self.turning, self.geometry, draws)
        found = self._products(*pair, distances, at) / self.geometry.head_dim**0.5
        return found if self.bias is None else found + bias_by_distance(self.bias, distances, at)

    def points(self, length: int) -> Tensor:
        near = _near_and_far(length)
        return near if self.geometry.causal else torch.cat((-near, near)).unique()

    def fingerprints(self, points: Tensor, at: int) -> Tensor:
        return self.scores(points, at).flatten(0, 1).T

    def largest(self, length: int) -> float:
        distances, at = dense_near_zero(length - 1, self.geometry.causal), length - 1
        values = [self.profile(distances, at)]
        if self.scale is not None:
            values.append(self._ones(distances, at))
        return max(float(each.abs().max()) for each in values)

    def _ones(self, distances: Tensor, at: int) -> Tensor:
        both = ones(self.turning, self.geometry)
        return self._products(both, both, distances, at)[0] / self.geometry.head_dim

    def _products(self, query: Tensor, key: Tensor, distances: Tensor, at: int) -> Tensor:
        found = inner_products(self.turning, self.geometry, query, key, distances, at)
        if self.scale is None:
            return found
        tokens = int(distances.max() - distances.min()) + 1
        return found * float(self.scale.double().query_scale(torch.tensor([[at]]), torch.tensor([[tokens]])))


class InputEffect(Effect):
    """Of what is added to token embeddings."""

    points_are = "positions"

    def __init__(self, name: str, geometry: Geometry, encoding: Any) -> None:
        _refuse_unknown(name, encoding, InputEncoding)
        super().__init__(name, "similarity", geometry, [encoding])
        self.encoding: InputEncoding = encoding

    def profile(self, distances: Tensor, at: int) -> Tensor:
        refuse_table(at + 1, self.geometry)
        return similarity_by_distance(input_values(self.encoding, torch.arange(at + 1)))[distances.abs()][None]

    def scores(self, distances: Tensor, at: int, draws: int = DRAWS) -> Tensor:
        """Inner products of positions, by hidden size."""
        values = input_values(self.encoding, torch.cat((at - distances, torch.tensor([at]))))
        return (values[:-1] @ values[-1] / values.shape[1])[None, None]

    def points(self, length: int) -> Tensor:
        return _near_and_far(length)

    def fingerprints(self, points: Tensor, at: int) -> Tensor:
        return input_values(self.encoding, points)

    def largest(self, length: int) -> float:
        """The largest root mean square of the values at a position."""
        return float(input_values(self.encoding, spread(0, length - 1)).square().mean(dim=1).max().sqrt())


def effects_of(scheme: Scheme, geometry: Geometry, *, draw: bool = False) -> list[Effect]:
    """The effects of a resolved scheme, one that is nothing where it adds no positions.

    `draw`: parameters of what is zero at the start are drawn from N(0, 1).
    """
    found: list[Effect] = []
    for part in scheme.schemes if isinstance(scheme, Layered) else (scheme,):
        encodings = part.encodings(geometry)
        if encodings.input is not None:
            found.append(InputEffect(part.name, geometry, encodings.input))
        if encodings.input is None or encodings.rotary is not None or encodings.scores is not None:
            found.append(ScoreEffect(part.name, geometry, encodings.rotary, encodings.scores))
    if draw:
        for effect in found:
            _draw(effect)
    return found


def _draw(effect: Effect) -> None:
    if isinstance(effect, InputEffect):
        effect.encoding, effect.drawn = drawn_if_zero(effect.encoding, lambda e: input_values(e, torch.arange(2)))
    elif isinstance(effect, ScoreEffect) and effect.bias is not None:
        effect.bias, effect.drawn = drawn_if_zero(effect.bias, lambda e: bias_by_distance(e, torch.arange(64)))


def _near_and_far(length: int) -> Tensor:
    """The first ones, and others up to the last."""
    near = torch.arange(min(length, POINTS))
    return near if length <= POINTS else torch.cat((near, spread(POINTS, length - 1, POINTS)))


def _refuse_unknown(name: str, encoding: Any, known: Any) -> None:
    if encoding is not None and not isinstance(encoding, known):
        raise SchemeError(f"Nobody knows what {name} does, whose encoding is a {type(encoding).__name__}.")
