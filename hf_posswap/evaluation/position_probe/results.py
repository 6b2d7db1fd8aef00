"""What a position probe found."""

from dataclasses import dataclass
from typing import ClassVar

from hf_posswap.evaluation.intervals import Interval
from hf_posswap.evaluation.results import ModelResult


@dataclass(frozen=True)
class ProbedLayer:
    """Mean absolute error in positions, on documents that the probe was not fitted on."""

    layer: int
    """0: what goes into the first layer; i: what comes out of the i-th, before the norm that may follow the last."""
    error: float
    interval: Interval | None
    """Over the documents tested; None for one."""


@dataclass(frozen=True, kw_only=True)
class PositionProbe(ModelResult):
    """Error by layer, with what it is to be compared with."""

    kind: ClassVar[str] = "position_probe"

    length: int
    skipped: tuple[int, ...]
    """Indices of the documents shorter than `length`."""
    fitted_documents: int
    fitted_tokens: int
    """Many times the width of the hidden states, or the probe learns its documents by heart."""
    tested_documents: int
    ridge: float
    layers: tuple[ProbedLayer, ...]
    control: float
    """Error of the same probe on random features of the same width, which know nothing: above `guess` by what the probe
    loses to fitting too few tokens."""
    guess: float
    """Error of always saying the middle."""
