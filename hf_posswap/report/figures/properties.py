"""Properties: what each scheme guarantees, as tables."""

from collections.abc import Sequence

from hf_posswap.evaluation.properties import Properties
from hf_posswap.evaluation.property_checks import Property
from hf_posswap.report.figures.schemes import scheme_label
from hf_posswap.report.figures.section import Section, grouped
from hf_posswap.report.numbers import listed
from hf_posswap.report.tables import Table

ANSWERS = {True: "yes", False: "no", None: "does not apply"}


def properties_sections(results: Sequence[Properties]) -> list[Section]:
    """One for each kind of model and length."""
    return [_section(group) for group in grouped(results, lambda r: (r.causal, r.length))]


def _section(group: Sequence[Properties]) -> Section:
    first = group[0]
    measured = (
        f"Checked by numbers on a {'decoder' if first.causal else 'encoder'} of {first.length:,} positions, not taken "
        "from the papers."
    )
    drawn = [scheme_label(result.scheme) for result in group if result.drawn]
    if drawn:
        measured += f" Parameters that start at zero were drawn from N(0, 1): {listed(drawn)}."
    return Section(
        name="properties",
        title="Properties of schemes",
        caption=f"What each scheme guarantees. {measured}",
        tables=(_answers(group, measured), _numbers(group, measured)),
    )


def _answers(group: Sequence[Properties], measured: str) -> Table:
    names = list(dict.fromkeys(each.name for result in group for each in result.properties))
    rows = []
    for result in group:
        known: dict[str, Property] = {each.name: each for each in result.properties}
        answers = (ANSWERS[known[name].holds] if name in known else "" for name in names)
        rows.append((scheme_label(result.scheme), *answers))
    words = tuple(range(1, len(names) + 1))
    return Table("Properties of schemes", measured, ("scheme", *names), tuple(rows), words)


def _numbers(group: Sequence[Properties], measured: str) -> Table:
    rows = [
        (scheme_label(result.scheme), each.name, ANSWERS[each.holds], each.measured)
        for result in group
        for each in result.properties
    ]
    return Table(
        "The numbers behind the answers", measured, ("scheme", "property", "holds", "measured"), tuple(rows), (1, 2, 3)
    )
