"""Individuals of the search, where they start from, and how new ones come about. Ding et al. 2402.13753, algorithm 1.

An individual is a factor for every pair of dimensions, never smaller than that of a faster pair, and the factor on cos
and sin. Children keep the order by sorting: of two parents in order, each place taken from one of them, the sorted
child still lies between the two at every place.
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Any

from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.rope import RoPE

MUTATION_PROBABILITY = 0.3
"""Of each number of an individual, as in the paper."""
HEADROOM = 1.25
"""Factors lie from 1 to this many times the ratio of lengths, as in the paper, on a grid of 0.01."""
ATTENTION_FACTORS = (0.5, 2.0)
TRIES = 100
"""After so many children in a row that were all seen before, there is nothing left to look for."""


@dataclass(frozen=True)
class Individual:
    """`factors [d/2]`, non-decreasing; `attention_factor` None: that of the scheme."""

    factors: tuple[float, ...]
    attention_factor: float | None


@dataclass(frozen=True)
class Space:
    """What can be searched: the largest factor, and whether the factor on cos and sin is searched too."""

    highest: float
    attention: bool


def ancestors(base: RoPE, others: Sequence[Any], geometry: Geometry, factor: float, attention: Any) -> list[Individual]:
    """The frequencies of `others`, schemes that rescale `base`, as factors; and those of `critical_factors`.

    `attention` is a factor or None for all of them, or "search": then each starts with the one that it has.
    """
    kept = base.inv_freq(geometry)
    found = []
    for scheme in others:
        ratios = (kept / scheme.inv_freq(geometry)).tolist()
        own = scheme.scaling(geometry) if attention == "search" else attention
        # A running maximum, because rounding may put equal factors out of order by a last digit.
        found.append(Individual(tuple(accumulate((max(1.0, ratio) for ratio in ratios), max)), own))
    own = found[-1].attention_factor
    found.append(Individual(critical_factors(len(kept), base.theta, geometry.trained_length, factor), own))
    return list(dict.fromkeys(found))


def critical_factors(pairs: int, theta: float, trained_length: int, factor: float) -> tuple[float, ...]:
    """Pairs that never made a full turn in training are interpolated, faster ones less and less down to the first.

    The start of LongRoPE2 (2502.20082): only the slow pairs have values that training has not seen.
    """
    critical = math.ceil(pairs * math.log(max(1.0, trained_length / (2 * math.pi))) / math.log(theta))
    return tuple(factor ** (pair / critical) if pair < critical else factor for pair in range(pairs))


def mutated(parent: Individual, random: Random, space: Space) -> Individual:
    """Some numbers drawn anew: half of them near the old one, half of them anywhere."""
    factors = [_drawn(f, random, space.highest) if _chosen(random) else f for f in parent.factors]
    attention = parent.attention_factor
    if space.attention and attention is not None and _chosen(random):
        low, high = ATTENTION_FACTORS
        attention = round(min(high, max(low, attention * math.exp(random.gauss(0, 0.05)))), 3)
    return Individual(tuple(sorted(factors)), attention)


def _chosen(random: Random) -> bool:
    return random.random() < MUTATION_PROBABILITY


def _drawn(old: float, random: Random, highest: float) -> float:
    anywhere = random.random() < 0.5
    new = random.uniform(1.0, highest) if anywhere else old * math.exp(random.gauss(0, 0.2))
    return min(highest, max(1.0, round(new, 2)))


def crossed(one: Individual, other: Individual, random: Random) -> Individual:
    """Every number from one of the two."""
    factors = sorted(random.choice(pair) for pair in zip(one.factors, other.factors, strict=True))
    return Individual(tuple(factors), random.choice((one.attention_factor, other.attention_factor)))


def children(
    parents: Sequence[Individual],
    number: int,
    from_two: int,
    seen: Container[Individual],
    *,
    random: Random,
    space: Space,
) -> list[Individual]:
    """`number` new individuals, none of them in `seen`, the first `from_two` of them by crossing; fewer when new ones
    are hard to find."""
    born: list[Individual] = []
    tries = 0
    while len(born) < number and tries < TRIES:
        tries += 1
        child = random.choice(parents)
        if len(born) < from_two and len(parents) > 1:
            one, other = random.sample(parents, 2)
            child = crossed(one, other, random)
        # Parents that are alike have no new children by crossing alone.
        if len(born) >= from_two or child in seen or child in born:
            child = mutated(child, random, space)
        if child not in seen and child not in born:
            born.append(child)
            tries = 0
    return born
