"""Which positions and distances a curve is computed at: not all of a million."""

import torch
from torch import Tensor

POINTS = 384
"""How many distances a line has at most: more than a panel has pixels to tell apart."""


def spread(first: int, last: int, count: int = POINTS) -> Tensor:
    """At most `count` whole numbers from `first` to `last`, evenly spread: `[R]`."""
    even = torch.linspace(first, last, min(count, last - first + 1), dtype=torch.float64)
    return even.round().long().unique()


def dense_near_zero(longest: int, causal: bool) -> Tensor:
    """Distances from 0 to `longest`, on an encoder from `-longest`: spread evenly, and by ratio where curves bend."""
    far = torch.cat((torch.zeros(1, dtype=torch.long), spread(1, longest, POINTS // 2), spread_by_ratio(longest)))
    return (far if causal else torch.cat((-far, far))).unique()


def spread_by_ratio(last: int, count: int = POINTS) -> Tensor:
    """At most `count` whole numbers from 1 to `last`, each about as many times the one before: `[R]`."""
    if last <= count:
        return torch.arange(1, last + 1)
    ratios = torch.logspace(0, 1, count, base=last, dtype=torch.float64)
    return ratios.round().long().clamp(max=last).unique()
