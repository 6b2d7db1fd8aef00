"""Peak memory: of the GPU's allocator, or of the process as Linux counts it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Peak:
    """`bytes` above what was held before; None where it cannot be told."""

    bytes: int | None = None


@contextmanager
def peak_memory(device: Any) -> Iterator[Peak]:
    """How much memory the block needs at most on `device`. Resets the peak that the GPU or the process kept until then.

    The system counts the memory of a process in pages that were touched, so that blocks which fit into what was freed
    before seem to need none. None on other devices, where there is no /proc, and where it may not be written to, as in
    some containers.
    """
    peak, kind = Peak(), torch.device(device).type
    before = _reset(device, kind)
    yield peak
    if before is not None and (after := _most(device, kind)) is not None:
        peak.bytes = max(0, after - before)


def _reset(device: Any, kind: str) -> int | None:
    """Bytes that are held now."""
    if kind == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    with suppress(OSError):
        RESET.write_text("5")  # proc(5): "reset the peak resident set size"
        return _of_process("VmRSS") if kind == "cpu" else None
    return None


def _most(device: Any, kind: str) -> int | None:
    """The most bytes that were held since."""
    return torch.cuda.max_memory_allocated(device) if kind == "cuda" else _of_process("VmHWM")


def _of_process(name: str) -> int | None:
    with suppress(OSError, StopIteration, ValueError):
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
        return int(line.split()[1]) * 1024  # the line is "VmRSS:  1234 kB"
    return None
