"""What a reader makes of a config, and the facts that all of them read alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reading:
    """What a program does with a config. Either it `refuses`, or nothing is known (`unknown`), or the rest is set."""

    inv_freq: tuple[float, ...] | None = None
    """Radians per position of each pair of a head, 0 for one that does not turn; None: no rotation, a table of rows."""
    attention_scaling: float = 1.0
    """The factor on cos and sin."""
    max_length: int | None = None
    """The length that it derives; None where it keeps none."""
    refuses: str | None = None
    unknown: str | None = None
    depends_on_length: bool = False
    """It changes the frequencies with the length of the call."""


def head_dim(config: Mapping[str, Any]) -> int:
    """Dimensions of a head."""
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def architecture(config: Mapping[str, Any]) -> str:
    """The model class that a config names first."""
    return next(iter(config.get("architectures") or ()), "no architecture")


def table_length(config: Mapping[str, Any]) -> int:
    """Rows of a table of positions."""
    return config["n_positions"] if "n_positions" in config else config["max_position_embeddings"]


def not_looked_up(config: Mapping[str, Any]) -> Reading:
    """For a model whose rules nobody has read."""
    return Reading(unknown=f"how it reads {architecture(config)} was not looked up: compare logits before you use it")
