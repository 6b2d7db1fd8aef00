"""LongPPL beside the perplexity on all tokens."""

import math
from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.long_ppl import ITSELF, LongPpl
from hf_posswap.report.figures.dots import draw_dots, name_rows, rows_height
from hf_posswap.report.figures.lines import in_picture, legend_below, value_axis
from hf_posswap.report.figures.section import Section, grouped, labels_of
from hf_posswap.report.numbers import documents_read, number, over_documents, percent, with_interval
from hf_posswap.report.style import Theme, name_axes, new_figure
from hf_posswap.report.tables import Table


def long_ppl_sections(results: Sequence[LongPpl]) -> list[Section]:
    """One for each choice of key tokens; a model that chose its own is compared with no other."""

    def choice(result: LongPpl) -> Any:
        return (
            id(result) if result.evaluator == ITSELF else result.evaluator,
            result.length,
            result.short_length,
            result.stride,
            result.gain_threshold,
            result.likelihood_threshold,
        )

    return [_section(group) for group in grouped(results, choice)]


def _section(group: Sequence[LongPpl]) -> Section:
    labels, first = labels_of(group), group[0]
    intervals = [each for result in group for each in (result.interval, result.all_interval)]
    measured = (
        f"Key tokens (Fang et al. 2024) are those that {first.evaluator} finds likelier by more than "
        f"{first.gain_threshold:g} nats with up to {first.length:,} tokens of context than with "
        f"{first.short_length - first.stride:,} to {first.short_length - 1:,}, and gives a log-likelihood above "
        f"{first.likelihood_threshold:g} nats. "
        f"{documents_read(first.documents, first.skipped)}. {over_documents(intervals)}"
    )
    return Section(
        name="long-ppl",
        title="LongPPL: perplexity on tokens that need the long context",
        caption=f"Perplexity on key tokens beside that on all tokens; lower is better. {measured}",
        tables=(_table(group, labels, measured),),
        draw=lambda theme: _figure(group, labels, theme),
        alt=_alt(group, labels),
    )


def _figure(group: Sequence[LongPpl], labels: Sequence[str], theme: Theme) -> Any:
    chooser = in_picture(group[0].evaluator)
    facts = f"{group[0].length:,} tokens, key tokens chosen by {chooser}, bars: intervals over documents"
    figure, axes = new_figure(theme, "LongPPL", facts, rows_height(len(group)), 1, 1)
    panel, keys, rest = axes[0, 0], [_finite(r.perplexity) for r in group], [r.all_perplexity for r in group]
    draw_dots(panel, theme.others[0], "all tokens", rest, [r.all_interval for r in group], filled=False)
    draw_dots(panel, theme.asked, "key tokens", keys, [r.interval for r in group])
    name_rows(panel, theme, labels)
    value_axis(panel, keys + rest, "x")
    name_axes(panel, theme, "", "perplexity", "")
    legend_below(figure, panel, theme)
    return figure


def _finite(perplexity: float | None) -> float:
    return math.nan if perplexity is None else perplexity


def _alt(group: Sequence[LongPpl], labels: Sequence[str]) -> str:
    values = [
        f"{label} {number(_finite(r.perplexity))} on key tokens, {number(r.all_perplexity)} on all"
        for label, r in zip(labels, group, strict=True)
    ]
    return f"Dots of perplexity with intervals: {'; '.join(values)}."


def _table(group: Sequence[LongPpl], labels: Sequence[str], measured: str) -> Table:
    rows = [
        (
            label,
            "no key tokens" if r.perplexity is None else with_interval(r.perplexity, r.interval),
            with_interval(r.all_perplexity, r.all_interval),
            f"{r.key_tokens:,}",
            f"{r.tokens:,}",
            percent(r.key_tokens / r.tokens),
        )
        for label, r in zip(labels, group, strict=True)
    ]
    columns = ("model", "perplexity, key tokens", "perplexity, all tokens", "key tokens", "tokens", "share")
    return Table(f"LongPPL at {group[0].length:,} tokens", measured, columns, tuple(rows))
