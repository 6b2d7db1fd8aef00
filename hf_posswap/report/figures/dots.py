"""Dots with intervals on named rows: what is ranked, or measured once for each model."""

import math
from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.intervals import Interval
from hf_posswap.report.figures.lines import in_picture
from hf_posswap.report.style import SMALL, Theme


def rows_height(count: int) -> float:
    """Inches of a figure with so many rows."""
    return 1.7 + 0.34 * max(count, 3)


def draw_dots(
    axes: Any,
    colour: Any,
    label: str,
    values: Sequence[float],
    intervals: Sequence[Interval | None],
    *,
    filled: bool = True,
) -> None:
    """A dot for every row, the first on top; what is not finite has no dot."""
    for row, interval in enumerate(intervals):
        if interval and math.isfinite(interval.high):
            axes.hlines(row, interval.low, interval.high, color=colour, linewidth=2.4, alpha=0.6)
    rows = [row for row, value in enumerate(values) if math.isfinite(value)]
    style = {"linestyle": "none", "marker": "o" if filled else "D", "markersize": 6.5, "color": colour}
    style["markerfacecolor"] = colour if filled else "none"
    axes.plot([values[row] for row in rows], rows, label=label, **style)


def name_rows(axes: Any, theme: Theme, names: Sequence[str]) -> None:
    """The names beside the rows, and a plain axis below."""
    axes.set_yticks(range(len(names)), [in_picture(name) for name in names], fontsize=SMALL, color=theme.ink)
    axes.set_ylim(len(names) - 0.5, -0.5)
