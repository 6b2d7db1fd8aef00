"""What tests of measurements share: likelihoods one number at a time, and runs that break off."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

Measure = Callable[..., Any]


def slow_nll(model: Any, input_ids: Tensor) -> list[float]:
    """NLL in nats of the tokens of `input_ids [L]` but the first, from the logits that the model gives."""
    with torch.no_grad():
        logits = model(input_ids[None]).logits[0].double()
    return [(row.logsumexp(0) - row[token]).item() for row, token in zip(logits[:-1], input_ids[1:], strict=True)]


def assert_resumes(measure: Measure, model: Any, comparable: Callable[[Any], Any], state: Path) -> None:
    """`measure(state=...)` breaks off in its last forward pass; called again it does that item alone.

    `comparable` of a result is what may not depend on when it was measured.
    """
    passes, broken = [], [0]

    def count(*_: Any) -> None:
        passes.append(len(passes) + 1)
        if passes[-1] == broken[0]:
            raise RuntimeError("broken off")

    hook = model.register_forward_pre_hook(count)
    try:
        whole = measure()
        total = broken[0] = len(passes)
        passes.clear()
        with pytest.raises(RuntimeError, match="broken off"):
            measure(state=state)
        passes.clear()
        resumed = measure(state=state)
        assert 0 < len(passes) < total
        passes.clear()
        again = measure(state=state)
        assert not passes
    finally:
        hook.remove()
    assert comparable(resumed) == comparable(whole) == comparable(again)
