"""Trials: prompts of exact length, drawn, scored and counted.

A prompt is `[BOS] haystack question answer`, with needles in the haystack: one at depth d stands after `round(d * n)`
of the haystack's n tokens. Trial i of a cell is drawn from a random source of its own, which the seed, the task, the
length, the depth and i determine: how trials are put into batches or shared out over processes has no part in it, and
models with the same tokenizer see the same prompts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Real
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.arguments import refuse_batch, wanted_lengths, whole
from hf_posswap.evaluation.fingerprints import fingerprint_of_settings
from hf_posswap.evaluation.results import subject_of
from hf_posswap.evaluation.retrieval.haystacks import Haystack
from hf_posswap.evaluation.retrieval.pieces import Pieces
from hf_posswap.evaluation.retrieval.puzzles import Puzzle, Task
from hf_posswap.evaluation.retrieval.results import Cell, RetrievalResult
from hf_posswap.evaluation.retrieval.scoring import Score, score
from hf_posswap.evaluation.running import Running, run_items
from hf_posswap.evaluation.token_nll import refuse_non_causal, refuse_too_long

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Place(NamedTuple):
    """One cell of the grid."""

    task: str
    length: int
    depth: float | None


@dataclass(frozen=True)
class Trials:
    """The prompts of every task at every length and depth."""

    pieces: Pieces
    haystack: Haystack
    tasks: Mapping[str, Task]
    lengths: Sequence[int]
    depths: Sequence[float] | None
    """None: tasks draw them."""
    trials: int
    """Of each."""
    seed: int

    def __post_init__(self) -> None:
        whole("trials", self.trials)
        if self.depths is not None:
            given = list(self.depths) if isinstance(self.depths, Iterable) else []
            if not given or not all(isinstance(depth, Real) and 0 <= depth <= 1 for depth in given):
                raise EvaluationError(f"depths are one or more numbers from 0 to 1, not {self.depths!r:.60}.")

    @property
    def grid(self) -> list[Place]:
        """Each once: by task, then by length, then by depth."""
        depths = [None] if self.depths is None else sorted({float(depth) for depth in self.depths})
        return [Place(*place) for place in product(self.tasks, wanted_lengths(self.lengths), depths)]

    def puzzle(self, place: Place, trial: int) -> tuple[Puzzle, Random]:
        """What is asked, and the random source from there on."""
        random = Random("/".join(map(str, (self.seed, *place, trial))))
        room = place.length - len(self.pieces.bos)
        return self.tasks[place.task](random, self.pieces, room, place.depth), random

    def prompt(self, place: Place, trial: int) -> list[int]:
        """The tokens, answer included."""
        puzzle, random = self.puzzle(place, trial)
        size = place.length - len(self.pieces.bos) - puzzle.tokens
        found, cut, haystack = [*self.pieces.bos], 0, self.haystack.draw(random, size)
        for depth, needle in sorted(puzzle.needles, key=lambda each: each[0]):
            after = round(depth * size)
            found += haystack[cut:after] + needle
            cut = after
        return found + haystack[cut:] + puzzle.question + puzzle.answer

    def prompts(self, place: Place, trials: Iterable[int]) -> Tensor:
        """`[trials, length]`."""
        return torch.tensor([self.prompt(place, trial) for trial in trials])

    def batches(self, place: Place, tokens: int) -> list[range]:
        """The numbers of its trials, so many together as have at most `tokens` tokens, or one."""
        size = max(1, tokens // place.length)
        return [range(self.trials)[start : start + size] for start in range(0, self.trials, size)]

    def checked_fingerprint(self) -> str:
        """Of all that the prompts are made of.

        Raises:
            EvaluationError: a length is too short.
        """
        found: list[Any] = [self.pieces.bos, self.haystack.fingerprint]
        for place in self.grid:
            puzzles = (self.puzzle(place, trial)[0] for trial in range(self.trials))
            sizes, texts = zip(*((each.tokens, each.fingerprint) for each in puzzles), strict=True)
            least = len(self.pieces.bos) + max(sizes)
            if least > place.length:
                raise EvaluationError(f"{place.task} takes {least} tokens with this tokenizer, not {place.length}.")
            found += texts
        return fingerprint_of_settings(found)


def measure_trials(
    measurement: str,
    model: Any,
    trials: Trials,
    *,
    skipped: tuple[int, ...] = (),
    tokens_per_batch: int,
    **run: "Unpack[Running]",
) -> RetrievalResult:
    """Scores every trial, at most `tokens_per_batch` tokens at once, or one prompt."""
    refuse_non_causal(model)
    refuse_batch(tokens_per_batch)
    refuse_too_long(model, trials.grid[-1].length)
    pieces, alphabet = trials.pieces, torch.tensor(trials.pieces.alphabet)
    batches = [(place, batch) for place in trials.grid for batch in trials.batches(place, tokens_per_batch)]
    settings = {
        "measurement": measurement,
        "grid": trials.grid,
        "trials": trials.trials,
        "seed": trials.seed,
        "tokens_per_batch": tokens_per_batch,
        "prompts": trials.checked_fingerprint(),
    }

    def measure(item: int) -> list[Score]:
        return score(model, trials.prompts(*batches[item]), pieces.width, alphabet)

    sizes = [place.length * len(batch) for place, batch in batches]
    done = run_items(measure, sizes, model=model, settings=settings, **run)
    scores: dict[Place, list[Score]] = {place: [] for place in trials.grid}
    for (place, _), values in zip(batches, done.values, strict=True):
        scores[place] += [Score(*value) for value in values]
    return RetrievalResult(
        subject=subject_of(model),
        cost=done.cost,
        task=measurement,
        haystack=trials.haystack.in_words,
        skipped=skipped,
        alphabet=pieces.alphabet_name,
        answer_tokens=pieces.width,
        bos=bool(pieces.bos),
        seed=trials.seed,
        cells=tuple(_cell(place, scores[place], pieces) for place in trials.grid),
    )


def _cell(place: Place, scores: Sequence[Score], pieces: Pieces) -> Cell:
    tokens = len(scores) * pieces.width
    return Cell.of(
        *place,
        correct=sum(each.exact for each in scores),
        trials=len(scores),
        token_accuracy=sum(each.right for each in scores) / tokens,
        chance=1 / len(pieces.alphabet),
        nll=math.fsum(each.nll for each in scores) / tokens,
    )
