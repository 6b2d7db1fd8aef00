"""Confidence intervals: bootstrap over documents for means over tokens, exact for shares of trials."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

LEVEL = 0.95
RESAMPLES = 4999
FEWEST, MANY = 5, 1000
"""Documents for a bootstrap. What it draws never leaves the range of the documents, and two of them have the truth
between them in half of all cases; from 1000 on it gives what Student's interval gives, a thousand times slower."""
MOST_VALUES = 2**22
"""Resampled values that exist at one time."""


@dataclass(frozen=True)
class Interval:
    """From `low` to `high`, at the confidence `level`."""

    low: float
    high: float
    level: float = LEVEL


def ratio_interval(
    numerators: Sequence[float],
    denominators: Sequence[float],
    *,
    level: float = LEVEL,
    seed: int = 0,
    n_resamples: int = RESAMPLES,
) -> Interval | None:
    """Of `sum(numerators) / sum(denominators)`, one of each per document, for instance its nll and its tokens.

    Documents are what is drawn at random; tokens of one document are not independent. So documents are drawn anew, and
    the interval lies between percentiles of the ratios of the draws. The percentiles are further out than the level
    says, as Student's t is than the normal distribution (Hesterberg 2015, "expanded percentile"), because plain and
    bias-corrected bootstraps are too narrow for few documents. For fewer than 5 and for more than 1000 it is Student's
    interval itself, with the jackknife's standard error. Documents without a denominator do not count; None for
    fewer than two.

    What it covers at a level of 95 %, in simulations of documents whose means differ log-normally by 10 to 60 % and
    whose lengths differ up to e-fold: 94 to 96 % with 2 documents, 87 to 91 % with 5, 90 to 94 % with 10, 91 to 94 %
    with 30, 94 % with 100. The global random state is not touched.
    """
    import numpy as np
    from scipy.stats import norm
    from scipy.stats import t as student

    above, below = np.asarray(numerators, dtype=float), np.asarray(denominators, dtype=float)
    above, below = above[below != 0], below[below != 0]
    count = len(above)
    if count < 2:
        return None
    width = student.ppf((1 + level) / 2, count - 1)
    if not FEWEST <= count <= MANY:
        without = (above.sum() - above) / (below.sum() - below)
        error = np.sqrt((count - 1) / count) * np.linalg.norm(without - without.mean())
        ratio = above.sum() / below.sum()
        return Interval(float(ratio - width * error), float(ratio + width * error), level)
    share = norm.cdf(-width * np.sqrt(count / (count - 1)))
    low, high = np.quantile(_resampled(above, below, np.random.default_rng(seed), n_resamples), (share, 1 - share))
    return Interval(float(low), float(high), level)


def perplexity_interval(nll: Sequence[float], tokens: Sequence[float]) -> tuple[float, Interval | None]:
    """Perplexity `exp(sum(nll) / sum(tokens))`, one of each per document, with its interval over documents."""
    of_mean = ratio_interval(nll, tokens)
    interval = None if of_mean is None else replace(of_mean, low=exp(of_mean.low), high=exp(of_mean.high))
    return exp(sum(nll) / sum(tokens)), interval


def exp(nats: float) -> float:
    """Infinite where floats end."""
    return math.exp(nats) if nats < 700 else math.inf


def share_interval(successes: int, trials: int, *, level: float = LEVEL) -> Interval:
    """Of a share of independent trials: exact (Clopper & Pearson 1934), so it covers at least at its level."""
    from scipy.stats import binomtest

    found = binomtest(successes, trials).proportion_ci(level, method="exact")
    return Interval(float(found.low), float(found.high), level)


def _resampled(above: Any, below: Any, random: Any, n_resamples: int) -> Any:
    """The ratios of as many documents, drawn with replacement, `[n_resamples]`."""
    import numpy as np

    size, ratios = max(1, MOST_VALUES // len(above)), []
    for start in range(0, n_resamples, size):
        drawn = random.integers(0, len(above), (min(size, n_resamples - start), len(above)))
        ratios.append(above[drawn].sum(axis=1) / below[drawn].sum(axis=1))
    return np.concatenate(ratios)
