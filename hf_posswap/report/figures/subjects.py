"""What was measured, and what it took."""

from collections.abc import Sequence

from hf_posswap.evaluation.results import ModelResult, Result, Subject
from hf_posswap.report.figures.schemes import scheme_label
from hf_posswap.report.figures.section import Section
from hf_posswap.report.numbers import memory, number
from hf_posswap.report.tables import Table


def subject_sections(results: Sequence[Result]) -> list[Section]:
    """One, unless no model was measured."""
    measured = [result for result in results if isinstance(result, ModelResult)]
    if not measured:
        return []
    return [
        Section(
            name="models",
            title="Models and cost",
            caption="The models as they were measured, and what each measurement took.",
            tables=(_models(measured), cost_table(measured)),
        )
    ]


def _models(results: Sequence[ModelResult]) -> Table:
    rows = tuple(dict.fromkeys(_facts(result.subject) for result in results))
    columns = ("label", "model", "architecture", "scheme", "attention", "dtype", "trained length", "parameters")
    return Table("Models that were measured", "", columns, rows, words=(1, 2, 3, 4, 5))


def _facts(subject: Subject) -> tuple[str, ...]:
    scheme = scheme_label(subject.scheme) if subject.scheme else "no name here"
    trained = f"{subject.trained_length:,}" if subject.trained_length else "not known"
    named = (subject.label, subject.model, subject.architecture, scheme, subject.attention or "not known")
    return (*named, subject.dtype, trained, f"{subject.parameters:,}")


def cost_table(results: Sequence[ModelResult]) -> Table:
    """Time and memory of each measurement."""
    rows = [
        (
            result.subject.label,
            result.kind.replace("_", " "),
            result.cost.device,
            str(result.cost.processes),
            number(result.cost.seconds),
            memory(result.cost.peak_memory),
        )
        for result in results
    ]
    columns = ("model", "measurement", "device", "processes", "seconds", "peak memory")
    caption = "Seconds are summed over processes; peak memory is above what the process held before."
    return Table("Cost", caption, columns, tuple(rows), words=(1, 2))
