"""Several schemes on one model and the same text, beside controls that cannot know positions or context."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hf_posswap.errors import EvaluationError, PosswapError
from hf_posswap.evaluation.arguments import wanted_lengths
from hf_posswap.evaluation.bare import bare
from hf_posswap.evaluation.documents import Documents
from hf_posswap.evaluation.intervals import Interval, exp, ratio_interval
from hf_posswap.evaluation.perplexity import PerplexityResult, perplexity
from hf_posswap.evaluation.pseudo_perplexity import PseudoPerplexityResult, pseudo_perplexity
from hf_posswap.evaluation.reading import SHUFFLED
from hf_posswap.evaluation.token_nll import refuse_too_long
from hf_posswap.patching.borrowed import borrowed, try_on
from hf_posswap.patching.checks import make
from hf_posswap.schemes import NoPE, Scheme

NO_POSITION = "no-position"
CONTROLS = (NO_POSITION, SHUFFLED)

Likelihood = PerplexityResult | PseudoPerplexityResult
Schemes = Mapping[str, Scheme | str | None] | Sequence[Scheme | str | None]


@dataclass(frozen=True)
class Row:
    """One of the things that are compared."""

    label: str
    scheme: Scheme | None
    """None: the model as it is."""
    control: str | None = None
    """The measurement's own: "shuffled-context"."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Of the measurement, besides those that all rows have."""
        return {} if self.control is None else {"control": self.control}


def compare(
    model: Any,
    schemes: Schemes,
    documents: Documents,
    lengths: Sequence[int],
    *,
    controls: Sequence[str] = (),
    **arguments: Any,
) -> list[Likelihood]:
    """Perplexity (of a masked language model: pseudo-perplexity) under one scheme after another, on the same tokens.

    `schemes` are schemes or their names, None for the model as it is; in a mapping by the labels that the results get,
    else labelled by name. Each replaces the model's own scheme with the weights as they are. The model is given back as
    it came, whatever interrupts it. `arguments` go to `perplexity` or `pseudo_perplexity`.

    `controls` add rows: "no-position", the model without any positions, unless `nope` is among the schemes;
    "shuffled-context", every row once more with the tokens in front of the scored ones in a random order.

    Raises:
        FamilyError, SchemeError: a scheme that this model cannot carry, by its label, before anything is measured.
        EvaluationError: as the measurement; no schemes, or two of one label; or no such control.
    """
    rows = rows_of(schemes, controls)
    measure = likelihood_of(model)
    if any(row.control for row in rows) and measure is pseudo_perplexity:
        raise EvaluationError(f"Pseudo-perplexity has no {SHUFFLED} control: take {NO_POSITION}.")
    refuse_unfit(model, rows, wanted_lengths(lengths)[-1])
    results = []
    for row in rows:
        with wearing(model, row.scheme):
            results.append(measure(model, documents, lengths, **arguments, **row.arguments).labelled(row.label))
    return results


def likelihood_of(model: Any) -> Any:
    """The measurement of how likely text is to a model: `perplexity`, or `pseudo_perplexity` for a masked one."""
    return pseudo_perplexity if "MaskedLM" in type(bare(model)).__name__ else perplexity


def rows_of(schemes: Schemes, controls: Sequence[str] = ()) -> list[Row]:
    """What `compare` compares, in order, the controls last.

    Raises:
        SchemeError: an unknown name.
        EvaluationError: none, two of one label, or no such control.
    """
    controls = (controls,) if isinstance(controls, str) else controls
    wrong = [control for control in controls if control not in CONTROLS]
    if wrong:
        raise EvaluationError(f"There is no control {wrong[0]!r}; there are {' and '.join(CONTROLS)}.")
    schemes = (schemes,) if isinstance(schemes, str) else schemes
    pairs = list(schemes.items()) if isinstance(schemes, Mapping) else [(_label(each), each) for each in schemes]
    rows = [Row(label, None if scheme is None else make(scheme)) for label, scheme in pairs]
    labels = [row.label for row in rows]
    if not labels or len(set(labels)) < len(labels):
        raise EvaluationError(f"Give one or more schemes, each once and under a name of its own, not {labels}.")
    shuffled = [Row(f"{row.label}, {SHUFFLED}", row.scheme, SHUFFLED) for row in rows if SHUFFLED in controls]
    has_one = any(isinstance(row.scheme, NoPE) for row in rows)
    without = [Row(NO_POSITION, NoPE())] if NO_POSITION in controls and not has_one else []
    return [*rows, *without, *shuffled]


def refuse_unfit(model: Any, rows: Sequence[Row], longest: int) -> None:
    """Raises what the first scheme would raise that this model cannot carry, or not for `longest` tokens; with its
    label."""
    for row in rows:
        try:
            with wearing(model, row.scheme):
                refuse_too_long(model, longest)
        except PosswapError as error:
            raise type(error)(f"{row.label}: {error}") from error


@contextmanager
def wearing(model: Any, scheme: Scheme | None) -> Iterator[Any]:
    """The model with another scheme for a while; None: as it is. An encoder may become a bag of words here."""
    with borrowed(model):
        if scheme is not None:
            try_on(model, scheme, allow_unordered=True)
        yield model


@dataclass(frozen=True)
class Ratio:
    """A perplexity over another on the same tokens."""

    value: float
    interval: Interval | None
    """Over documents, paired; None for a single document."""


def paired_ratios(result: Likelihood, reference: Likelihood) -> tuple[Ratio, ...]:
    """Of `result` to `reference` at each length. Both are token-weighted, so the logarithm of the ratio is the mean
    over tokens of the difference in likelihood, and its interval comes from the differences of whole documents.

    Raises:
        EvaluationError: they were not measured on the same tokens, or average over windows (reduction "yarn").
    """
    for each in (result, reference):
        if getattr(each, "reduction", "token") != "token":
            raise EvaluationError("Paired ratios are token-weighted, and these results average over windows.")
    read = [[(at.length, at.document_tokens) for at in each.lengths] for each in (result, reference)]
    if type(result) is not type(reference) or read[0] != read[1]:
        raise EvaluationError("Only results on the same tokens and lengths can be paired.")
    return tuple(
        _ratio([a - b for a, b in zip(mine.document_nll, other.document_nll, strict=True)], mine.document_tokens)
        for mine, other in zip(result.lengths, reference.lengths, strict=True)
    )


def _ratio(differences: Sequence[float], tokens: Sequence[int]) -> Ratio:
    of_log = ratio_interval(differences, tokens)
    interval = None if of_log is None else Interval(exp(of_log.low), exp(of_log.high), of_log.level)
    return Ratio(exp(math.fsum(differences) / sum(tokens)), interval)


def _label(scheme: Any) -> str:
    return "as it is" if scheme is None else make(scheme).name
