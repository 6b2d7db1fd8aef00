"""The likelihood of the calibration windows under one scheme after another, within a budget."""

import math
import numbers
import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation import token_nll
from hf_posswap.patching.borrowed import try_on
from hf_posswap.schemes import Scheme
from hf_posswap.search.result import Stopped
from hf_posswap.search.state import State

SAVED_EVERY = 10.0
"""Seconds after which measurements are written within a generation too."""


class Spent(Exception):  # noqa: N818 - the end of a search is no error
    """The budget is used up; says which."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(stopped)
        self.stopped = stopped


@dataclass(frozen=True)
class Budget:
    """What may be used up; None: any amount."""

    seconds: float | None
    evaluations: int | None

    def check(self, least: int) -> None:
        """Raises EvaluationError for a budget that is none, or of fewer than `least` evaluations."""
        seconds, evaluations = self.seconds, self.evaluations
        if seconds is None and evaluations is None:
            raise EvaluationError("A search needs an end: give seconds, evaluations or both.")
        number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
        if seconds is not None and not (number and seconds > 0):
            raise EvaluationError(f"seconds is a number above 0, or None for no limit, not {seconds!r:.60}.")
        whole = isinstance(evaluations, numbers.Integral) and not isinstance(evaluations, bool)
        if evaluations is not None and not (whole and evaluations >= least):
            raise EvaluationError(
                f"evaluations is a whole number from {least} up, because the search begins with so many known schemes, "
                f"or None for no limit; not {evaluations!r:.60}."
            )


@dataclass
class Measurements:
    """Reads the windows `[N, L]` under a scheme, or remembers what came out when it did so before."""

    model: Any
    windows: Tensor
    state: State
    budget: Budget
    tokens_per_batch: int
    bar: Any
    evaluations: int = 0
    started: float = field(default_factory=time.perf_counter)
    written: float = field(default_factory=time.perf_counter)

    def nll(self, scheme: Scheme, *, known: bool = False) -> float:
        """Nats per token, infinite when they are not finite.

        Args:
            known: this is one of the schemes that every search begins with, whatever its budget.

        Raises:
            Spent: the budget is used up.
            EvaluationError: not finite for a known scheme.
        """
        found = self.state.get(scheme)
        if not known:
            self._refuse_spent(remembered=found is not None)
        nll = self._measured(scheme) if found is None else found
        if known and not math.isfinite(nll):
            raise EvaluationError(f"The model gives a likelihood that is not finite with {scheme.name}.")
        self.evaluations += 1
        self.bar.update()
        return nll

    def _refuse_spent(self, *, remembered: bool) -> None:
        if self.budget.evaluations is not None and self.evaluations >= self.budget.evaluations:
            raise Spent("evaluations")
        used = time.perf_counter() - self.started
        if not remembered and self.budget.seconds is not None and used >= self.budget.seconds:
            raise Spent("seconds")

    def _measured(self, scheme: Scheme) -> float:
        started, total = time.perf_counter(), 0.0
        try_on(self.model, scheme)
        for batch in self.windows.split(max(1, self.tokens_per_batch // self.windows.shape[1])):
            total += token_nll(self.model, batch).double().sum().item()
        nll = total / (len(self.windows) * (self.windows.shape[1] - 1))
        nll = nll if math.isfinite(nll) else math.inf
        now = time.perf_counter()
        self.state.put(scheme, nll, now - started)
        if now - self.written > SAVED_EVERY:
            self.state.write()
            self.written = now
        return nll
