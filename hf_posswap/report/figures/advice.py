"""Advice: the ways to a longer context that were tried, best first."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.advice import Advice, Candidate
from hf_posswap.report.figures.dots import draw_dots, name_rows, rows_height
from hf_posswap.report.figures.lines import in_picture, legend_below, value_axis
from hf_posswap.report.figures.schemes import in_short
from hf_posswap.report.figures.section import Section, labels_of
from hf_posswap.report.numbers import number, over_documents, plural, with_interval
from hf_posswap.report.style import Theme, name_axes, new_figure
from hf_posswap.report.tables import Table


def advice_sections(results: Sequence[Advice]) -> list[Section]:
    """One for each."""
    return [_section(result, label) for result, label in zip(results, labels_of(results), strict=True)]


def _section(result: Advice, label: str) -> Section:
    measure = _measure(result)
    measured = (
        f"{result.subject.model}, trained at {result.trained_length:,} tokens, read "
        f"{plural(result.documents, 'document')} ({result.tokens:,} tokens scored) with each extension, without "
        f"training; as it is, its {measure} at the trained length is {number(result.short_perplexity)}. "
        f"{over_documents((each.interval for each in result.candidates), result.over)} "
        f"{'Not tried: ' + '; '.join(result.untried) + '.' if result.untried else 'All methods that fit were tried.'}"
    )
    names = [_named(each) for each in result.candidates]
    return Section(
        name="advice",
        title=f"Ways to {result.length:,} tokens: {label}",
        caption=f"{measure.capitalize()} at {result.length:,} tokens and at the trained length, best first. {measured}",
        tables=(_ranking(result, names, measured), _next_steps(result, names), _commands(result, names)),
        draw=lambda theme: _figure(result, names, theme),
        alt=_alt(result, names),
    )


def _measure(result: Advice) -> str:
    return result.measure.replace("_", "-")


def _named(candidate: Candidate) -> str:
    options = ", ".join(f"{name}={in_short(value)}" for name, value in candidate.options.items())
    return candidate.method + (f" ({options})" if options else " (as it is)" if candidate.method == "none" else "")


def _figure(result: Advice, names: Sequence[str], theme: Theme) -> Any:
    title = f"Ways to {result.length:,} tokens, without training"
    bars = f", bars: intervals over {result.over}" if any(each.interval for each in result.candidates) else ""
    facts = f"{in_picture(result.subject.model)}, {plural(result.documents, 'document')}{bars}"
    candidates = result.candidates
    figure, axes = new_figure(theme, title, facts, rows_height(len(names)), 1, 1)
    panel, long, short = axes[0, 0], [c.perplexity for c in candidates], [c.short_perplexity for c in candidates]
    at_trained = f"at the trained {result.trained_length:,}"
    draw_dots(panel, theme.others[0], at_trained, short, [None] * len(short), filled=False)
    draw_dots(panel, theme.asked, f"at {result.length:,} tokens", long, [c.interval for c in candidates])
    name_rows(panel, theme, names)
    value_axis(panel, long + short, "x")
    name_axes(panel, theme, "", _measure(result), "")
    legend_below(figure, panel, theme)
    return figure


def _alt(result: Advice, names: Sequence[str]) -> str:
    values = [f"{name} {number(each.perplexity)}" for name, each in zip(names, result.candidates, strict=True)]
    return f"Dots of {_measure(result)} at {result.length:,} tokens with intervals, best first: {'; '.join(values)}."


def _ranking(result: Advice, names: Sequence[str], measured: str) -> Table:
    rows = []
    for name, each in zip(names, result.candidates, strict=True):
        over = f"[{number(each.over_best.low)}, {number(each.over_best.high)}]" if each.over_best else ""
        rows.append((name, with_interval(each.perplexity, each.interval), over, number(each.short_perplexity)))
    columns = ("method", f"{_measure(result)} at {result.length:,}", "over the best", f"at {result.trained_length:,}")
    paired = f"Over the best: interval of the ratio to the best one's perplexity, paired, over {result.over}."
    return Table(f"{_measure(result).capitalize()} without training", f"{paired} {measured}", columns, tuple(rows))


def _next_steps(result: Advice, names: Sequence[str]) -> Table:
    rows = [(name, each.fine_tuning) for name, each in zip(names, result.candidates, strict=True)]
    columns = ("method", "fine-tuning it would still need")
    return Table("What each method needs next", "", columns, tuple(rows), words=(1,))


def _commands(result: Advice, names: Sequence[str]) -> Table:
    rows = [(name, each.command) for name, each in zip(names, result.candidates, strict=True) if each.command]
    return Table("Commands", "", ("method", "command that applies it"), tuple(rows), words=(1,))
