"""Where attention goes: some heads by distance, all heads by what they attend to, and the frequencies they use."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from hf_posswap.evaluation.attention_profile import AttentionProfile, HeadProfile
from hf_posswap.report.figures.heatmaps import heatmap, mark_column
from hf_posswap.report.figures.lines import Line, draw_lines, in_picture
from hf_posswap.report.figures.section import Section, labels_of
from hf_posswap.report.numbers import number, percent, plural
from hf_posswap.report.style import Theme, add_legend, mark, name_axes, new_figure
from hf_posswap.report.tables import Table

KINDS: dict[str, Callable[[HeadProfile], float]] = {
    "itself": lambda head: head.diagonal,
    "previous token": lambda head: head.previous,
    "first token": lambda head: head.first,
    "far away": lambda head: head.mean_distance,
}
"""What a head may be the purest example of."""

NO_WEIGHT = 1e-9
"""Where the axis of weights ends."""


def attention_profile_sections(results: Sequence[AttentionProfile]) -> list[Section]:
    """One for each model."""
    return [_section(result, label) for result, label in zip(results, labels_of(results), strict=True)]


def _section(result: AttentionProfile, label: str) -> Section:
    measured = (
        f"Means over queries: {plural(result.windows, 'window')} of {result.length:,} tokens from "
        f"{plural(result.documents, 'document')}."
    )
    frequencies = (
        " Frequency use: the share of each rotary pair in the size of the scores, mean over a layer's heads; pair 0 "
        "turns fastest, and those right of the dashes make no full turn in the trained length."
        if result.inv_freq
        else ""
    )
    return Section(
        name="attention-profile",
        title=f"Attention by distance: {label}",
        caption=(
            "Above, the heads that give most weight to the token itself, the token before and the first token, and the "
            "one that looks furthest: weight and score by distance. Below, all heads: the mean distance that they "
            f"attend to, and their weight on the token before.{frequencies} {measured}"
        ),
        tables=(_table(result, label, measured),),
        draw=lambda theme: _figure(result, label, theme),
        alt=_alt(result),
    )


def purest(result: AttentionProfile) -> dict[str, HeadProfile]:
    """For each kind the head that is most of it; one head may stand for several."""
    return {kind: max(result.heads, key=value) for kind, value in KINDS.items()}


def _figure(result: AttentionProfile, label: str, theme: Theme) -> Any:
    layers = 1 + max(head.layer for head in result.heads)
    low = min(5.0, 2.2 + 0.09 * layers)
    figure, axes = new_figure(theme, f"Attention by distance: {in_picture(label)}", _facts(result), 4.4 + 2 * low, 3, 2)
    _by_distance(axes[0, 0], theme, result, "Weight on one key", "attention weight", lambda head: head.weight)
    axes[0, 0].set_yscale("log", nonpositive="mask")
    least = min((weight for head in purest(result).values() for weight in head.weight if weight > 0), default=1.0)
    axes[0, 0].set_ylim(max(NO_WEIGHT, least / 2), 2.0)
    _by_distance(axes[0, 1], theme, result, "Score before the softmax", "score", lambda head: head.score)
    add_legend(axes[0, 1], theme)
    _by_head(figure, axes[1, 0], theme, result, "Mean distance attended to", "tokens", lambda h: h.mean_distance)
    _by_head(figure, axes[1, 1], theme, result, "Weight on the token before", "%", lambda h: 100 * h.previous)
    _by_head(figure, axes[2, 0], theme, result, "Weight on the first token", "%", lambda h: 100 * h.first)
    if result.inv_freq:
        _by_pair(figure, axes[2, 1], theme, result)
    else:
        _by_head(figure, axes[2, 1], theme, result, "Weight on the token itself", "%", lambda h: 100 * h.diagonal)
    return figure


def _facts(result: AttentionProfile) -> str:
    return f"{plural(result.windows, 'window')} of {result.length:,} tokens, {plural(result.documents, 'document')}"


def _by_distance(
    panel: Any,
    theme: Theme,
    result: AttentionProfile,
    title: str,
    y: str,
    values: Callable[[HeadProfile], Sequence[float | None]],
) -> None:
    nothing = [None] * len(result.distances)
    lines = [
        Line(f"{kind}: layer {head.layer}, head {head.head}", result.distances, _numbers(values(head)), nothing)
        for kind, head in purest(result).items()
    ]
    draw_lines(panel, theme, lines)
    panel.set_xscale("symlog", base=2, linthresh=1)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.tick_params(axis="x", labelrotation=45)
    trained = result.subject.trained_length
    if trained and trained < result.length:
        mark(panel, theme, trained, f"trained length {trained:,}", vertical=True)
    name_axes(panel, theme, title, "distance (tokens)", y)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _by_head(
    figure: Any,
    panel: Any,
    theme: Theme,
    result: AttentionProfile,
    title: str,
    unit: str,
    value: Callable[[HeadProfile], float],
) -> None:
    known = {(head.layer, head.head): value(head) for head in result.heads}
    rows, columns = (1 + max(key[i] for key in known) for i in (0, 1))
    values = [[known.get((i, j), math.nan) for j in range(columns)] for i in range(rows)]
    heatmap(figure, panel, theme, values, unit, vmin=0)
    for axis in (panel.xaxis, panel.yaxis):
        axis.get_major_locator().set_params(integer=True)
    name_axes(panel, theme, title, "head", "layer")


def _by_pair(figure: Any, panel: Any, theme: Theme, result: AttentionProfile) -> None:
    layers: dict[int, list[Sequence[float]]] = {}
    for head in result.heads:
        layers.setdefault(head.layer, []).append(head.frequencies)
    values = [
        [100 * sum(pair) / len(heads) for pair in zip(*heads, strict=True)]
        for heads in (layers[layer] for layer in sorted(layers))
    ]
    heatmap(figure, panel, theme, values, "%", vmin=0)
    for axis in (panel.xaxis, panel.yaxis):
        axis.get_major_locator().set_params(integer=True)
    trained = result.subject.trained_length
    slow = [i for i, turn in enumerate(result.inv_freq) if trained and turn * trained < 2 * math.pi]
    if slow:
        mark_column(panel, slow[0])
    name_axes(panel, theme, "Use of rotary frequencies", "pair of dimensions", "layer")


def _alt(result: AttentionProfile) -> str:
    named = [f"{kind}: layer {head.layer}, head {head.head}" for kind, head in purest(result).items()]
    return (
        "Attention weight and score by distance for four heads, and heatmaps over layers and heads. Purest heads: "
        f"{'; '.join(named)}."
    )


def _table(result: AttentionProfile, label: str, measured: str) -> Table:
    rows = []
    for kind, head in purest(result).items():
        weights = (percent(head.diagonal), percent(head.previous), percent(head.first), number(head.mean_distance))
        rows.append((kind, str(head.layer), str(head.head), *weights))
    columns = ("most of", "layer", "head", "itself", "token before", "first token", "mean distance (tokens)")
    return Table(f"Purest heads of {label} by where their weight goes", measured, columns, tuple(rows))
