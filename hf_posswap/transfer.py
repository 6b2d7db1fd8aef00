"""What carries over in a swap: rules that grow a learned table. Torch alone; nothing here knows a model.

A rule maps a table `[L, E]` and a longer length to a table `[L', E]`.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def interpolate(table: Tensor, length: int) -> Tensor:
    """`E'[p]` read between rows at `p * L / L'`, linearly: old positions change, the end is repeated."""
    rows = len(table)
    at = torch.arange(length, dtype=torch.float64, device=table.device) * (rows / length)
    below = at.floor().long().clamp(max=rows - 1)
    above = (below + 1).clamp(max=rows - 1)
    share = (at - below)[:, None]
    wide = table.to(torch.float64)
    return (wide[below] * (1 - share) + wide[above] * share).to(table.dtype)


def tile(table: Tensor, length: int) -> Tensor:
    """`E'[p] = E[p mod L]` (Longformer, 2004.05150, section 5): old positions keep their rows."""
    return table[torch.arange(length, device=table.device) % len(table)]


def repeat_last(table: Tensor, length: int) -> Tensor:
    """`E'[p] = E[min(p, L - 1)]`: old positions keep their rows."""
    return table[torch.arange(length, device=table.device).clamp(max=len(table) - 1)]


GROWTH: dict[str, Callable[[Tensor, int], Tensor]] = {
    "interpolate": interpolate,
    "tile": tile,
    "repeat_last": repeat_last,
}
"""The rules by the names that `extend` takes; the first is its default."""
