"""Values by row and column as colours, with the numbers in the cells where they fit."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.report.style import SMALL, Theme

MOST_NUMBERED = 16
"""Columns of a panel up to which a number fits into a cell."""


def heatmap(
    figure: Any, axes: Any, theme: Theme, values: Sequence[Sequence[float]], meaning: str, **options: Any
) -> Any:
    """`values` by row and column; a bar says what the colours mean. Cells of nan are left as paper."""
    import numpy as np

    table = np.ma.masked_invalid(np.asarray(values, dtype=float))
    style = {"cmap": "cividis", "aspect": "auto", "interpolation": "nearest"}
    image = axes.imshow(table, **{**style, **options})
    axes.grid(False)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.set_label(meaning, color=theme.ink, fontsize=SMALL)
    bar.outline.set_edgecolor(theme.faint)
    bar.ax.tick_params(colors=theme.faint, labelcolor=theme.ink, labelsize=SMALL)
    return image


def write_in_cells(axes: Any, image: Any, texts: Sequence[Sequence[str]]) -> None:
    """A text in every cell, black or white, whichever stands out from the colour under it."""
    values = image.get_array()
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            ink = "#000000" if _luminance(image.to_rgba(values[i, j])) > 0.18 else "#ffffff"
            axes.text(j, i, text, ha="center", va="center", fontsize=SMALL, color=ink)


def mark_column(axes: Any, column: int) -> None:
    """A dashed line in front of a column, seen on any colour."""
    axes.axvline(column - 0.5, color="#ffffff", linewidth=2.6)
    axes.axvline(column - 0.5, color="#000000", linewidth=1.2, linestyle=(0, (4, 3)))


def name_rows_and_columns(axes: Any, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Ticks with these names."""
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)


def _luminance(colour: Sequence[float]) -> float:
    """Relative luminance as in WCAG 2; above 0.18 black has the better contrast."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
