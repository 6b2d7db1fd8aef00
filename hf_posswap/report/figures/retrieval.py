"""Retrieval: needles as accuracy by depth and length, passkeys and RULER's tasks as accuracy by length."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.intervals import Interval
from hf_posswap.evaluation.retrieval.results import Cell, RetrievalResult
from hf_posswap.report.figures.heatmaps import (
    MOST_NUMBERED,
    heatmap,
    mark_column,
    name_rows_and_columns,
    write_in_cells,
)
from hf_posswap.report.figures.lines import (
    Line,
    draw_lines,
    in_picture,
    legend_below,
    legend_height,
    length_axis,
    mark_trained,
    trained_in_words,
)
from hf_posswap.report.figures.section import Section, grouped, labels_of, subjects_of
from hf_posswap.report.numbers import listed, number, percent, percent_with_interval, plural
from hf_posswap.report.style import SMALL, Theme, mark, name_axes, new_figure
from hf_posswap.report.tables import Table

TITLES = {"passkey": "Passkey retrieval", "needle": "Needle in a haystack", "ruler_lite": "RULER, light form"}


def retrieval_sections(results: Sequence[RetrievalResult]) -> list[Section]:
    """One for each task with its haystack and form of answer."""
    return [
        _section(group)
        for group in grouped(results, lambda r: (r.task, r.haystack, r.alphabet, r.answer_tokens, r.bos))
    ]


def _section(group: Sequence[RetrievalResult]) -> Section:
    labels, task, measured = labels_of(group), group[0].task, _measured(group)
    draw = _maps if task == "needle" else _curves
    seen = (
        "Share of trials answered right by depth (0%: the needle opens the context) and length; in the cells whole "
        "percent."
        if task == "needle"
        else "Left the share of trials answered right, right the share of answer tokens ranked first, with its "
        "chance dotted; all depths together."
    )
    return Section(
        name=task.replace("_", "-"),
        title=TITLES[task],
        caption=f"{seen} {measured}",
        tables=(_table(group, labels, measured),),
        draw=lambda theme: draw(group, labels, theme),
        alt=_alt(group, labels),
    )


def _measured(group: Sequence[RetrievalResult]) -> str:
    first = group[0]
    trials = {cell.trials for result in group for cell in result.cells}
    span = f"{min(trials):,}" if len(trials) == 1 else f"{min(trials):,} to {max(trials):,}"
    seeds = listed(sorted({str(result.seed) for result in group}))
    level = first.cells[0].interval.level
    return (
        f"Haystack: {first.haystack.rstrip('.')}. Trials for each task, length and depth: {span}; seed {seeds}. "
        f"Answers have {plural(first.answer_tokens, 'token')} ({first.alphabet}); {'a' if first.bos else 'no'} BOS in "
        f"front of the prompt. A trial is right when greedy decoding gives the whole answer. Intervals: {level:.0%}, "
        "exact (Clopper-Pearson). Token accuracy: share of answer tokens that are the likeliest of those that can "
        "stand there, given the right ones before; chance: that of a model that knows nothing but which those are."
    )


# Needles


def _maps(group: Sequence[RetrievalResult], labels: Sequence[str], theme: Theme) -> Any:
    longest_row = max(len(_lengths(result.cells)) for result in group)
    columns = 1 if len(group) == 1 or longest_row > MOST_NUMBERED // 2 else 2
    rows = -(-len(group) // columns)
    depths = max(len(_depths(result.cells)) for result in group)
    height = 1.3 + rows * (1.1 + 0.32 * max(depths, 4))
    facts = "share of whole answers found; brighter is better"
    figure, axes = new_figure(theme, TITLES["needle"], facts, height, rows, columns)
    for result, label, panel in zip(group, labels, axes.flat, strict=False):
        _map(figure, panel, theme, result, label)
    for panel in axes.flat[len(group) :]:
        panel.set_axis_off()
    return figure


def _map(figure: Any, panel: Any, theme: Theme, result: RetrievalResult, label: str) -> None:
    lengths, depths = _lengths(result.cells), _depths(result.cells)
    found = {(cell.depth, cell.length): cell.accuracy for cell in result.cells}
    values = [[100 * found.get((depth, length), float("nan")) for length in lengths] for depth in depths]
    image = heatmap(figure, panel, theme, values, "accuracy (%)", vmin=0, vmax=100)
    if len(lengths) <= MOST_NUMBERED:
        write_in_cells(panel, image, [[f"{value:.0f}" if value == value else "" for value in row] for row in values])
    names = ["any" if depth is None else percent(depth) for depth in depths]
    name_rows_and_columns(panel, names, [f"{length:,}" for length in lengths])
    panel.tick_params(axis="x", labelrotation=45 if len(lengths) > 6 else 0)
    trained = result.subject.trained_length
    beyond = next((i for i, length in enumerate(lengths) if trained and length > trained), None)
    if trained and beyond:
        mark_column(panel, beyond)
    marked = f" ({trained_in_words([trained])}{', dashed' if beyond else ''})" if trained else ""
    name_axes(panel, theme, in_picture(label) + marked, "length (tokens)", "depth of the needle")
    panel.title.set_fontsize(SMALL + 0.5)


# Passkeys and RULER


def _curves(group: Sequence[RetrievalResult], labels: Sequence[str], theme: Theme) -> Any:
    tasks = list(dict.fromkeys(cell.task for result in group for cell in result.cells))
    height = 1.0 + 2.9 * len(tasks) + legend_height(labels)
    figure, axes = new_figure(theme, TITLES[group[0].task], _exact(group[0]), height, len(tasks), 2)
    for task, (left, right) in zip(tasks, axes, strict=True):
        of_task = [_pooled(result, task) for result in group]
        draw_lines(left, theme, [_whole_answers(a, cells) for a, cells in zip(labels, of_task, strict=True)])
        draw_lines(right, theme, [_tokens(a, cells) for a, cells in zip(labels, of_task, strict=True)])
        name = task.replace("_", " ")
        _dress(left, theme, group, task, f"{name}: whole answers", "accuracy (%)")
        _dress(right, theme, group, task, f"{name}: tokens of answers", "token accuracy (%)")
        chance = next(cell.chance for result in group for cell in result.cells if cell.task == task)
        mark(right, theme, 100 * chance, "chance", vertical=False).set_linestyle(":")
    legend_below(figure, axes[0, 1], theme)
    return figure


def _exact(result: RetrievalResult) -> str:
    return f"bars: exact {result.cells[0].interval.level:.0%} intervals"


def _dress(panel: Any, theme: Theme, group: Sequence[RetrievalResult], task: str, title: str, y: str) -> None:
    lengths = [cell.length for result in group for cell in result.cells if cell.task == task]
    length_axis(panel, lengths)
    if len({*lengths}) > 5:
        panel.tick_params(axis="x", labelrotation=45)
    panel.set_ylim(-4, 104)
    mark_trained(panel, theme, subjects_of(group), max(lengths))
    name_axes(panel, theme, title, "length (tokens)", y)


def _pooled(result: RetrievalResult, task: str) -> list[Cell]:
    """Cells of a task, all depths of one length together, shortest first."""
    lengths = _lengths([cell for cell in result.cells if cell.task == task])
    return [result.at(length, task) for length in lengths]


def _whole_answers(label: str, cells: Sequence[Cell]) -> Line:
    ends = [Interval(100 * c.interval.low, 100 * c.interval.high, c.interval.level) for c in cells]
    return Line(label, [cell.length for cell in cells], [100 * cell.accuracy for cell in cells], ends)


def _tokens(label: str, cells: Sequence[Cell]) -> Line:
    shares = [100 * cell.token_accuracy for cell in cells]
    return Line(label, [cell.length for cell in cells], shares, [None] * len(cells))


# In words


def _alt(group: Sequence[RetrievalResult], labels: Sequence[str]) -> str:
    ends = []
    for label, result in zip(labels, group, strict=True):
        longest = max(_lengths(result.cells))
        cells = [cell for cell in result.cells if cell.length == longest]
        share = sum(cell.correct for cell in cells) / sum(cell.trials for cell in cells)
        ends.append(f"{label} {percent(share)}")
    form = (
        "Heatmap of accuracy by depth and length" if group[0].task == "needle" else "Line chart of accuracy by length"
    )
    return f"{form}; right at the longest length: {'; '.join(ends)}."


def _table(group: Sequence[RetrievalResult], labels: Sequence[str], measured: str) -> Table:
    rows = [
        (label, cell.task.replace("_", " "), *_numbers(cell))
        for label, result in zip(labels, group, strict=True)
        for cell in result.cells
    ]
    shares = ("right", "accuracy", "token accuracy", "chance (token)")
    columns = ("model", "task", "length", "depth", *shares, "NLL (nats)")
    return Table(TITLES[group[0].task], measured, columns, tuple(rows), words=(1,))


def _numbers(cell: Cell) -> tuple[str, ...]:
    depth = "any" if cell.depth is None else percent(cell.depth)
    accuracy = percent_with_interval(cell.accuracy, cell.interval)
    shares = (percent(cell.token_accuracy), percent(cell.chance), number(cell.nll))
    return (f"{cell.length:,}", depth, f"{cell.correct:,} of {cell.trials:,}", accuracy, *shares)


def _lengths(cells: Sequence[Cell]) -> list[int]:
    return sorted({cell.length for cell in cells})


def _depths(cells: Sequence[Cell]) -> list[float | None]:
    depths = {cell.depth for cell in cells}
    return sorted(depths, key=lambda depth: -1.0 if depth is None else depth)
