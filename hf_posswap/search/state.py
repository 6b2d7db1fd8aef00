"""What a search has measured so far, in a file: `{"version", "settings", "seconds", "evaluated": [{"scheme", "nll"}]}`.

The search is a function of its settings and of what it measures. So the file holds measurements only, and a search goes
on from it by doing everything again without measuring again: it cannot come out different from one that ran through.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from hf_posswap.errors import EvaluationError
from hf_posswap.files import write_whole
from hf_posswap.patching.borrowed import interrupts_wait
from hf_posswap.schemes import Scheme

VERSION = 1


class State:
    """Measurements by scheme, and the seconds that they took. `path` None: kept in memory only."""

    def __init__(self, path: str | os.PathLike[str] | None, settings: dict[str, Any]) -> None:
        """Raises EvaluationError when there is a file that is none of ours, broken, or of another search."""
        self.path = None if path is None else Path(path)
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))
        self.seconds = 0.0
        self._nll: dict[str, float] = {}
        if self.path is None:
            return
        folder = self.path.absolute().parent
        writable = "\0" not in str(self.path) and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        if not writable or (self.path.exists() and not self.path.is_file()):
            raise EvaluationError(f"The state of the search cannot be written to {self.path}: name a file in a folder.")
        if self.path.exists():
            self._read(self.path)

    def get(self, scheme: Scheme) -> float | None:
        """The negative log-likelihood per token of `scheme`; None when it was not measured yet."""
        return self._nll.get(_key(scheme))

    def put(self, scheme: Scheme, nll: float, seconds: float) -> None:
        """Remembers a measurement; `write` puts it into the file."""
        self._nll[_key(scheme)] = nll
        self.seconds += seconds

    def write(self) -> None:
        """The whole file or nothing of it."""
        if self.path is None:
            return
        evaluated = [{"scheme": json.loads(k), "nll": v if math.isfinite(v) else None} for k, v in self._nll.items()]
        values = {"version": VERSION, "settings": self.settings, "seconds": self.seconds, "evaluated": evaluated}
        with interrupts_wait():
            write_whole(self.path, json.dumps(values, indent=1).encode())

    def _read(self, path: Path) -> None:
        broken = EvaluationError(f"{path} is no state of a search, or damaged: remove it, or name another file.")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            version, settings = values["version"], values["settings"]
            known = {
                json.dumps(entry["scheme"], sort_keys=True): _number(entry["nll"]) for entry in values["evaluated"]
            }
            seconds = float(values["seconds"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise broken from error
        if version != VERSION or not isinstance(settings, dict) or not math.isfinite(seconds):
            raise broken
        different = [k for k in {**self.settings, **settings} if self.settings.get(k) != settings.get(k)]
        if different:
            raise EvaluationError(
                f"{path} is the state of another search, with another {', '.join(different)}: name another file, or "
                "remove it to start anew."
            )
        self._nll, self.seconds = known, seconds


def _key(scheme: Scheme) -> str:
    return json.dumps(scheme.to_dict(), sort_keys=True)


def _number(nll: Any) -> float:
    if nll is None:
        return math.inf
    if isinstance(nll, bool) or not isinstance(nll, (int, float)) or not 0 <= nll < math.inf:
        raise ValueError(nll)
    return float(nll)
