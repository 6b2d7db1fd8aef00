"""What the picture tests share: a geometry, an example of every scheme, and what lines of a figure hold."""

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import pytest

from hf_posswap.schemes import Geometry, Scheme

HEAD_DIM = 16


def _geometry(**overrides: Any) -> Geometry:
    facts = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": HEAD_DIM, "hidden_size": 32}
    facts |= {"num_hidden_layers": 8, "trained_length": 128, "causal": True}
    return Geometry(**{**facts, **overrides})


def _required(field: Any) -> Any:
    """A value for a field without default, by its declared kind."""
    kind = field.metadata["kind"]
    examples = {"scheme": "rope", "schemes": ["rope", "nope"], tuple: [1.0 + i / 2 for i in range(HEAD_DIM // 2)]}
    return examples.get(kind, 4)


def example(cls: type[Scheme], **values: Any) -> Scheme:
    required = {f.name: _required(f) for f in fields(cls) if f.default is MISSING}
    return cls(**{**required, **values})


def lines_of(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """x and y by label; lines without a name are left out."""
    named = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in named}


@pytest.fixture(scope="session")
def geometry() -> Callable[..., Geometry]:
    """`geometry(head_dim=8)`: 4 heads of 16, trained at 128, with some facts changed."""
    return _geometry


@pytest.fixture(scope="session")
def make() -> Callable[..., Scheme]:
    """`make(cls)`: a scheme of a class, with examples for its required fields."""
    return example


@pytest.fixture(scope="session")
def lines() -> Callable[[Any], dict[str, Any]]:
    return lines_of
