"""Arguments of YaRN's ramp for tests with hypothesis."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st


def _fields(beta_slow: float, ratio: float, **rest: Any) -> dict[str, Any]:
    return {"beta_slow": beta_slow, "beta_fast": beta_slow * ratio, **rest}


def any_ramp(test: Callable[..., None]) -> Callable[..., None]:
    """Calls a test with the `head_dim` and trained `length` of a model, and with the `fields` of a scheme."""
    fields = st.builds(
        _fields,
        rope_theta=st.floats(50.0, 1e7),
        factor=st.floats(1.0, 128.0),
        beta_slow=st.floats(0.1, 16.0),
        ratio=st.floats(1.5, 64.0),
        truncate=st.booleans(),
    )
    arguments = {"head_dim": st.integers(1, 64).map(lambda half: 2 * half), "length": st.integers(16, 2**20)}
    return settings(deadline=None, max_examples=60, derandomize=True)(given(**arguments, fields=fields)(test))
