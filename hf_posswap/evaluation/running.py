"""How every measurement runs: its items shared out over processes, shown on a bar, remembered when finished.

A measurement is a list of items (a document, some documents, a batch of trials) and a function from the number of an
item to JSON values; what it returns is made of those values alone, in the order of the items. So it is the same with
one process and with many, at one go and in several.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from accelerate import Accelerator
from tqdm.auto import tqdm

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.fingerprints import fingerprint_of_model, fingerprint_of_settings
from hf_posswap.evaluation.memory import peak_memory
from hf_posswap.evaluation.processes import processes_of
from hf_posswap.evaluation.results import Cost, subject_of
from hf_posswap.evaluation.state import State


class Running(TypedDict, total=False):
    """Keyword arguments that every measurement takes.

    `accelerator` (default None: this process does everything): share the items out over its processes. All of them
    call, with the same arguments and each with the whole model, and all get the whole result.

    `state` (default None: nowhere): a file that keeps finished items, by everything that they depend on. The same call
    goes on from there; other calls may share it. With several processes each writes a file of its own beside it.

    `progress` (default False): show a bar.
    """

    accelerator: Accelerator | None
    state: str | os.PathLike[str] | None
    progress: bool


@dataclass(frozen=True)
class Run:
    """What came out: the values of every item, in order, and what they took."""

    values: list[Any]
    seconds: list[float]
    """Of every item."""
    cost: Cost


def run_items(
    measure: Callable[[int], Any],
    sizes: Sequence[int],
    *,
    model: Any,
    settings: dict[str, Any],
    unit: str = "token",
    accelerator: Accelerator | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> Run:
    """`measure(i)` for every item; `sizes[i]` is its work, in `unit`, by which items are shared out and shown.

    `settings` are JSON values of all that the values depend on besides `model`, "measurement" among them. `measure`
    returns JSON values; floats come back exactly, tuples as lists. The rest is `Running`.

    With several processes an error in one is an error in all, once each has done its share; what is finished then is
    in the state.

    Raises:
        EvaluationError: the state cannot be read or written, or another process failed.
    """
    alone = accelerator is None or accelerator.num_processes == 1
    key = "" if state is None and alone else _key(model, settings)
    with processes_of(accelerator) as processes, State(state, key, processes) as finished:
        if len(set(processes.gather(lambda: key))) > 1:
            raise EvaluationError(
                "The processes were given different things to measure: all of them call with the same model, documents "
                "and arguments."
            )
        known = _merged(processes.gather(finished.open))
        todo = sorted((i for i in range(len(sizes)) if i not in known), key=lambda i: -sizes[i])
        mine = sorted(todo[processes.rank :: processes.count])

        def work() -> dict[int, Any]:
            done = {}
            shown = progress and processes.rank == 0
            total, what = sum(sizes[i] for i in mine), settings["measurement"]
            with tqdm(total=total, desc=what, unit=unit, unit_scale=True, disable=not shown) as bar:
                for i in mine:
                    done[i] = _measured(measure, i, model.device)
                    finished.write(i, done[i])
                    bar.update(sizes[i])
            return done

        everything = known | _merged(processes.gather(work))
    entries = [everything[i] for i in range(len(sizes))]
    seconds, peaks = ([entry[name] for entry in entries] for name in ("seconds", "peak"))
    peak = max((peak for peak in peaks if peak is not None), default=None)
    cost = Cost(sum(seconds), peak, processes.count, str(model.device))
    return Run([entry["values"] for entry in entries], seconds, cost)


def groups(sizes: Sequence[int], most: int) -> list[range]:
    """Neighbouring documents together, as long as they have at most `most` tokens; none is cut in two."""
    found: list[range] = []
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > most:
            found.append(range(start, i))
            start, total = i, 0
        total += size
    return [*found, range(start, len(sizes))] if len(sizes) else []


def _merged(shares: list[dict[int, Any]]) -> dict[int, Any]:
    return {item: entry for share in shares for item, entry in share.items()}


def identity_of(model: Any) -> list[Any]:
    """JSON values of all that a model's outputs depend on."""
    subject = subject_of(model)
    return [fingerprint_of_model(model), subject.scheme, subject.attention, model.config.to_json_string(use_diff=False)]


def _key(model: Any, settings: dict[str, Any]) -> str:
    return fingerprint_of_settings([settings, *identity_of(model)])


def _measured(measure: Callable[[int], Any], item: int, device: Any) -> dict[str, Any]:
    started = time.perf_counter()
    with peak_memory(device) as peak:
        values = json.loads(json.dumps(measure(item)))
    return {"seconds": time.perf_counter() - started, "peak": peak.bytes, "values": values}
