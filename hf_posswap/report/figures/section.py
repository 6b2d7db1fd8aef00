"""What a report is made of, and how results come to stand in one picture."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hf_posswap.evaluation.results import ModelResult, Subject
from hf_posswap.report.style import Theme
from hf_posswap.report.tables import Table

T = TypeVar("T")


@dataclass(frozen=True)
class Section:
    """One place of a report: a picture, tables, or both, with the words that say what is seen and how it came about."""

    name: str
    """Of its files and its anchor; `sections_of` numbers those that are alike."""
    title: str
    caption: str
    """What is seen, and how it was measured."""
    tables: tuple[Table, ...] = ()
    draw: Callable[[Theme], Any] | None = None
    """The figure in a theme."""
    alt: str = ""
    """The picture in words, for those who do not see it."""


def grouped(items: Sequence[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Items with equal keys together, in order of first appearance."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def labels_of(results: Sequence[ModelResult]) -> list[str]:
    """A label for each, all different: what two share is told apart by the model, and then by number."""
    labels = [result.subject.label for result in results]
    models = [result.subject.model for result in results]
    if len({*models}) > 1:
        twice = {label for label in labels if labels.count(label) > 1}
        labels = [f"{a} ({b})" if a in twice else a for a, b in zip(labels, models, strict=True)]
    return _numbered(labels)


def _numbered(labels: list[str]) -> list[str]:
    counts: dict[str, int] = {}
    found = []
    for label in labels:
        counts[label] = counts.get(label, 0) + 1
        found.append(label if counts[label] == 1 else f"{label} ({counts[label]})")
    return found


def subjects_of(results: Sequence[ModelResult]) -> list[Subject]:
    """What was measured, in order."""
    return [result.subject for result in results]
