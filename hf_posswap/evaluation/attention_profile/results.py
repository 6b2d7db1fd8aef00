"""What an attention profile is made of."""

from dataclasses import dataclass
from typing import ClassVar

from hf_posswap.evaluation.results import ModelResult


@dataclass(frozen=True)
class HeadProfile:
    """One query head of one layer. Lists by distance are as long as the result's `distances`. A mean over queries is
    over all of them, the first of a window too, which in a causal model has only itself to attend to."""

    layer: int
    head: int
    score: tuple[float | None, ...]
    """Mean attention score, bias and scaling included, before the softmax; None where no query sees a key so far away
    (a layer with a window)."""
    weight: tuple[float, ...]
    """Mean attention weight that a query gives to one key at such a distance, of the keys that it sees."""
    mean_distance: float
    """Weighted by attention; mean over queries."""
    diagonal: float
    """Weight on the token itself; mean over queries."""
    previous: float
    """Weight on the token before; mean over the queries that have one."""
    first: float
    """Weight on the first token, a sink where it is large; mean over queries."""
    frequencies: tuple[float, ...]
    """Share of each rotary pair in the size of the scores, as long as `inv_freq`: the mean norm of its two dimensions
    in queries times that in keys, over the sum of this for all dimensions of the head, taken in pairs. They add up to 1
    where the whole head turns, and are 0 in layers that are not rotated."""


@dataclass(frozen=True, kw_only=True)
class AttentionProfile(ModelResult):
    """All heads of all layers."""

    kind: ClassVar[str] = "attention_profile"

    length: int
    documents: int
    """Those that were read."""
    skipped: tuple[int, ...]
    """Indices of the documents shorter than `length`."""
    windows: int
    distances: tuple[int, ...]
    """The first distance of every bucket, in tokens; the last bucket ends before `length`. In encoders a distance is on
    either side."""
    inv_freq: tuple[float, ...]
    """Radians per token of every rotary pair; empty where there is no such list for all positions: without rotation,
    with frequencies by length (dynamic, longrope) or scores that are not rotated products (xpos), and with different
    rotations in different layers."""
    heads: tuple[HeadProfile, ...]
