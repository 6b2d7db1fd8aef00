"""Perplexity against length, and pseudo-perplexity: models of one protocol on one pair of axes."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.evaluation.perplexity import LengthPerplexity, PerplexityResult
from hf_posswap.evaluation.pseudo_perplexity import PseudoPerplexityResult
from hf_posswap.report.figures.lines import (
    Line,
    draw_lines,
    legend_below,
    legend_height,
    length_axis,
    mark_trained,
    value_axis,
)
from hf_posswap.report.figures.section import Section, grouped, labels_of, subjects_of
from hf_posswap.report.numbers import documents_read, number, over_documents, plural, with_interval
from hf_posswap.report.style import Theme, name_axes, new_figure
from hf_posswap.report.tables import Table

PROTOCOLS = {
    "disjoint": "consecutive windows that share no token, of which all tokens but the first are scored",
    "sliding": "overlapping windows, of which only the tokens that no window before has scored are scored",
    "prefix": "the first tokens of each document, all but the first scored",
}
REDUCTIONS = {
    "token": "mean over all tokens scored",
    "yarn": "mean over windows of their mean NLL, as in the YaRN paper, for comparison with it only",
}
BOS = {
    "none": "no BOS is added",
    "document": "a BOS stands in front of each document",
    "window": "a BOS stands in front of each window and counts among its tokens",
}
FORMS = {
    "token": "each token in turn hidden and predicted from all others (Salazar et al. 2020)",
    "within_word_l2r": "each token in turn hidden together with those of its word that follow it (Kauf & Ivanova 2023)",
}


def perplexity_sections(results: Sequence[PerplexityResult]) -> list[Section]:
    """One for each protocol, reduction, stride and BOS handling."""
    groups = grouped(results, lambda r: (r.protocol, r.reduction, r.stride, r.bos))
    return [_section("perplexity", "Perplexity", group, how_read(group[0])) for group in groups]


def pseudo_perplexity_sections(results: Sequence[PseudoPerplexityResult]) -> list[Section]:
    """One for each form."""
    groups = grouped(results, lambda r: (r.form, r.positions, r.special_tokens))
    return [_section("pseudo-perplexity", "Pseudo-perplexity", group, how_hidden(group[0])) for group in groups]


def how_read(result: PerplexityResult) -> str:
    """Protocol, reduction, stride and BOS in a sentence."""
    stride = f", stride {result.stride:,}" if result.stride else ""
    if result.protocol == "sliding" and result.stride is None:
        stride = ", stride min(256, length / 2)"
    return (
        f"Protocol {result.protocol}{stride}: {PROTOCOLS[result.protocol]}. "
        f"Reduction {result.reduction}: {REDUCTIONS[result.reduction]}. BOS: {BOS[result.bos]}."
    )


def how_hidden(result: PseudoPerplexityResult) -> str:
    """Form, sample and special tokens in a sentence."""
    scored = "all tokens" if result.positions is None else f"{plural(result.positions, 'token')} drawn"
    return (
        f"Form {result.form}: {FORMS[result.form]}; {scored} of each window scored; its length includes "
        f"{plural(result.special_tokens, 'special token')} around it."
    )


def _section(name: str, title: str, group: Sequence[Any], how: str) -> Section:
    labels, measured = _labels(group), f"{how} {_text_read(group)}"
    return Section(
        name=name,
        title=f"{title} against length",
        caption=f"{title} by the number of tokens read at once; lower is better. {measured}",
        tables=(_by_length(title, group, labels, measured), _in_full(title, group, labels, measured)),
        draw=lambda theme: _figure(title, group, labels, theme),
        alt=_alt(title, group, labels),
    )


def _labels(group: Sequence[Any]) -> list[str]:
    """A label for each, that of a control being that of its model and what it is."""
    found = [""] * len(group)
    for places in grouped(range(len(group)), lambda i: _suffix(group[i])):
        suffix = _suffix(group[places[0]])
        models = [group[i].labelled(group[i].subject.label.removesuffix(suffix)) for i in places]
        for i, label in zip(places, labels_of(models), strict=True):
            found[i] = label + suffix
    return found


def _suffix(result: Any) -> str:
    """Of the label of a control."""
    control = getattr(result, "control", None)
    return f", {control}" if control else ""


def _text_read(group: Sequence[Any]) -> str:
    """Documents, tokens, intervals, and a warning where the models did not read the same."""
    first = group[0]
    said = [f"{documents_read(first.documents, first.skipped)}."]
    counts = [entry.tokens for result in group for entry in result.lengths]
    span = f"{min(counts):,}" if min(counts) == max(counts) else f"{min(counts):,} to {max(counts):,}"
    said.append(f"Tokens scored at each length: {span}.")
    if not _same_text(group):
        said = ["The models did not score the same documents and tokens: perplexities cannot be compared.", said[1]]
    intervals = [entry.interval for result in group for entry in result.lengths]
    return " ".join([*said, over_documents(intervals)])


def _same_text(group: Sequence[Any]) -> bool:
    scored: dict[int, set[tuple[int, ...]]] = {}
    for result in group:
        for entry in result.lengths:
            scored.setdefault(entry.length, set()).add(entry.document_tokens)
    return len({(r.documents, r.skipped) for r in group}) == 1 and all(len(each) == 1 for each in scored.values())


def _figure(title: str, group: Sequence[Any], labels: Sequence[str], theme: Theme) -> Any:
    what = getattr(group[0], "protocol", getattr(group[0], "form", ""))
    figure, axes = new_figure(
        theme, f"{title} against length", _subtitle(group, what), 4.4 + legend_height(labels), 1, 1
    )
    panel = axes[0, 0]
    draw_lines(panel, theme, [_line(*each) for each in zip(labels, group, strict=True)])
    entries = [entry for result in group for entry in result.lengths]
    length_axis(panel, [entry.length for entry in entries])
    value_axis(panel, [entry.perplexity for entry in entries])
    mark_trained(panel, theme, subjects_of(group), max(entry.length for entry in entries))
    name_axes(panel, theme, "", "length (tokens read at once)", title.lower())
    legend_below(figure, panel, theme)
    return figure


def _subtitle(group: Sequence[Any], what: str) -> str:
    bars = any(entry.interval for result in group for entry in result.lengths)
    return f"{what}, {plural(group[0].documents, 'document')}{', bars: intervals over documents' if bars else ''}"


def _line(label: str, result: Any) -> Line:
    entries: tuple[LengthPerplexity, ...] = result.lengths
    return Line(
        label,
        [entry.length for entry in entries],
        [entry.perplexity for entry in entries],
        [entry.interval for entry in entries],
        control_of=label.removesuffix(suffix) if (suffix := _suffix(result)) else None,
    )


def _alt(title: str, group: Sequence[Any], labels: Sequence[str]) -> str:
    ends = [
        f"{label} from {number(r.lengths[0].perplexity)} at {r.lengths[0].length:,} tokens to "
        f"{number(r.lengths[-1].perplexity)} at {r.lengths[-1].length:,}"
        for label, r in zip(labels, group, strict=True)
    ]
    return f"Line chart of {title.lower()} against length: {'; '.join(ends)}."


def bits_per_byte(group: Sequence[Any]) -> Table | None:
    """By length; None where the bytes of the text are not known."""
    lengths = sorted({entry.length for result in group for entry in result.lengths})
    rows = []
    for label, result in zip(_labels(group), group, strict=True):
        bits = {entry.length: _bits(entry) for entry in result.lengths}
        rows.append((label, *(bits.get(length, "") for length in lengths)))
    if not any(any(cells) for _, *cells in rows):
        return None
    return Table(
        "Bits per byte by length in tokens", "", ("model", *(f"{length:,}" for length in lengths)), tuple(rows)
    )


def _by_length(title: str, group: Sequence[Any], labels: Sequence[str], measured: str) -> Table:
    lengths = sorted({entry.length for result in group for entry in result.lengths})
    rows = []
    for label, result in zip(labels, group, strict=True):
        cells = {entry.length: _cell(entry) for entry in result.lengths}
        rows.append((label, *(cells.get(length, "") for length in lengths)))
    reading = "In brackets the interval, in parentheses the ratio to the shortest length of the row."
    columns = ("model", *(f"{length:,}" for length in lengths))
    return Table(f"{title} by length in tokens", f"{reading} {measured}", columns, tuple(rows))


def _cell(entry: LengthPerplexity) -> str:
    return f"{with_interval(entry.perplexity, entry.interval)} ({number(entry.ratio)})"


def _in_full(title: str, group: Sequence[Any], labels: Sequence[str], measured: str) -> Table:
    rows = [(label, *_numbers(entry)) for label, result in zip(labels, group, strict=True) for entry in result.lengths]
    columns = ("model", "length", title.lower(), "ratio", "NLL (nats)", "bits per byte", "tokens", "windows", "seconds")
    return Table(f"{title} in full", measured, columns, tuple(rows))


def _numbers(entry: LengthPerplexity) -> tuple[str, ...]:
    counts = (f"{entry.tokens:,}", f"{entry.windows:,}", number(entry.seconds))
    value = with_interval(entry.perplexity, entry.interval)
    return (f"{entry.length:,}", value, number(entry.ratio), f"{entry.nll:.4f}", _bits(entry), *counts)


def _bits(entry: LengthPerplexity) -> str:
    return "" if entry.bits_per_byte is None else f"{entry.bits_per_byte:.4f}"
