"""LongRoPE's search: a factor for every pair of dimensions, for a length that the model was not trained at.

Ding et al. 2402.13753, algorithm 1: a population that starts from position interpolation, NTK and YaRN evolves by
mutation and crossover, guided by perplexity. Left out is the paper's other search, for the number of first tokens whose
positions are not rescaled: `rope_parameters` cannot say it. Perplexity is that of all tokens of a window, not of those
that answer a needle, as in LongRoPE2 (2502.20082).
"""

import math
import os
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

from hf_posswap.evaluation.fingerprints import fingerprint_of_model, fingerprint_of_tokens
from hf_posswap.patching.borrowed import borrowed
from hf_posswap.search.individuals import Individual, children
from hf_posswap.search.measuring import Budget, Measurements, Spent
from hf_posswap.search.result import Generation, SearchResult, Stopped
from hf_posswap.search.state import State
from hf_posswap.search.task import Task, prepared, whole


def search_longrope(
    model: Any,
    documents: Sequence[Tensor],
    max_length: int,
    *,
    seconds: float | None = 600.0,
    evaluations: int | None = None,
    population: int = 32,
    windows: int = 32,
    attention_factor: float | str | None = "search",
    original_max_position_embeddings: int | None = None,
    seed: int = 0,
    state: str | os.PathLike[str] | None = "search.json",
    tokens_per_batch: int = 8192,
    progress: bool = True,
) -> SearchResult:
    """The LongRoPE factors for `max_length` positions with the lowest perplexity that a search finds on `documents`.

    `documents` are token ids, `[L]` each: calibration text like that the model is for, and not the text on which the
    result will be judged. `windows` of `max_length` tokens are taken, spread over all documents, or as many as there
    are. Each individual reads all of them, at most `tokens_per_batch` tokens at once, or one window. The first
    generation has `population` individuals; each later one half as many, whose parents are as many of the best so far.
    `attention_factor`, on cos and sin, is "search" for that too, a number, or None for LongRoPE's own formula. The
    length before any extension is that of `extend`, or `original_max_position_embeddings`.

    The search ends after `evaluations` readings of the windows or `seconds` of this call, whichever comes first. The
    same `seed` and `evaluations` give the same result. What was measured is kept in the file `state` (None: nowhere):
    the same call goes on from there, after an interruption or with a larger budget. The model is given back as it came.

    Raises:
        FamilyError: the model is not supported, or is wrapped.
        SchemeError: it has no RoPE or rescaling of it, or `max_length` is not beyond its trained length.
        EvaluationError: no causal language model; too little text; an argument out of range; a `state` that cannot be
            written or is of another search; a model whose outputs are not finite.
    """
    task = prepared(
        model,
        documents,
        max_length,
        windows=windows,
        population=population,
        attention_factor=attention_factor,
        original=original_max_position_embeddings,
        seed=seed,
    )
    budget = Budget(seconds, evaluations)
    budget.check(len(task.baselines) + len(task.ancestors))
    batch = whole("tokens_per_batch", tokens_per_batch, low=1, high=2**40)
    kept = State(state, _settings(model, task))
    with tqdm(total=evaluations, desc="LongRoPE", unit="evaluation", disable=not progress) as bar, borrowed(model):
        try:
            return _searched(task, Measurements(model, task.windows, kept, budget, batch, bar))
        finally:
            kept.write()


def _settings(model: Any, task: Task) -> dict[str, Any]:
    """All that a measurement, or the order of them, depends on."""
    return {
        "model": fingerprint_of_model(model),
        "text": fingerprint_of_tokens(task.windows),
        "max_length": task.windows.shape[1],
        "scheme": task.baselines["rope"].to_dict(),
        "original_max_position_embeddings": task.like.original_max_position_embeddings,
        "attention_factor": "search" if task.space.attention else task.like.attention_factor,
        "population": task.population,
        "seed": task.seed,
    }


def _searched(task: Task, measurements: Measurements) -> SearchResult:
    baselines = {name: measurements.nll(scheme, known=True) for name, scheme in task.baselines.items()}
    ranking = {i: measurements.nll(task.scheme(i), known=True) for i in task.ancestors}
    history: list[Generation] = []
    stopped: Stopped = "exhausted"
    try:
        for number in _generations(task, measurements, ranking):
            history.append(_generation(number, measurements, ranking))
            measurements.state.write()
    except Spent as spent:
        stopped = spent.stopped
    if not history or history[-1].evaluations < measurements.evaluations:
        history.append(_generation(len(history), measurements, ranking))
    best = _best(ranking, 1)[0]
    return SearchResult(
        scheme=task.scheme(best),
        perplexity=_perplexity(ranking[best]),
        baselines={name: _perplexity(nll) for name, nll in baselines.items()},
        windows=len(task.windows),
        max_length=task.windows.shape[1],
        history=tuple(history),
        evaluations=measurements.evaluations,
        seconds=measurements.state.seconds,
        stopped=stopped,
    )


def _generations(task: Task, measurements: Measurements, ranking: dict[Individual, float]) -> Iterator[int]:
    """Yields the number of every generation, once `ranking` has its likelihoods; ends when nothing new is found.

    A generation's random numbers depend on `seed` and its own number only.
    """
    half = max(2, task.population // 2)
    number = 0
    while True:
        parents = task.ancestors if number == 0 else _best(ranking, half)
        wanted, crossed = (task.population - len(ranking), 0) if number == 0 else (half, half // 2)
        random = Random(f"{task.seed}/{number}")
        born = children(parents, wanted, crossed, ranking, random=random, space=task.space)
        if not born and number:
            return
        for child in born:
            ranking[child] = measurements.nll(task.scheme(child))
            best = f"{_perplexity(min(ranking.values())):.4g}"
            measurements.bar.set_postfix(generation=number, perplexity=best, refresh=False)
        yield number
        number += 1


def _best(ranking: dict[Individual, float], number: int) -> list[Individual]:
    """The earlier of two that are equal."""
    return sorted(ranking, key=ranking.__getitem__)[:number]


def _generation(number: int, measurements: Measurements, ranking: dict[Individual, float]) -> Generation:
    return Generation(number, measurements.evaluations, _perplexity(min(ranking.values())))


def _perplexity(nll: float) -> float:
    return math.exp(nll) if nll < 700 else math.inf
