"""Intervals cover at their stated rate: by simulation over documents, exactly over trials."""

import math

import numpy as np
import pytest
from scipy.stats import binom, bootstrap, norm, t

from hf_posswap.evaluation.intervals import Interval, perplexity_interval, ratio_interval, share_interval

HONEST = {2: 0.94, 3: 0.90, 5: 0.87, 10: 0.90, 30: 0.91, 100: 0.93}
"""By documents, what an interval of 95 % covers where document effects are largest, as its docstring has it."""


@pytest.mark.parametrize("documents", HONEST)
def test_ratios_are_covered_at_the_stated_rate(documents: int) -> None:
    """Token-weighted means; each document has a log-normal length and its own log-normal mean."""
    random, repetitions, effect = np.random.default_rng(documents), 400, 0.6
    truth = math.exp(effect**2 / 2)
    covered = 0
    for seed in range(repetitions):
        tokens = np.exp(random.normal(6, 0.5, documents)).round()
        nll = tokens * np.exp(random.normal(0, effect, documents))
        found = ratio_interval(nll, tokens, seed=seed, n_resamples=399)
        assert found is not None
        assert found.low <= nll.sum() / tokens.sum() <= found.high
        covered += found.low <= truth <= found.high
    low, high = binom.ppf((0.001, 0.999), repetitions, (HONEST[documents], 0.955))
    assert low <= covered <= high, f"{covered / repetitions:.3f}"


def test_percentiles_are_those_of_scipy_further_out() -> None:
    random, count = np.random.default_rng(3), 12
    tokens = random.integers(5, 90, count)
    nll = tokens * random.lognormal(0, 0.4, count)
    share = norm.cdf(-math.sqrt(count / (count - 1)) * t.ppf(0.975, count - 1))
    expected = bootstrap(
        (nll, tokens), lambda x, y, axis=-1: x.sum(axis) / y.sum(axis), paired=True, vectorized=True,
        method="percentile", n_resamples=200_000, confidence_level=1 - 2 * share, rng=random,
    ).confidence_interval  # fmt: skip
    found = ratio_interval(nll, tokens, n_resamples=200_000)
    width = expected.high - expected.low
    assert abs(found.low - expected.low) < 0.01 * width
    assert abs(found.high - expected.high) < 0.01 * width


@pytest.mark.parametrize("count", [2, 4, 1001])
def test_few_and_many_documents_have_students_interval(count: int) -> None:
    """With equal lengths the ratio is a mean, and its jackknife the usual standard error."""
    values = np.random.default_rng(count).normal(2, 1, count)
    found = ratio_interval(7 * values, np.full(count, 7.0), level=0.9)
    expected = t.interval(0.9, count - 1, values.mean(), values.std(ddof=1) / math.sqrt(count))
    assert (found.low, found.high, found.level) == (pytest.approx(expected[0]), pytest.approx(expected[1]), 0.9)


def test_bootstrap_and_student_agree_where_one_takes_over() -> None:
    random = np.random.default_rng(0)
    tokens = random.integers(50, 150, 1001)
    nll = tokens * random.lognormal(0, 0.3, 1001)
    boot, student = ratio_interval(nll[:1000], tokens[:1000], n_resamples=20_000), ratio_interval(nll, tokens)
    assert boot.high - boot.low == pytest.approx(student.high - student.low, rel=0.05)


def test_documents_that_say_nothing() -> None:
    assert ratio_interval([3.0], [2]) is None
    assert ratio_interval([], []) is None
    assert ratio_interval([3.0, 0.0], [2, 0]) is None
    nll, tokens = [2.0, 3.0, 5.0, 1.0, 4.0, 4.5], [3, 4, 6, 2, 5, 5]
    assert ratio_interval([*nll, 0.0], [*tokens, 0]) == ratio_interval(nll, tokens)
    alike = ratio_interval([2.0, 4.0, 6.0, 1.0, 8.0], [1, 2, 3, 0.5, 4])
    assert (alike.low, alike.high) == (pytest.approx(2), pytest.approx(2))


def test_the_same_numbers_every_time_without_the_global_state() -> None:
    nll, tokens = [2.0, 3.0, 5.0, 1.0, 4.0], [3, 4, 6, 2, 5]
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    first = ratio_interval(nll, tokens)
    assert (np.random.get_state()[1] == before).all()
    assert ratio_interval(nll, tokens) == first
    assert ratio_interval(nll, tokens, seed=1) != first
    wider = ratio_interval(nll, tokens, level=0.99)
    assert wider.low < first.low < first.high < wider.high


def test_perplexity_is_the_exponential_of_the_mean() -> None:
    nll, tokens = [20.0, 30.0, 50.0, 10.0, 40.0], [9, 11, 20, 5, 18]
    value, interval = perplexity_interval(nll, tokens)
    of_mean = ratio_interval(nll, tokens)
    assert value == math.exp(150 / 63)
    assert interval == Interval(math.exp(of_mean.low), math.exp(of_mean.high))
    assert perplexity_interval([5000.0], [2]) == (math.inf, None)


@pytest.mark.parametrize("trials", [1, 7, 40])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_shares_are_covered_at_least_at_their_level(trials: int, level: float) -> None:
    """All outcomes, weighed by their probability, at many true shares."""
    found = [share_interval(successes, trials, level=level) for successes in range(trials + 1)]
    assert (found[0].low, found[-1].high) == (0.0, 1.0)
    assert all(each.low <= k / trials <= each.high for k, each in enumerate(found))
    low, high = np.array([each.low for each in found]), np.array([each.high for each in found])
    for share in np.linspace(0, 1, 201):
        chances = binom.pmf(np.arange(trials + 1), trials, share)
        assert chances[(low <= share) & (share <= high)].sum() >= level - 1e-9
