"""Rotary encodings: how fast each pair turns beside all other rotary schemes, and what that does to inner products."""

import math
from functools import singledispatch
from typing import Any

import torch

from hf_posswap.report.picture import Picture, draw
from hf_posswap.report.scores import TRAINED, equal_vectors, line_colours, random_vectors
from hf_posswap.report.style import LABEL, SMALL, add_legend, mark, name_axes
from hf_posswap.report.variants import Variant, base_label, factor_of, plain_rope, rotary_variants
from hf_posswap.schemes.base import RotaryEncoding
from hf_posswap.schemes.length_dependent import CallRotation, SegmentedRotation, doublings

MOST_SEGMENTS = 6
"""More lines than this of one scheme cannot be told apart; first and last are always among them."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))


@draw.register(RotaryEncoding)
@draw.register(SegmentedRotation)
def draw_rotation(encoding: Any, picture: Picture) -> Any:
    """Frequencies, wavelengths and ratio to RoPE by pair; inner products by distance; a legend of their own."""
    longest = picture.extended_length()
    geometry, factor = picture.geometry, factor_of(picture.scheme, picture.geometry, longest)
    by = " by segment" if isinstance(encoding, SegmentedRotation) else ""
    facts = f"rotary{by}, head_dim {geometry.head_dim}, trained length {geometry.trained_length:,}"
    figure, axes = picture.figure(f"{facts}; rescalings beside it extend {factor:g} times", 10.6, 3, 2)
    lines, others = asked_lines(encoding, picture, longest), rotary_variants(picture.scheme, geometry, factor)
    _frequencies(axes[0, 0], picture, lines, others)
    _wavelengths(axes[0, 1], picture, lines, others)
    _ratios(axes[1, 0], picture, lines, others)
    _legend(axes[1, 1], axes[0, 0], picture)
    equal_vectors(axes[2, 0], picture, [(variant.label, last) for variant, last in lines], encoding)
    random_vectors(axes[2, 1], picture, encoding, longest)
    return figure


@singledispatch
def asked_lines(encoding: Any, picture: Picture, longest: int) -> list[tuple[Variant, int]]:
    """The scheme's frequencies, and the position of the query that has them: one line, or one for each length."""
    return [(Variant(picture.scheme.name, encoding.inv_freq, picture.geometry.head_dim // 2), longest)]


@asked_lines.register
def _(encoding: CallRotation, picture: Picture, longest: int) -> list[tuple[Variant, int]]:
    lengths = _few(doublings(min(encoding.scheme.original, longest), longest))
    rows = encoding.scheme.frequencies(torch.tensor(lengths, dtype=torch.float64), picture.geometry)[0]
    name, pairs = picture.scheme.name, picture.geometry.head_dim // 2
    return [(Variant(f"{name}, call of {n:,}", row, pairs), n - 1) for n, row in zip(lengths, rows, strict=True)]


@asked_lines.register
def _(encoding: SegmentedRotation, picture: Picture, longest: int) -> list[tuple[Variant, int]]:
    starts = [0, *encoding.ends.tolist()]
    shown = _few([i for i, start in enumerate(starts) if start < longest])
    ends = {i: starts[i + 1] if i + 1 < len(starts) else longest for i in shown}
    name, pairs = picture.scheme.name, picture.geometry.head_dim // 2
    labels = {i: f"{name}, from {starts[i]:,}" for i in shown}
    return [(Variant(labels[i], encoding.inv_freq[i], pairs), min(ends[i], longest) - 1) for i in shown]


def _few(items: list[Any]) -> list[Any]:
    if len(items) <= MOST_SEGMENTS:
        return items
    return [items[round(i * (len(items) - 1) / (MOST_SEGMENTS - 1))] for i in range(MOST_SEGMENTS)]


Lines = list[tuple[Variant, int]]


def _by_pair(axes: Any, picture: Picture, lines: Lines, others: list[Variant], value: Any) -> None:
    """`value(variant)`, numbers by pair, of all: the asked-for ones thick, under what may coincide with them."""
    theme = picture.theme
    for i, variant in enumerate(others):
        colour, dashes = theme.others[i % len(theme.others)], DASHES[(i + i // len(theme.others)) % len(DASHES)]
        axes.plot(value(variant), color=colour, linestyle=dashes, linewidth=1.2, label=variant.label)
    for (variant, _), colour in zip(lines, line_colours(theme, len(lines)), strict=True):
        axes.plot(value(variant), color=colour, linewidth=4.0, label=variant.label, zorder=1.9)
    axes.set_yscale("log", nonpositive="mask")
    axes.xaxis.get_major_locator().set_params(integer=True)


def _frequencies(axes: Any, picture: Picture, lines: Lines, others: list[Variant]) -> None:
    _by_pair(axes, picture, lines, others, lambda v: v.inv_freq.tolist())
    name_axes(axes, picture.theme, "Inverse frequency", "pair of dimensions", "radians per token")


def _wavelengths(axes: Any, picture: Picture, lines: Lines, others: list[Variant]) -> None:
    """Tokens for a full turn on the left; on the right how many turns that is in the trained length."""
    length, theme = picture.geometry.trained_length, picture.theme
    _by_pair(axes, picture, lines, others, lambda v: (2 * math.pi / v.inv_freq).tolist())
    line = mark(axes, theme, length, f"{TRAINED}, {length:,}: one turn", vertical=False)
    add_legend(axes, theme, handles=[line], loc="upper left")
    _turns_axis(axes, picture)
    name_axes(axes, theme, f"Wavelength{_fully_turning(lines, length)}", "pair of dimensions", "tokens")


def _fully_turning(lines: Lines, length: int) -> str:
    """How many pairs make a full turn in the trained length; nothing where that depends on the position."""
    if len(lines) > 1:
        return ""
    variant = lines[0][0]
    return f": {int((variant.inv_freq * length >= 2 * math.pi).sum())} of {variant.pairs} pairs make a full turn"


def _turns_axis(axes: Any, picture: Picture) -> None:
    """On the right of wavelengths, how many fit."""
    length, theme = picture.geometry.trained_length, picture.theme
    right = axes.twinx()
    right.set_yscale("log")
    right.set_ylim(*(length / end for end in axes.get_ylim()))
    right.set_ylabel("full turns in the trained length", color=theme.ink, fontsize=LABEL)
    right.tick_params(which="both", colors=theme.faint, labelcolor=theme.ink, labelsize=SMALL)
    right.spines[:].set_color(theme.faint)
    right.spines[["top", "left"]].set_visible(False)


def _ratios(axes: Any, picture: Picture, lines: Lines, others: list[Variant]) -> None:
    from matplotlib.ticker import LogLocator

    rope = plain_rope(picture.scheme, picture.geometry)
    plain = rope.inv_freq(picture.geometry)

    def ratio(variant: Variant) -> list[float]:
        count = min(len(plain), len(variant.inv_freq))
        return (plain[:count] / variant.inv_freq[:count]).tolist()

    _by_pair(axes, picture, lines, others, ratio)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    name_axes(axes, picture.theme, f"Slower than {base_label(rope)}", "pair of dimensions", "times longer wavelength")


def _legend(axes: Any, drawn: Any, picture: Picture) -> None:
    """The asked-for first, in a cell of its own: a dozen lines leave no room among them."""
    axes.set_axis_off()
    handles, labels = drawn.get_legend_handles_labels()
    order = sorted(range(len(handles)), key=lambda i: handles[i].get_linewidth() < 2)
    theme = picture.theme
    axes.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="center",
        fontsize=9,
        labelcolor=theme.ink,
        facecolor=theme.paper,
        edgecolor=theme.grid,
        handlelength=3,
    )
