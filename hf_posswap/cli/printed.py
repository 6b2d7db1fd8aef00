"""Results as text for a terminal: the first table of every kind, what it shows, paired ratios, and what all took."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.cli.wrapping import wrapped
from hf_posswap.evaluation.advice import Advice
from hf_posswap.evaluation.comparison import Likelihood, paired_ratios
from hf_posswap.evaluation.perplexity import PerplexityResult
from hf_posswap.evaluation.pseudo_perplexity import PseudoPerplexityResult
from hf_posswap.evaluation.results import ModelResult, Result
from hf_posswap.report.figures import KINDS
from hf_posswap.report.figures.perplexity import bits_per_byte
from hf_posswap.report.figures.subjects import cost_table
from hf_posswap.report.numbers import with_interval
from hf_posswap.report.tables import Table

PRINTED: dict[type[Result], int] = {Advice: 2}
"""Tables of a section, where it is not the first alone."""


def printed(results: Sequence[ModelResult]) -> str:
    """Tables, each with its caption below, kind by kind."""
    tables: list[Table] = []
    for kind, sections in KINDS.items():
        alike: list[Any] = [result for result in results if type(result) is kind]
        for section in sections(alike) if alike else []:
            tables += section.tables[: PRINTED.get(kind, 1)]
        if kind in (PerplexityResult, PseudoPerplexityResult) and alike:
            tables += _of_likelihood(alike)
    tables.append(cost_table(results))
    return "\n\n".join("\n".join([table.text(), "", *wrapped(table.full_caption, "", "")]) for table in tables)


def _of_likelihood(results: Sequence[Likelihood]) -> list[Table]:
    """Bits per byte where they are known, and ratios where there are some."""
    bits = bits_per_byte(results)
    ratios = [_ratios(results)] if len(results) > 1 and _token_weighted(results[0]) else []
    return [*([bits] if bits else []), *ratios]


def _token_weighted(result: Likelihood) -> bool:
    return getattr(result, "reduction", "token") == "token"


def _ratios(results: Sequence[Likelihood]) -> Table:
    """To the first, at every length."""
    first, *others = results
    rows = [
        (result.subject.label, *(with_interval(ratio.value, ratio.interval) for ratio in paired_ratios(result, first)))
        for result in others
    ]
    name = first.subject.label
    caption = "Below 1 is better; intervals: 95%, over documents, paired: of the differences on the same tokens."
    return Table(
        f"Ratio to {name}", caption, (f"over {name}", *(f"{at.length:,}" for at in first.lengths)), tuple(rows)
    )
