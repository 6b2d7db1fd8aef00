"""Processes that share the work of a measurement."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed
from accelerate import Accelerator

from hf_posswap.errors import EvaluationError

T = TypeVar("T")

PATIENCE = timedelta(days=30)
"""How long processes wait for each other."""


@dataclass(frozen=True)
class Processes:
    """This process among those that share the work; the default is a process alone."""

    rank: int = 0
    count: int = 1
    group: Any = None

    def gather(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives in every process, in the order of their ranks. All of them call, and wait for the last.

        Raises:
            Exception: what `work` raised in this process.
            EvaluationError: it raised in another one, so that none waits for that one forever.
        """
        if self.count == 1:
            return [work()]
        mine, failure = None, None
        try:
            mine = work()
        except Exception as error:
            failure = error
        said = None if failure is None else f"{type(failure).__name__}: {failure}"
        everything: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(everything, (mine, said), group=self.group)
        if failure is not None:
            raise failure
        for _, other in everything:
            if other is not None:
                raise EvaluationError(f"Another process failed with {other}")
        return [brought for brought, _ in everything]


@contextmanager
def processes_of(accelerator: Accelerator | None) -> Iterator[Processes]:
    """The processes of an accelerator.

    They get a group of their own on the CPU: the usual one gives up on a process that is 10 minutes behind, and one
    document can take longer.
    """
    if accelerator is None or accelerator.num_processes == 1:
        yield Processes()
        return
    group = torch.distributed.new_group(backend="gloo", timeout=PATIENCE)
    try:
        yield Processes(accelerator.process_index, accelerator.num_processes, group)
    finally:
        torch.distributed.destroy_process_group(group)
