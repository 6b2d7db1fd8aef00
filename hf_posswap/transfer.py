"""What carries over in a swap: rules that grow a learned table. Torch alone; nothing here knows a model.

A rule maps a table `[L, E]` and a length L' >= L to a table `[L', E]`. Its keyword arguments are the fields that
`extend` takes. Computed in float64 and rounded once, to the table's dtype; rows that a rule keeps are copied. Adding a
rule is a function here and its name in `RULES`.
"""

import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError

Rule = Callable[..., Tensor]


def interpolate(table: Tensor, length: int, *, interpolation: str = "linear") -> Tensor:
    """`E'[p]` read between rows at `p * L / L'`: old positions change.

    "linear", or "cubic": cubic convolution with a = -1/2, which is the Catmull-Rom spline (Keys 1981,
    doi:10.1109/TASSP.1981.1163711). Beyond both ends the first and the last row repeat.
    """
    if interpolation not in tuple(KERNELS):
        raise SchemeError(f"interpolate: interpolation={interpolation!r} is not one of {', '.join(KERNELS)}.")
    rows = len(table)
    scaled = torch.arange(length, device=table.device) * rows
    # Integers, so that a position on an old row reads exactly that row.
    below, share = scaled // length, _wide(scaled % length)[:, None] / length
    wide = _wide(table)
    read = torch.zeros_like(wide[:1])
    for step, weight in KERNELS[interpolation](share).items():
        read = read + wide[(below + step).clamp(0, rows - 1).to(wide.device)] * weight
    return _narrow(read, table)


def tile(table: Tensor, length: int) -> Tensor:
    """`E'[p] = E[p mod L]` (Longformer, 2004.05150, section 5): old positions keep their rows."""
    return table[torch.arange(length, device=table.device) % len(table)]


def repeat_last(table: Tensor, length: int) -> Tensor:
    """`E'[p] = E[min(p, L - 1)]`: old positions keep their rows."""
    return table[torch.arange(length, device=table.device).clamp(max=len(table) - 1)]


def hierarchical(table: Tensor, length: int, *, alpha: float = 0.4) -> Tensor:
    """`E'[iL + j] = a u_i + (1 - a) u_j` with `u = (E - a E[0]) / (1 - a)` (Su 2020, kexue.fm/archives/7947).

    Old positions keep their rows: for i = 0 the sum is `E[j]`, which is copied. Reaches L^2.
    """
    if not _is_number(alpha) or not 0 < alpha < 1 or alpha == 0.5:
        raise SchemeError(
            f"hierarchical: alpha={alpha!r} is not between 0 and 1, 0.5 left out because it gives positions iL + j and "
            "jL + i one row."
        )
    rows = len(table)
    if length > rows**2:
        raise SchemeError(f"hierarchical reaches {rows**2} positions from a table of {rows}, not {length}.")
    new = torch.arange(rows, length, device=table.device)
    wide = _wide(table)
    parts = (wide - alpha * wide[0]) / (1 - alpha)
    above, within = (new // rows).to(wide.device), (new % rows).to(wide.device)
    return torch.cat((table, _narrow(alpha * parts[above] + (1 - alpha) * parts[within], table)))


def random(table: Tensor, length: int, *, seed: int = 0) -> Tensor:
    """New rows normally distributed with the mean and standard deviation that each column of the table has; old
    positions keep their rows.

    Per column, because in trained tables a few columns are far larger than the rest and have means of their own.
    """
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral) or not 0 <= seed < 2**63:
        raise SchemeError(f"random: seed={seed!r} is not an integer from 0 to {2**63 - 1}.")
    if table.is_meta:  # what checks a growth without weights: nothing to draw from, nothing to allocate
        return table.new_empty(length, table.shape[1])
    rows, wide = len(table), _wide(table)
    generator = torch.Generator("cpu").manual_seed(int(seed))
    # Drawn for the old rows too: otherwise a second growth would draw the rows of the first one again.
    drawn = torch.randn(length, table.shape[1], generator=generator, dtype=torch.float64, device="cpu")[rows:]
    # Over all rows rather than all but one: a table of one row has no spread instead of an undefined one.
    new = wide.mean(dim=0) + wide.std(dim=0, correction=0) * drawn.to(wide.device)
    return torch.cat((table, _narrow(new, table)))


def group(table: Tensor, length: int) -> Tensor:
    """`E'[p] = E[floor(p * L / L')]`: neighbours share a row, and old positions change."""
    return table[torch.arange(length, device=table.device) * len(table) // length]


RULES: tuple[Rule, ...] = (interpolate, tile, repeat_last, hierarchical, random, group)

GROWTH: dict[str, Rule] = {rule.__name__: rule for rule in RULES}
"""The rules by the names that `extend` takes; the first is its default."""


def growth_fields(name: str) -> tuple[str, ...]:
    """The fields of a rule."""
    parameters = inspect.signature(GROWTH[name]).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def grow(name: str, table: Tensor, length: int, /, **fields: Any) -> Tensor:
    """`table [L, E]` grown to `[length, E]` by the rule of that name, as a new tensor outside of autograd.

    Raises:
        SchemeError: no such rule or field, a field out of range, or a length that the rule does not reach.
    """
    if name not in GROWTH:
        raise SchemeError(f"There is no growth rule {name!r}; there are {', '.join(GROWTH)}.")
    unknown = [field for field in fields if field not in growth_fields(name)]
    if unknown:
        there_are = ", ".join(growth_fields(name)) or "none"
        raise SchemeError(f"{name} has no field {', '.join(map(repr, unknown))}; its fields are: {there_are}.")
    if length < len(table):
        raise SchemeError(f"{name} grows a table: {length} rows are fewer than the {len(table)} there are.")
    return GROWTH[name](table.detach(), length, **fields)


def _linear(share: Tensor) -> dict[int, Tensor]:
    return {0: 1 - share, 1: share}


def _cubic(share: Tensor) -> dict[int, Tensor]:
    t = share
    return {
        -1: ((-0.5 * t + 1.0) * t - 0.5) * t,
        0: (1.5 * t - 2.5) * t * t + 1.0,
        1: ((-1.5 * t + 2.0) * t + 0.5) * t,
        2: (0.5 * t - 0.5) * t * t,
    }


KERNELS: dict[str, Callable[[Tensor], dict[int, Tensor]]] = {"linear": _linear, "cubic": _cubic}
"""Weights of the neighbouring rows, by their offset from the one below, for shares `[L', 1]` of the way to the next."""


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def _wide(x: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return (x.cpu() if x.device.type == "mps" else x).to(torch.float64)


def _narrow(x: Tensor, like: Tensor) -> Tensor:
    """Rounded before it is moved: the other device may have no float64."""
    return x.to(like.dtype).to(like.device)
