"""Which extension suits a model and a text: those that fit, tried zero-shot within a time budget, ranked.

Each method of `extend` that the model has is applied to the weights as they are, with the parameters of
`extension_trials`, and reads the same windows of text at the trained length and at the wanted one: perplexity in
disjoint windows, or pseudo-perplexity of a masked language model. What training would make of a method is another
question.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from hf_posswap.errors import EvaluationError, PosswapError
from hf_posswap.evaluation.comparison import Likelihood, likelihood_of, paired_ratios
from hf_posswap.evaluation.documents import Document, Documents, long_enough
from hf_posswap.evaluation.extension_trials import Trial, command_for, hints_for, trials_for
from hf_posswap.evaluation.intervals import Interval
from hf_posswap.evaluation.perplexity import perplexity
from hf_posswap.evaluation.processes import Processes, processes_of
from hf_posswap.evaluation.results import Cost, ModelResult, subject_of
from hf_posswap.evaluation.token_nll import position_limit
from hf_posswap.patching import scheme_of
from hf_posswap.patching.borrowed import borrowed, interrupts_wait
from hf_posswap.patching.extending import extend
from hf_posswap.schemes import Scheme

AS_IT_IS = Trial("none")
SECONDS = 300.0
WINDOWS = 32
"""As many as `search_longrope` reads."""


@dataclass(frozen=True)
class Candidate:
    """One way to read `length` tokens, tried without training."""

    method: str
    """Of `extend`; "none" for the model as it is."""
    options: dict[str, Any]
    """Keyword arguments of `extend` besides the method."""
    scheme: dict[str, Any]
    perplexity: float
    interval: Interval | None
    short_perplexity: float
    """At the trained length: what the extension costs short texts."""
    over_best: Interval | None
    """Of the ratio to the best one's perplexity, paired by what intervals are over; None for the best, and where
    there is one of that only."""
    fine_tuning: str
    """What it would still need."""
    command: str
    """The command line that applies it; empty for the model as it is."""


@dataclass(frozen=True, kw_only=True)
class Advice(ModelResult):
    """Candidates, best first."""

    kind: ClassVar[str] = "advice"

    length: int
    trained_length: int
    measure: str
    """"perplexity" or "pseudo_perplexity"."""
    short_perplexity: float
    """Of the model as it is, at the trained length."""
    documents: int
    """That were read."""
    over: str
    """What the intervals are over: "documents", or "windows of one document" where only one is long enough."""
    skipped: tuple[int, ...]
    """Indices of the documents shorter than `length`."""
    tokens: int
    """Scored at `length`."""
    candidates: tuple[Candidate, ...]
    untried: tuple[str, ...]
    """Methods that fit but were not tried, because the time was over or they refused, each with the reason."""

    @property
    def best(self) -> Candidate:
        """The best extension; the model as it is does not count as one."""
        return next(candidate for candidate in self.candidates if candidate.method != AS_IT_IS.method)


@dataclass(frozen=True)
class _Tried:
    trial: Trial
    scheme: Scheme
    result: Likelihood
    command: str = ""

    @property
    def nll(self) -> float:
        return self.result.lengths[-1].nll


def advise(
    model: Any,
    max_length: int,
    documents: Documents,
    *,
    seconds: float | None = SECONDS,
    windows: int = WINDOWS,
    original_max_position_embeddings: int | None = None,
    **arguments: Any,
) -> Advice:
    """The methods of `extend` for `max_length` positions, ranked by the perplexity that they give on `documents`.

    `documents` are token ids, `[L]` each: text like that the model is for. At most `windows` windows of `max_length`
    tokens are read, from all documents in proportion to their size. Intervals are over documents; where only one is
    long enough, over its windows. `original_max_position_embeddings` is that of `extend`. `arguments` go to
    `perplexity` or `pseudo_perplexity`; the latter needs `tokenizer`, and with `positions=16` takes far less time.

    After `seconds` (None: no limit) nothing new is begun; one method is measured in any case. The model is given back
    as it came, whatever interrupts it.

    Raises:
        FamilyError: the model is not supported, or is wrapped.
        SchemeError: `max_length` is not longer than what the model accepts, or all methods refuse.
        EvaluationError: as the measurement; no document has `max_length` tokens; or an argument out of range.
    """
    started = time.perf_counter()
    if windows < 1 or (seconds is not None and not seconds > 0):
        raise EvaluationError(f"windows are 1 or more and seconds above 0, or None, not {windows!r} and {seconds!r}.")
    trained, trials = fitting_trials(model, max_length, original_max_position_embeddings)
    sampled, skipped = _sampled(documents, max_length, windows)
    alone = len(documents) - len(skipped) == 1
    measure = likelihood_of(model)
    arguments = {**({"protocol": "disjoint"} if measure is perplexity else {}), **arguments}
    read = partial(measure, model, sampled, **arguments)
    fits = (position_limit(model) or max_length) >= max_length
    as_it_is = _Tried(AS_IT_IS, scheme_of(model), read([trained, max_length] if fits else [trained]))
    with processes_of(arguments.get("accelerator")) as processes:
        over = partial(_is_over, processes, started, seconds)
        tried, untried = _tried(model, max_length, trials, lambda: read([trained, max_length]), over)
    untried += hints_for(as_it_is.scheme)
    ranked = sorted([*([as_it_is] if fits else []), *tried], key=lambda each: each.nll)
    return Advice(
        subject=subject_of(model),
        cost=_total([as_it_is, *tried]),
        length=max_length,
        trained_length=trained,
        measure=measure.__name__,
        short_perplexity=as_it_is.result.lengths[0].perplexity,
        documents=1 if alone else len(sampled),
        over="windows of one document" if alone else "documents",
        skipped=skipped,
        tokens=ranked[0].result.lengths[-1].tokens,
        candidates=tuple(_candidate(each, ranked[0]) for each in ranked),
        untried=tuple(untried),
    )


def fitting_trials(model: Any, length: int, original: int | None = None) -> tuple[int, list[Trial]]:
    """`trials_for`, at least one of which the model takes.

    Raises:
        FamilyError, SchemeError: as `trials_for`; or what `extend` raises when it takes none.
    """
    trained, trials = trials_for(model, length, original)
    errors = []
    for trial in trials:
        try:
            with _extended(model, length, trial):
                return trained, trials
        except PosswapError as error:
            errors.append(error)
    raise errors[0]


def _tried(
    model: Any, length: int, trials: Sequence[Trial], read: Callable[[], Likelihood], over: Callable[[], bool]
) -> tuple[list[_Tried], list[str]]:
    """What was measured, and what was not, with the reasons."""
    tried: list[_Tried] = []
    untried, error = [], None
    for trial in trials:
        if tried and over():
            untried.append(f"{trial}: the time was over")
            continue
        command = command_for(model, length, trial)
        try:
            with _extended(model, length, trial):
                tried.append(_Tried(trial, scheme_of(model), read(), command))
        except PosswapError as refusal:
            untried.append(f"{trial}: {refusal}")
            error = error or refusal
    if error is not None and not tried:
        raise error
    return tried, untried


@contextmanager
def _extended(model: Any, length: int, trial: Trial) -> Iterator[None]:
    with borrowed(model):
        with interrupts_wait():
            extend(model, length, trial.method, **trial.options)
        yield


def _is_over(processes: Processes, started: float, seconds: float | None) -> bool:
    """Whether the time is over, which all processes answer alike."""
    return seconds is not None and any(processes.gather(lambda: time.perf_counter() - started >= seconds))


def _sampled(documents: Documents, length: int, windows: int) -> tuple[list[Document], tuple[int, ...]]:
    """At most so many windows, as whole numbers of them from the start of each document, in proportion to its size; of
    a single document each window by itself, spread evenly. And the indices of the documents that are too short."""
    found, skipped = long_enough(documents, length)
    every = [(document, start) for document in found for start in range(0, len(document) - length + 1, length)]
    taken = min(windows, len(every))
    chosen = [every[i * len(every) // taken] for i in range(taken)]
    if len(found) == 1:
        return [_cut(document, start, start + length) for document, start in chosen], skipped
    counts = [sum(document is each for each, _ in chosen) for document in found]
    cut = [_cut(document, 0, count * length) for document, count in zip(found, counts, strict=True) if count]
    return cut, skipped


def _cut(document: Document, start: int, stop: int) -> Document:
    words = None if document.words is None else document.words[start:stop]
    return replace(document, input_ids=document.input_ids[start:stop], byte_ends=None, words=words)


def _candidate(tried: _Tried, best: _Tried) -> Candidate:
    short, long = tried.result.lengths
    return Candidate(
        method=tried.trial.method,
        options=_in_json(tried.trial.options),
        scheme=_in_json(tried.scheme.to_dict()),
        perplexity=long.perplexity,
        interval=long.interval,
        short_perplexity=short.perplexity,
        over_best=None if tried is best else paired_ratios(tried.result, best.result)[-1].interval,
        fine_tuning="nothing: the model as it is" if tried.trial is AS_IT_IS else tried.scheme.fine_tuning,
        command=tried.command,
    )


def _in_json(values: dict[str, Any]) -> dict[str, Any]:
    """As they come back from a file: lists for tuples."""
    return json.loads(json.dumps(values))


def _total(tried: Sequence[_Tried]) -> Cost:
    costs = [each.result.cost for each in tried]
    peaks = [cost.peak_memory for cost in costs if cost.peak_memory is not None]
    seconds = sum(cost.seconds for cost in costs)
    return Cost(seconds, max(peaks, default=None), costs[0].processes, costs[0].device)
