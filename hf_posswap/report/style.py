"""How pictures look: two themes, colours that colour-blind readers tell apart (Okabe & Ito), one size."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hf_posswap.errors import PosswapError

WIDTH = 9.0
"""Inches: 900 pixels at 100 dots per inch, where the smallest text is 11 pixels high."""
TITLE, LABEL, SMALL = 10.5, 9.5, 8.5


@dataclass(frozen=True)
class Theme:
    """Colours. `asked` is for the scheme that the picture is about, `others` for what it is compared with."""

    paper: str
    ink: str
    faint: str
    grid: str
    asked: str
    others: tuple[str, ...]
    shades: tuple[float, float]
    """The part of a sequential colour map that stands out from the paper."""


LIGHT = Theme(
    paper="#ffffff",
    ink="#1f2328",
    faint="#59636e",
    grid="#e3e6ea",
    asked="#d55e00",
    others=("#0072b2", "#009e73", "#cc79a7", "#b07c00", "#56b4e9", "#57606a"),
    shades=(0.0, 0.85),
)
DARK = Theme(
    paper="#0d1117",
    ink="#f0f6fc",
    faint="#9aa4af",
    grid="#2b323b",
    asked="#ff7f2a",
    others=("#56b4e9", "#20c997", "#e39ac6", "#f0e442", "#4f8fe0", "#c3ccd6"),
    shades=(0.2, 1.0),
)


def require_matplotlib() -> None:
    """Raises PosswapError when the extra is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PosswapError("Pictures need matplotlib: pip install hf_posswap[plot].") from error


@contextmanager
def fixed_style() -> Iterator[None]:
    """matplotlib's defaults for a while, whatever style the user has set; that one comes back."""
    import matplotlib.style

    with matplotlib.style.context("default"):
        yield


def new_figure(theme: Theme, title: str, subtitle: str, height: float, rows: int, columns: int) -> tuple[Any, Any]:
    """A figure of `height` inches without pyplot's state, and its axes `[rows][columns]`."""
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(WIDTH, height), dpi=100, facecolor=theme.paper, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    words = "\n".join([*textwrap.wrap(title, 100), *textwrap.wrap(subtitle, 100)])
    figure.suptitle(words, color=theme.ink, fontsize=TITLE)
    axes = figure.subplots(rows, columns, squeeze=False)
    for each in axes.flat:
        _dress(each, theme)
    return figure, axes


def _dress(axes: Any, theme: Theme) -> None:
    axes.set_facecolor(theme.paper)
    axes.tick_params(which="both", colors=theme.faint, labelsize=SMALL, labelcolor=theme.ink)
    axes.spines[:].set_color(theme.faint)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=theme.grid, linewidth=0.7)
    axes.set_axisbelow(True)


def name_axes(axes: Any, theme: Theme, title: str, x: str, y: str) -> None:
    """Title above, what the axes measure beside them."""
    axes.set_title(title, color=theme.ink, fontsize=LABEL + 0.5, loc="left")
    axes.set_xlabel(x, color=theme.ink, fontsize=LABEL)
    axes.set_ylabel(y, color=theme.ink, fontsize=LABEL)


def add_legend(axes: Any, theme: Theme, **options: Any) -> None:
    """A legend that hides no line: its ground is the paper's, nearly opaque."""
    style = {"fontsize": SMALL, "labelcolor": theme.ink, "facecolor": theme.paper, "edgecolor": theme.grid}
    space = {"framealpha": 0.9, "columnspacing": 1.2, "handlelength": 1.4}
    axes.legend(**{**style, **space, **options})


def mark(axes: Any, theme: Theme, at: float, name: str, *, vertical: bool) -> Any:
    """A dashed line across the axes, which the legend names: words on the line would hide what is drawn."""
    line = axes.axvline if vertical else axes.axhline
    return line(at, color=theme.ink, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5, label=name)


def shades(theme: Theme, count: int, name: str = "viridis") -> list[Any]:
    """`count` colours in order, each apart from the paper."""
    import matplotlib

    low, high = theme.shades
    steps = [low + (high - low) * i / max(1, count - 1) for i in range(count)]
    return [matplotlib.colormaps[name](step) for step in steps]
