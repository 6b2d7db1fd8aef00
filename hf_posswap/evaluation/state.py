"""Finished items in a file, so that an interrupted measurement goes on where it was.

Below a line that says what the file is stands one line for every finished item, `{"key", "item", "seconds", "peak",
"values"}`; `key` stands for all that the values depend on, so that several measurements can share a file. A line that
an interruption has cut off is not a finished item.
"""

import json
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.processes import Processes
from hf_posswap.files import reason

HEADER = b'{"state": "hf_posswap.evaluation", "version": 1}\n'
TYPES = {"item": (int,), "seconds": (int, float), "peak": (int, type(None)), "values": (object,)}


class State:
    """The finished items of one measurement, as one of several processes reads and writes them.

    A process alone writes the file itself; of several, each writes one of its own beside it, `FILE.0`, `FILE.1` and so
    on. All of them are read, each by one process, so that none reads what another writes. `path` None: nothing is kept.
    """

    def __init__(self, path: str | os.PathLike[str] | None, key: str, processes: Processes) -> None:
        self.path = None if path is None else Path(path)
        self.key, self.processes = key, processes
        self._file: FileIO | None = None

    def __enter__(self) -> "State":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()

    def open(self) -> dict[int, dict[str, Any]]:
        """Makes sure that items can be written; returns those that this process finds finished.

        Raises:
            EvaluationError: the state cannot be read or written, or is a file of something else.
        """
        if self.path is None:
            return {}
        try:
            found = {entry["item"]: entry for file in self._files() for entry in self._read(file)}
            ending = "" if self.processes.count == 1 else f".{self.processes.rank}"
            self._file = self.path.with_name(self.path.name + ending).open("ab", buffering=0)
            self._append(HEADER[self._file.tell() :] or b"\n")  # what was cut off ends here
        except EvaluationError:
            raise
        except (OSError, ValueError) as error:
            raise self._unwritable(error) from error
        return found

    def write(self, item: int, entry: dict[str, Any]) -> None:
        """Raises EvaluationError when the disk does not take it."""
        if self._file is None:
            return
        try:
            self._append(json.dumps({"key": self.key, "item": item, **entry}).encode() + b"\n")
        except OSError as error:
            raise self._unwritable(error) from error

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        while line:  # a disk that is nearly full takes a part
            line = line[self._file.write(line) :]

    def _files(self) -> Iterator[Path]:
        """Those that fall to this process, whoever wrote them."""
        assert self.path is not None
        if self.processes.rank == 0 and self.path.exists():
            yield self.path
        for file in sorted(self.path.absolute().parent.iterdir()):
            number = file.name.removeprefix(f"{self.path.name}.")
            if number != file.name and number.isdecimal() and int(number) % self.processes.count == self.processes.rank:
                yield file

    def _read(self, file: Path) -> Iterator[dict[str, Any]]:
        start = json.dumps({"key": self.key})[:-1].encode()
        with file.open("rb") as lines:
            if not HEADER.startswith(lines.read(len(HEADER))):  # shorter only where it was cut off
                raise EvaluationError(f"{file} is no state of a measurement: remove it, or name another file.")
            for line in lines:
                if line.startswith(start) and (entry := _entry(line)):
                    yield entry

    def _unwritable(self, error: Exception) -> EvaluationError:
        return EvaluationError(
            f"The state cannot be kept in {self.path}: {reason(error)}; name a file in a folder that can be written to."
        )


def _entry(line: bytes) -> dict[str, Any] | None:
    """A finished item, or None for a line that was cut off."""
    try:
        entry = json.loads(line)
        return entry if all(isinstance(entry[name], kinds) for name, kinds in TYPES.items()) else None
    except (ValueError, KeyError, RecursionError):
        return None
