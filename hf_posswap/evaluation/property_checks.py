"""The checks behind `properties`. Each is a function `(effect, length) -> (holds, measured)`."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.profiles.distances import dense_near_zero, spread_by_ratio
from hf_posswap.profiles.effects import Effect, InputEffect, effects_of
from hf_posswap.schemes.base import Geometry, Scheme

SAME = 1e-6
"""Differences below this part of what they are compared with are none: float32 hardly holds them."""
FAR = 16
"""By how much the length is exceeded, twice, to see whether numbers grow without bound. A logarithm of 4,096 grows by a
third each time."""
GROWTH = 1.05
"""What is below this, each time, is no growth."""
FALL, SETBACK = 0.2, 0.1
"""By which part of the largest value scores must fall to call it decay, and may rise again on the way (they swing)."""
RANDOM = 512
"""Random queries and keys for the quantile, which is 0.06 of its size unsure with them."""

Answer = tuple[bool | None, str]
NOTHING: Answer = (None, "nothing is encoded")


@dataclass(frozen=True)
class Property:
    """One property of a scheme."""

    name: str
    holds: bool | None
    """None where the question has no meaning for the scheme."""
    measured: str
    """The number behind the answer, in words."""


def unique(effect: Effect, length: int) -> Answer:
    """Are all positions (of input encodings) or all distances (in scores) told apart?"""
    if not effect.modules:
        return False, "nothing is encoded"
    points = effect.points(length)
    first, second, share = _closest(effect.fingerprints(points, length - 1))
    pair = f"{points[first]:,} and {points[second]:,}"
    return share > SAME, f"closest of {len(points):,} {effect.points_are}, {pair}: {share:.2g} of the mean difference"


def relative(effect: Effect, length: int) -> Answer:
    """Does the score of a query and a key stay when both are moved by as much?"""
    if not effect.modules:
        return NOTHING
    reach = min(length, effect.geometry.trained_length) // 4
    distances = dense_near_zero(reach, effect.geometry.causal)
    last = length - 1 if effect.geometry.causal else length - 1 - reach
    here, *elsewhere = (effect.scores(distances, at) for at in (reach, length // 2, last))
    change = max(float((moved - here).abs().max()) for moved in elsewhere) / float(here.max() - here.min())
    return change < SAME, f"scores change by up to {change:.2g} of their range when moved"


def bounded(effect: Effect, length: int) -> Answer:
    """Do numbers stay bounded as the length grows, if it can?"""
    if not effect.modules:
        return NOTHING
    own = effect.largest(length)
    if not _defined(effect, FAR * length)[0]:
        return True, f"largest {own:.3g}, and there are no more positions"
    far, farther = (effect.largest(FAR**k * length) for k in (1, 2))
    grows = far > GROWTH * own and farther > GROWTH * far
    return not grows, f"largest {_rounded(own)} in {length:,} tokens, {_rounded(farther)} in {FAR**2 * length:,}"


def falls(effect: Effect, length: int) -> Answer:
    """Do bias, similarity, or the score of equal vectors fall with distance?"""
    return _decay(effect, length, 2048, lambda distances: effect.profile(distances, length - 1))


def falls_for_any(effect: Effect, length: int) -> Answer:
    """Does what a key can score at best fall with distance, whatever query and key are? The 95% quantile over random
    ones: rotations turn it about, but do not lower it."""
    if isinstance(effect, InputEffect):
        return None, "as the model's weights will have it"
    return _decay(effect, length, 64, lambda distances: _best(effect, effect.scores(distances, length - 1, RANDOM)))


def extensible(effect: Effect, length: int) -> Answer:
    """Are there numbers for positions past these?"""
    return _defined(effect, FAR * length) if effect.modules else (True, "nothing that could end")


CHECKS: dict[str, Callable[[Effect, int], Answer]] = {
    "unique positions": unique,
    "relative distance only": relative,
    "bounded": bounded,
    "long-term decay, equal vectors": falls,
    "long-term decay, any vectors": falls_for_any,
    "extensible": extensible,
}


def in_all(name: str, effects: list[Effect], length: int) -> Property:
    """The property of all effects together: one that tells positions apart is enough for that, else all must hold."""
    answers = [CHECKS[name](effect, length) for effect in effects]
    known = [holds for holds, _ in answers if holds is not None]
    holds = (any if name == "unique positions" else all)(known) if known else None
    if len(effects) == 1:
        return Property(name, holds, answers[0][1])
    words = [f"{each.name} ({each.what}): {said}" for each, (_, said) in zip(effects, answers, strict=True)]
    return Property(name, holds, "; ".join(words))


def is_deterministic(scheme: Scheme, geometry: Geometry, length: int) -> Property:
    """Built twice, from other states of chance: is it the same to the last bit?"""
    builds = []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            builds.append(effects_of(scheme, geometry))
    same = all(_same(first, second, length) for first, second in zip(*builds, strict=True))
    learned = sum(p.numel() for effect in builds[0] for module in effect.modules for p in module.parameters())
    words = f"{learned:,} learned parameters" if learned else "nothing is learned"
    return Property("deterministic", same, f"two builds {'agree to the last bit' if same else 'differ'}; {words}")


def _same(first: Effect, second: Effect, length: int) -> bool:
    points = first.points(length)[::16]
    return torch.equal(first.fingerprints(points, length - 1), second.fingerprints(points, length - 1))


def _closest(rows: Tensor) -> tuple[int, int, float]:
    """The two of `[R, N]` that differ least, and their distance over the mean distance of all pairs (0 if that is)."""
    distances = torch.cdist(rows, rows)
    mean = float(distances.sum()) / (len(rows) * (len(rows) - 1))
    nearest = int(distances.fill_diagonal_(torch.inf).argmin())
    first, second = divmod(nearest, len(rows))
    apart = float((rows[first] - rows[second]).norm())  # cdist of many rows is exact to half of the digits
    return first, second, apart / mean if mean else 0.0


def _defined(effect: Effect, length: int) -> Answer:
    try:
        values = effect.fingerprints(torch.tensor([length - 1]), length - 1)
    except (SchemeError, IndexError) as error:
        return False, str(error).split(":")[0]
    return bool(values.isfinite().all()), f"defined at position {length - 1:,}"


def _best(effect: Effect, scores: Tensor) -> Tensor:
    """The quantile of `[N, H, R]`: for each head where heads have biases of their own, else of all: `[H or 1, R]`."""
    return (scores if effect.what == "bias" else scores.flatten(0, 1)[:, None]).quantile(0.95, dim=0)


def _decay(effect: Effect, length: int, points: int, values: Callable[[Tensor], Tensor]) -> Answer:
    """Falls the mean over octaves of distance, each of some of `points`, on each side and for each head?"""
    if not effect.modules:
        return NOTHING
    far = spread_by_ratio(length - 1, points)
    sides = [far] if effect.geometry.causal else [far, -far]
    octaves = far.log2().floor().long()
    curves = torch.cat([values(side) for side in sides])
    means = torch.stack([curves[:, octaves == octave].mean(dim=1) for octave in octaves.unique()], dim=1)
    size = curves.abs().amax(dim=1)
    fall = means[:, 0] - means[:, -1]
    setback = (means - means.cummin(dim=1).values).amax(dim=1)
    holds = bool(((fall > FALL * size) & (setback <= SETBACK * size)).all())
    first, last = (_rounded(float(means[:, i].mean())) for i in (0, -1))
    return holds, f"{first} at distance 1, {last} from {int(far[octaves == octaves.max()][0]):,} on"


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
