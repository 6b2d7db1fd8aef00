"""What each reader will do with an exported checkpoint: its reading compared with the scheme."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hf_posswap.persistence.readers import READERS, Reader, Reading
from hf_posswap.persistence.readers.formulas import plain

SAME = "same"
PLAIN = "WRONG: would run plain RoPE: do not use"

TOLERANCE = 1e-5
"""Relative; float32 frequencies, which most readers have, are within 1e-6 of float64 ones."""


@dataclass(frozen=True)
class Rotation:
    """What has to come out: `inv_freq [d/2]`, 0 for a pair that does not turn, and the factor on cos and sin."""

    inv_freq: tuple[float, ...]
    attention_scaling: float = 1.0


@dataclass(frozen=True)
class ReaderVerdict:
    """What one program does with the checkpoint."""

    reader: str
    release: str
    """Whose rules these are."""
    verdict: str
    """ "same", or a sentence that starts with "refuses", "WRONG" or "unknown"."""
    max_length: int | None
    """The length that it derives; None where it derives none."""
    note: str | None = None


@dataclass(frozen=True)
class ExportReport:
    """What was exported, and what others make of it. `print(report)` is a table."""

    path: str
    architecture: str
    scheme: dict[str, Any]
    length: int
    """The positions that the model accepts."""
    compat: str
    rope_parameters: dict[str, Any] | None
    readers: tuple[ReaderVerdict, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(self.to_json())

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self), indent=2)

    def __str__(self) -> str:
        rows = [("READER", "LENGTH", "WHAT IT DOES")]
        for r in self.readers:
            length = "-" if r.max_length is None else str(r.max_length)
            rows.append((r.reader, length, r.verdict + (f"; {r.note}" if r.note else "")))
        head = f"{self.path}: {self.architecture} with {self.scheme['name']}, length {self.length}, keys {self.compat}"
        return "\n".join([head, *(f"{name:14}{length:>10}  {does}" for name, length, does in rows)])


def verdicts(config: Mapping[str, Any], wanted: Rotation | None, length: int) -> tuple[ReaderVerdict, ...]:
    """Every reader on one config. `wanted` None: nothing rotates; a table's rows are all there is to know."""
    return tuple(verdict_of(reader, config, wanted, length) for reader in READERS)


def verdict_of(reader: Reader, config: Mapping[str, Any], wanted: Rotation | None, length: int) -> ReaderVerdict:
    """What one reader does: "same" only if frequencies and scaling are those of the scheme."""
    reading = reader.read(config)
    verdict = _verdict(reading, wanted, config)
    derived = reading.max_length if verdict == SAME else None
    note = None
    if derived is not None and derived != length:
        note = f"takes {derived} for its length: tell it {length}"
    return ReaderVerdict(reader.name, reader.release, verdict, derived, note)


def _verdict(reading: Reading, wanted: Rotation | None, config: Mapping[str, Any]) -> str:
    if reading.refuses is not None:
        return f"refuses: {reading.refuses}"
    if reading.unknown is not None:
        return f"unknown: {reading.unknown}"
    if wanted is None:
        return SAME
    if reading.inv_freq is None or reading.depends_on_length:
        return "WRONG: would change the frequencies with the length of the call: do not use"
    if not _close(reading.inv_freq, wanted.inv_freq):
        return PLAIN if _is_plain(reading.inv_freq) else "WRONG: would run other frequencies: do not use"
    if not _close((reading.attention_scaling,), (wanted.attention_scaling,)):
        found, right = reading.attention_scaling, wanted.attention_scaling
        return f"WRONG: would scale queries and keys by {found:.4g} instead of {right:.4g}: do not use"
    return SAME


def _is_plain(inv_freq: tuple[float, ...]) -> bool:
    """Whether the frequencies are those of RoPE for some theta."""
    if len(inv_freq) < 2 or not inv_freq[1]:
        return False
    theta = (inv_freq[0] / inv_freq[1]) ** len(inv_freq)
    return _close(inv_freq, plain(2 * len(inv_freq), theta))


def _close(found: tuple[float, ...], right: tuple[float, ...]) -> bool:
    pairs = zip(found, right, strict=False)
    return len(found) == len(right) and all(abs(a - b) <= TOLERANCE * abs(b) for a, b in pairs)
