"""What retrieval tasks return."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.intervals import Interval, share_interval
from hf_posswap.evaluation.results import ModelResult


@dataclass(frozen=True)
class Cell:
    """The trials of one task at one length and depth."""

    task: str
    """"passkey", "needle", "multi_key", "variable_tracking" or "common_words"."""
    length: int
    """Tokens of prompt and answer together, a BOS in front among them."""
    depth: float | None
    """Where the answer stands: 0 at the start of the context, 1 at its end; None: drawn anew in every trial, several
    depths together, or no single place."""
    trials: int
    correct: int
    """Trials in which greedy decoding gives the whole answer."""
    accuracy: float
    interval: Interval
    """Of `accuracy`, exact."""
    token_accuracy: float
    """Share of answer tokens that are the likeliest among those that could stand there, given the right ones before."""
    chance: float
    """Of `token_accuracy` for a model that knows which tokens can stand there and nothing else."""
    nll: float
    """Of the answer, in nats per token, over all tokens."""

    @classmethod
    def of(
        cls,
        task: str,
        length: int,
        depth: float | None,
        *,
        correct: int,
        trials: int,
        token_accuracy: float,
        chance: float,
        nll: float,
    ) -> "Cell":
        """With the accuracy and its interval worked out."""
        interval = share_interval(correct, trials)
        return cls(task, length, depth, trials, correct, correct / trials, interval, token_accuracy, chance, nll)


@dataclass(frozen=True, kw_only=True)
class RetrievalResult(ModelResult):
    """One cell for every task, length and depth."""

    kind: ClassVar[str] = "retrieval"

    task: str
    """"passkey", "needle" or "ruler_lite"."""
    haystack: str
    """What surrounds the answer, in words."""
    skipped: tuple[int, ...]
    """Indices of the documents shorter than the longest length, which no haystack was taken from."""
    alphabet: str
    """What answers are made of: "digits", or "letters" with a tokenizer that does not give every digit one token."""
    answer_tokens: int
    bos: bool
    """Whether every prompt begins with the tokenizer's BOS."""
    seed: int
    cells: tuple[Cell, ...]

    def at(self, length: int, task: str | None = None) -> Cell:
        """All trials of a length, whatever their depth. `task` may be left out where there is one only.

        The depths of a grid are strata, not drawn at random; so the exact interval covers at its level or more.

        Raises:
            EvaluationError: there is no such length or task, or several tasks and none is named.
        """
        found = [cell for cell in self.cells if cell.length == length and task in (None, cell.task)]
        if len({cell.task for cell in found}) != 1:
            there = sorted({(cell.task, cell.length) for cell in self.cells})
            raise EvaluationError(f"Ask for one of the tasks and lengths {there}, not for {(task, length)}.")
        return found[0] if len(found) == 1 else _together(found)


def _together(cells: Sequence[Cell]) -> Cell:
    trials = sum(cell.trials for cell in cells)
    return Cell.of(
        cells[0].task,
        cells[0].length,
        None,
        correct=sum(cell.correct for cell in cells),
        trials=trials,
        token_accuracy=math.fsum(cell.token_accuracy * cell.trials for cell in cells) / trials,
        chance=cells[0].chance,
        nll=math.fsum(cell.nll * cell.trials for cell in cells) / trials,
    )
