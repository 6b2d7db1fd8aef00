"""Position probe: what the hidden states of each layer know of absolute positions."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.position_probe import PositionProbe
from hf_posswap.report.figures.lines import Line, draw_lines, legend_below, legend_height
from hf_posswap.report.figures.section import Section, grouped, labels_of
from hf_posswap.report.numbers import number, over_documents, plural, with_interval
from hf_posswap.report.style import Theme, mark, name_axes, new_figure
from hf_posswap.report.tables import Table


def position_probe_sections(results: Sequence[PositionProbe]) -> list[Section]:
    """One for each length and size of the sample."""
    return [
        _section(group)
        for group in grouped(results, lambda r: (r.length, r.fitted_tokens, r.tested_documents, r.ridge))
    ]


def _section(group: Sequence[PositionProbe]) -> Section:
    labels, first = labels_of(group), group[0]
    measured = (
        f"A linear probe for each layer on windows of {first.length:,} tokens, fitted on "
        f"{plural(first.fitted_documents, 'document')} ({first.fitted_tokens:,} tokens, ridge {first.ridge:g}), tested "
        f"on {first.tested_documents:,} others. "
        f"{over_documents(layer.interval for result in group for layer in result.layers)} Control: the same probe on "
        "random features of the same width; guess: always the middle."
    )
    return Section(
        name="position-probe",
        title="Position probe",
        caption=f"Mean absolute error of the position read from hidden states; low means that they know it. {measured}",
        tables=(_table(group, labels, measured),),
        draw=lambda theme: _figure(group, labels, theme),
        alt=_alt(group, labels),
    )


def _figure(group: Sequence[PositionProbe], labels: Sequence[str], theme: Theme) -> Any:
    first = group[0]
    facts = (
        f"windows of {first.length:,} tokens, tested on {plural(first.tested_documents, 'document')}, bars: intervals"
    )
    figure, axes = new_figure(
        theme, "Absolute position read from hidden states", facts, 4.4 + legend_height(labels), 1, 1
    )
    panel = axes[0, 0]
    draw_lines(panel, theme, [_line(label, result) for label, result in zip(labels, group, strict=True)])
    for i, control in enumerate(sorted({result.control for result in group})):
        name = "_" if i else "control: random features"
        panel.axhline(control, color=theme.ink, linewidth=1.3, linestyle=":", label=name, zorder=1.6)
    mark(panel, theme, first.guess, "guess: always the middle", vertical=False)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_ylim(bottom=0)
    name_axes(panel, theme, "", "layer (0: what goes into the first)", "mean absolute error (positions)")
    legend_below(figure, panel, theme)
    return figure


def _line(label: str, result: PositionProbe) -> Line:
    layers = result.layers
    return Line(
        label, [each.layer for each in layers], [each.error for each in layers], [each.interval for each in layers]
    )


def _alt(group: Sequence[PositionProbe], labels: Sequence[str]) -> str:
    values = []
    for label, result in zip(labels, group, strict=True):
        best = min(result.layers, key=lambda each: each.error)
        values.append(f"{label} best at layer {best.layer} with {number(best.error)}, control {number(result.control)}")
    return f"Line chart of mean absolute error in positions by layer: {'; '.join(values)}."


def _table(group: Sequence[PositionProbe], labels: Sequence[str], measured: str) -> Table:
    layers = sorted({each.layer for result in group for each in result.layers})
    known = [{each.layer: with_interval(each.error, each.interval) for each in result.layers} for result in group]
    rows = [(str(layer), *(cells.get(layer, "") for cells in known)) for layer in layers]
    rows += [("control", *(number(result.control) for result in group))]
    rows += [("guess", *(number(result.guess) for result in group))]
    return Table("Mean absolute error in positions", measured, ("layer", *labels), tuple(rows))
