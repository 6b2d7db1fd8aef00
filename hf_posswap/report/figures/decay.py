"""Decay: what a scheme alone does to scores by distance."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.decay import Decay
from hf_posswap.report.biases import DEEPEST
from hf_posswap.report.figures.lines import in_picture
from hf_posswap.report.figures.schemes import scheme_label
from hf_posswap.report.figures.section import Section, grouped
from hf_posswap.report.numbers import number
from hf_posswap.report.style import Theme, add_legend, mark, name_axes, new_figure, shades
from hf_posswap.report.tables import Table

AXES = {"bias": "added to the score", "inner product": "q·k / head_dim", "similarity": "cosine"}
MEANINGS = {
    "bias": "The bias that is added to attention scores",
    "inner product": "The inner product of a query and a key of ones over head_dim, 1 where nothing turns",
    "similarity": "The mean cosine between the input encodings of positions that are so far apart",
}
MOST_NAMED = 8
"""Lines that a legend has room for; more are heads, told apart by their order from dark to bright."""


def decay_sections(results: Sequence[Decay]) -> list[Section]:
    """One for each kind of value."""
    return [_section(group) for group in grouped(results, lambda r: (r.what, r.causal, r.trained_length))]


def _section(group: Sequence[Decay]) -> Section:
    first, names = group[0], [scheme_label(result.scheme) for result in group]
    what = (
        f"{MEANINGS[first.what]}, by query position minus key position; {'decoder' if first.causal else 'encoder'}, "
        f"trained length {first.trained_length:,}. Computed from the formulas, no model."
    )
    lines = "A line for each head that differs from the others, the first head darkest."
    return Section(
        name="decay",
        title=f"Decay by distance: {first.what}",
        caption=f"{what} {lines}",
        tables=(_table(group, what),),
        draw=lambda theme: _figure(group, names, theme),
        alt=f"Lines of the {first.what} by distance for {', '.join(names)}.",
    )


def _figure(group: Sequence[Decay], names: Sequence[str], theme: Theme) -> Any:
    columns = min(2, len(group))
    rows = -(-len(group) // columns)
    facts = f"from the formulas, trained length {group[0].trained_length:,}"
    title = f"Decay by distance: {group[0].what}"
    figure, axes = new_figure(theme, title, facts, 1.2 + 3.2 * rows, rows, columns)
    for result, name, panel in zip(group, names, axes.flat, strict=False):
        _panel(panel, theme, result, name)
    for panel in axes.flat[len(group) :]:
        panel.set_axis_off()
    return figure


def _panel(panel: Any, theme: Theme, result: Decay, name: str) -> None:
    colours = shades(theme, len(result.heads)) if len(result.heads) > 1 else [theme.asked]
    for values, label, colour in zip(result.heads, result.labels, colours, strict=True):
        panel.plot(result.distances, values, color=colour, linewidth=1.4, label=in_picture(label))
    panel.set_xscale("symlog", linthresh=1)
    panel.xaxis.set_major_formatter("{x:,.0f}")
    if result.trained_length <= max(result.distances):
        mark(panel, theme, result.trained_length, "trained length", vertical=True)
    if len(result.heads) <= MOST_NAMED:
        add_legend(panel, theme)
    cut = result.what == "bias" and min(map(min, result.heads)) < DEEPEST
    if cut:
        panel.set_ylim(DEEPEST, max(1.0, 1.05 * max(map(max, result.heads))))
    what = AXES[result.what] + (f" (cut at {DEEPEST:g})" if cut else "")
    name_axes(panel, theme, in_picture(name), "distance (tokens)", what)


def _table(group: Sequence[Decay], what: str) -> Table:
    """The mean over heads at the distances nearest to powers of two."""
    rows = []
    for result in group:
        for at in _doublings(result.distances):
            values = [head[at] for head in result.heads]
            rows.append((scheme_label(result.scheme), f"{result.distances[at]:,}", number(sum(values) / len(values))))
    return Table("Decay by distance", f"{what} Mean over heads.", ("scheme", "distance", group[0].what), tuple(rows))


def _doublings(distances: Sequence[int]) -> list[int]:
    """Indices of what is nearest to 0 and plus and minus 1, 2, 4 and so on."""
    powers = [2**i for i in range(max(map(abs, distances)).bit_length())]
    wanted = [*(-power for power in reversed(powers)), 0, *powers]
    within = [each for each in wanted if min(distances) <= each <= max(distances)]
    return sorted({min(range(len(distances)), key=lambda i: abs(distances[i] - each)) for each in within})
