"""NLL by position in the window: where a model breaks."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.nll_by_position import NllByPosition
from hf_posswap.report.figures.lines import Line, draw_lines, legend_below, legend_height, mark_trained
from hf_posswap.report.figures.perplexity import BOS
from hf_posswap.report.figures.section import Section, grouped, labels_of, subjects_of
from hf_posswap.report.numbers import documents_read, number, over_documents, plural, with_interval
from hf_posswap.report.style import Theme, name_axes, new_figure
from hf_posswap.report.tables import Table


def nll_by_position_sections(results: Sequence[NllByPosition]) -> list[Section]:
    """One for each length and BOS handling."""
    return [_section(group) for group in grouped(results, lambda r: (r.length, r.bos))]


def _section(group: Sequence[NllByPosition]) -> Section:
    labels, first = labels_of(group), group[0]
    measured = (
        f"Mean over {plural(first.windows, 'window')} of {first.length:,} tokens from "
        f"{documents_read(first.documents, first.skipped)}; BOS: {BOS[first.bos]}. "
        f"{over_documents(bucket.interval for result in group for bucket in result.buckets)}"
    )
    return Section(
        name="nll-by-position",
        title="NLL by position",
        caption=f"A model that breaks past its trained length rises there; one that uses its context falls. {measured}",
        tables=(_table(group, labels, measured),),
        draw=lambda theme: _figure(group, labels, theme),
        alt=_alt(group, labels),
    )


def _figure(group: Sequence[NllByPosition], labels: Sequence[str], theme: Theme) -> Any:
    first = group[0]
    facts = f"windows of {first.length:,} tokens, {plural(first.documents, 'document')}, intervals over documents"
    figure, axes = new_figure(theme, "NLL by position in the window", facts, 4.4 + legend_height(labels), 1, 1)
    panel = axes[0, 0]
    draw_lines(panel, theme, [_line(label, result) for label, result in zip(labels, group, strict=True)])
    panel.xaxis.set_major_formatter("{x:,.0f}")
    panel.set_xlim(0, first.length)
    mark_trained(panel, theme, subjects_of(group), first.length)
    name_axes(panel, theme, "", "position (tokens)", "NLL (nats per token)")
    legend_below(figure, panel, theme)
    return figure


def _line(label: str, result: NllByPosition) -> Line:
    buckets = result.buckets
    middles = [(bucket.start + bucket.stop - 1) / 2 for bucket in buckets]
    return Line(label, middles, [bucket.nll for bucket in buckets], [bucket.interval for bucket in buckets])


def _alt(group: Sequence[NllByPosition], labels: Sequence[str]) -> str:
    ends = [
        f"{label} from {number(r.buckets[0].nll)} in the first bucket to {number(r.buckets[-1].nll)} in the last"
        for label, r in zip(labels, group, strict=True)
    ]
    return f"Line chart of NLL in nats per token against position up to {group[0].length:,}: {'; '.join(ends)}."


def _table(group: Sequence[NllByPosition], labels: Sequence[str], measured: str) -> Table:
    found: dict[tuple[int, int], dict[str, str]] = {}
    for label, result in zip(labels, group, strict=True):
        for bucket in result.buckets:
            cells = found.setdefault((bucket.start, bucket.stop), {"tokens": f"{bucket.tokens:,}"})
            cells[label] = with_interval(bucket.nll, bucket.interval)
    rows = [
        (f"{start:,} to {stop - 1:,}", cells["tokens"], *(cells.get(label, "") for label in labels))
        for (start, stop), cells in sorted(found.items())
    ]
    return Table("NLL by position, in nats per token", measured, ("position", "tokens", *labels), tuple(rows))
