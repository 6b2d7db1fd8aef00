"""What a search returns."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hf_posswap.schemes.longrope import LongRoPE

Stopped = Literal["evaluations", "seconds", "exhausted"]


@dataclass(frozen=True)
class Generation:
    """Where the search stood at the end of a generation; the first one starts from known schemes."""

    number: int
    evaluations: int
    """How often the calibration windows had been read by then, baselines included."""
    perplexity: float
    """Of the best individual so far."""


@dataclass(frozen=True)
class SearchResult:
    """The best scheme found. Perplexities are those of the calibration windows, which the search has fitted: measure on
    other text before believing them."""

    scheme: LongRoPE
    """With mode="static", as it was measured: the long factors at every position. `dataclasses.replace(scheme,
    mode="segment")` keeps queries within the trained length as they were."""
    perplexity: float
    baselines: dict[str, float]
    """Perplexity of known schemes by name, "rope" being the model without any rescaling."""
    windows: int
    max_length: int
    history: tuple[Generation, ...]
    evaluations: int
    """How often the calibration windows were read, baselines included; by all runs that shared the state."""
    seconds: float
    """That these took, in all runs."""
    stopped: Stopped
    """The budget that was used up; "exhausted": new individuals became hard to find."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps({**asdict(self), "scheme": self.scheme.to_dict()}))
