"""Lines with intervals, one for each model, and the axes of lengths that they stand on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_posswap.evaluation.intervals import Interval
from hf_posswap.evaluation.results import Subject
from hf_posswap.report.numbers import listed
from hf_posswap.report.style import Theme, add_legend, mark

MARKERS = "osD^vPX"
FEW = 16
"""Up to here points are drawn as such and intervals as bars; more points make a band."""
MOST_LETTERS = 44


@dataclass(frozen=True)
class Line:
    """Values by `x`, with an interval or None for each."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    intervals: Sequence[Interval | None]
    control_of: str | None = None
    """Makes it dashed, in the colour of the line with this label if there is one."""


def colours(theme: Theme) -> tuple[str, ...]:
    """Of lines, in order; they begin again after the last."""
    return (theme.asked, *theme.others)


def in_picture(label: str) -> str:
    """A label that matplotlib takes as it is written: no formula, no hidden entry, nothing that cannot be printed."""
    shown = "".join(letter for letter in " ".join(label.split()) if letter.isprintable()) or "no name"
    short = shown if len(shown) <= MOST_LETTERS else f"{shown[: MOST_LETTERS - 3]}..."
    return (" " if short.startswith("_") else "") + short.replace("$", r"\$")


def draw_lines(axes: Any, theme: Theme, lines: Iterable[Line]) -> None:
    """Each in its colour, with its own marker, a control in those of its line. Values that are not finite are left
    out: the table has them."""
    lines = list(lines)
    for i, line in zip(_places(lines), lines, strict=True):
        points = [
            (x, y, interval) for x, y, interval in zip(line.x, line.y, line.intervals, strict=True) if math.isfinite(y)
        ]
        colour = colours(theme)[i % len(colours(theme))]
        style: dict[str, Any] = {"color": colour, "linewidth": 1.6, "label": in_picture(line.label)}
        style["linestyle"] = (0, (4, 2)) if line.control_of is not None else "-"
        if len(points) <= FEW:
            style |= {"marker": MARKERS[(i + i // len(colours(theme))) % len(MARKERS)], "markersize": 5}
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], **style)
        _draw_intervals(axes, colour, points)


def _places(lines: Sequence[Line]) -> list[int]:
    """The number of the colour and marker of each line."""
    labels = [line.label for line in lines]
    looks = [line.control_of if line.control_of in labels else line.label for line in lines]
    different = list(dict.fromkeys(looks))
    return [different.index(look) for look in looks]


def _draw_intervals(axes: Any, colour: str, points: list[tuple[float, float, Interval | None]]) -> None:
    known = [(x, each.low, each.high) for x, _, each in points if each and math.isfinite(each.high - each.low)]
    if not known:
        return
    x, low, high = map(list, zip(*known, strict=True))
    if len(points) > FEW:
        axes.fill_between(x, low, high, color=colour, alpha=0.22, linewidth=0)
        return
    axes.vlines(x, low, high, color=colour, linewidth=1.2)
    for ends in (low, high):
        axes.plot(x, ends, color=colour, linestyle="none", marker="_", markersize=7)


def length_axis(axes: Any, lengths: Iterable[int]) -> None:
    """A logarithmic axis with the lengths themselves on it, as many as do not touch."""
    from matplotlib.ticker import FixedLocator, NullLocator

    ordered = sorted({*lengths})
    axes.set_xscale("log", base=2)
    apart = (ordered[-1] / ordered[0]) ** (1 / 10)
    ticks = ordered[:1]
    for length in ordered[1:]:
        if length >= ticks[-1] * apart:
            ticks.append(length)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")


def value_axis(axes: Any, values: Iterable[float], which: str = "y") -> None:
    """Logarithmic where the values differ by more than eight times, with plain numbers either way."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    axis = {"x": axes.xaxis, "y": axes.yaxis}[which]
    drawn = [value for value in values if math.isfinite(value) and value > 0]
    ratio = max(drawn) / min(drawn) if drawn else 1.0
    if ratio < 8:
        axis.set_major_locator(MaxNLocator(7))
    else:
        axes.set(**{f"{which}scale": "log"})
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 100 else (1, 3) if ratio < 1000 else (1,)))
        axis.set_minor_formatter(NullFormatter())
    axis.set_major_formatter("{x:,g}")


def mark_trained(axes: Any, theme: Theme, subjects: Iterable[Subject], longest: float) -> None:
    """The trained lengths up to `longest`, all under one name."""
    lengths = sorted({each.trained_length for each in subjects if each.trained_length})
    shown = [length for length in lengths if length <= longest]
    name = trained_in_words(shown)
    for i, length in enumerate(shown):
        mark(axes, theme, length, "_" if i else name, vertical=True)


def trained_in_words(lengths: Sequence[int]) -> str:
    """`trained length 1,024`."""
    return f"trained length{'s' * (len(lengths) > 1)} {listed([f'{length:,}' for length in lengths])}"


def legend_below(figure: Any, axes: Any, theme: Theme) -> None:
    """One legend for a figure, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        add_legend(figure, theme, handles=handles, loc="outside lower center", ncols=_columns(labels))


def legend_height(labels: Sequence[str]) -> float:
    """Inches that a legend needs below a figure for these labels and two marks."""
    return 0.19 * -(-(len(labels) + 2) // _columns(labels))


def _columns(labels: Sequence[str]) -> int:
    longest = max(len(in_picture(label)) for label in labels)
    return 2 if longest > 34 else 3 if longest > 22 else 4
