"""Results as text for a terminal: the first table of every kind, what it shows, and paired ratios."""

from collections.abc import Sequence
from typing import Any

from hf_posswap.cli.wrapping import wrapped
from hf_posswap.evaluation.comparison import Likelihood, paired_ratios
from hf_posswap.evaluation.perplexity import PerplexityResult
from hf_posswap.evaluation.pseudo_perplexity import PseudoPerplexityResult
from hf_posswap.evaluation.results import ModelResult
from hf_posswap.report.figures import KINDS
from hf_posswap.report.numbers import with_interval
from hf_posswap.report.tables import Table


def printed(results: Sequence[ModelResult]) -> str:
    """Tables, each with its caption below, kind by kind."""
    tables = []
    for kind, sections in KINDS.items():
        alike: list[Any] = [result for result in results if type(result) is kind]
        tables += [section.tables[0] for section in sections(alike)] if alike else []
        if kind in (PerplexityResult, PseudoPerplexityResult) and len(alike) > 1 and _token_weighted(alike[0]):
            tables.append(_ratios(alike))
    return "\n\n".join("\n".join([table.text(), "", *wrapped(table.full_caption, "", "")]) for table in tables)


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
    caption = (
        "Below 1 is better; intervals: 95%, bootstrap over documents, paired: of the differences on the same tokens."
    )
    return Table(
        f"Ratio to {name}", caption, (f"over {name}", *(f"{at.length:,}" for at in first.lengths)), tuple(rows)
    )
