"""Results in pictures and tables, by the class of the result."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hf_posswap.errors import EvaluationError, SchemeError
from hf_posswap.evaluation.advice import Advice
from hf_posswap.evaluation.attention_profile import AttentionProfile
from hf_posswap.evaluation.decay import Decay
from hf_posswap.evaluation.long_ppl import LongPpl
from hf_posswap.evaluation.nll_by_position import NllByPosition
from hf_posswap.evaluation.perplexity import PerplexityResult
from hf_posswap.evaluation.position_probe import PositionProbe
from hf_posswap.evaluation.properties import Properties
from hf_posswap.evaluation.pseudo_perplexity import PseudoPerplexityResult
from hf_posswap.evaluation.results import Result
from hf_posswap.evaluation.retrieval.results import RetrievalResult
from hf_posswap.report.figures.advice import advice_sections
from hf_posswap.report.figures.attention_profile import attention_profile_sections
from hf_posswap.report.figures.decay import decay_sections
from hf_posswap.report.figures.long_ppl import long_ppl_sections
from hf_posswap.report.figures.nll_by_position import nll_by_position_sections
from hf_posswap.report.figures.perplexity import perplexity_sections, pseudo_perplexity_sections
from hf_posswap.report.figures.position_probe import position_probe_sections
from hf_posswap.report.figures.properties import properties_sections
from hf_posswap.report.figures.retrieval import retrieval_sections
from hf_posswap.report.figures.schemes import scheme_sections
from hf_posswap.report.figures.section import Section
from hf_posswap.report.figures.subjects import subject_sections
from hf_posswap.report.style import DARK, LIGHT, Theme, fixed_style, require_matplotlib
from hf_posswap.report.tables import Table

KINDS: dict[type[Result], Callable[[Sequence[Any]], list[Section]]] = {
    PerplexityResult: perplexity_sections,
    PseudoPerplexityResult: pseudo_perplexity_sections,
    LongPpl: long_ppl_sections,
    NllByPosition: nll_by_position_sections,
    RetrievalResult: retrieval_sections,
    Advice: advice_sections,
    PositionProbe: position_probe_sections,
    AttentionProfile: attention_profile_sections,
    Decay: decay_sections,
    Properties: properties_sections,
}
"""A kind of result is added here: a function from all results of the kind to sections, in the order of a report."""


def sections_of(results: Sequence[Result]) -> list[Section]:
    """All there is to show of results, kind by kind; then the models, and the schemes that occur.

    Raises:
        EvaluationError: there are no results, or of a kind that nobody knows how to show.
    """
    if not results:
        raise EvaluationError("There are no results to show.")
    strange = {type(result).__name__ for result in results} - {kind.__name__ for kind in KINDS}
    if strange:
        raise EvaluationError(
            f"Nobody knows how to show {', '.join(sorted(strange))}: add them to report.figures.KINDS."
        )
    found: list[Section] = []
    for kind, sections in KINDS.items():
        found += sections([result for result in results if type(result) is kind])
    return _with_own_names([*found, *subject_sections(results), *scheme_sections(results)])


def draw_results(results: Sequence[Result], *, dark: bool = False) -> dict[str, Any]:
    """A `matplotlib.figure.Figure` by name for everything in `results` that can be drawn.

    Raises:
        EvaluationError: as `sections_of`.
        PosswapError: matplotlib is not installed.
    """
    theme = DARK if dark else LIGHT
    drawn = {section.name: draw_section(section, theme)[0] for section in sections_of(results)}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def result_tables(results: Sequence[Result]) -> dict[str, tuple[Table, ...]]:
    """The tables by the same names.

    Raises:
        EvaluationError: as `sections_of`.
    """
    return {section.name: section.tables for section in sections_of(results) if section.tables}


def draw_section(section: Section, theme: Theme) -> tuple[Any, str]:
    """The figure, or None and why there is none: some schemes have nothing to be seen."""
    if section.draw is None:
        return None, ""
    require_matplotlib()
    try:
        with fixed_style():
            return section.draw(theme), ""
    except SchemeError as error:
        return None, str(error)


def _with_own_names(sections: Sequence[Section]) -> list[Section]:
    counts: dict[str, int] = {}
    found = []
    for section in sections:
        counts[section.name] = counts.get(section.name, 0) + 1
        number = counts[section.name]
        found.append(section if number == 1 else replace(section, name=f"{section.name}-{number}"))
    return found
