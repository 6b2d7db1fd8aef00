"""Texts in data sets of the library `datasets`, on disk or on the Hub, read row by row."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.sources.files import PIP, Text, text_of
from hf_posswap.files import reason


def is_saved_dataset(path: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def read_saved_dataset(path: Path, field: str, split: str | None) -> Iterator[Text]:
    """The texts of a data set, or of one of several, that `save_to_disk` wrote.

    Raises:
        EvaluationError: it cannot be loaded, has no such split, or no text in its rows.
    """
    datasets = _library(str(path))
    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever the library meets in the files
        raise EvaluationError(f"{path} cannot be loaded as a data set: {reason(error)}.") from error
    return _rows(loaded, path.name, field, split)


def read_dataset(source: str, field: str, split: str | None) -> Iterator[Text]:
    """The texts of "NAME" or "NAME:CONFIG"; no more is fetched than is read.

    Raises:
        EvaluationError: as `read_saved_dataset`.
    """
    datasets = _library(source)
    name, _, config = source.partition(":")
    try:
        loaded = datasets.load_dataset(name, config or None, streaming=True)
    except Exception as error:  # of the network, the Hub, or the files there
        raise EvaluationError(
            f"{source} is no file or folder here, and cannot be loaded as a data set: {reason(error)}."
        ) from error
    return _rows(loaded, source, field, split)


def _rows(loaded: Any, name: str, field: str, split: str | None) -> Iterator[Text]:
    rows = _split(loaded, name, split)
    if field in (rows.column_names or ()):  # a stream may not know them before it is read
        rows = rows.select_columns([field])
    for number, row in enumerate(rows):
        yield text_of(row, field, f"{name}:{number}")


def _split(loaded: Any, name: str, split: str | None) -> Any:
    if not isinstance(loaded, dict):
        if split is not None:
            raise EvaluationError(f"{name} has no splits, so there is no {split!r} in it.")
        return loaded
    if split is None and len(loaded) == 1:
        return next(iter(loaded.values()))
    if split not in loaded:
        asked = "name one" if split is None else f"there is no {split!r}"
        raise EvaluationError(f"{name} has the splits {', '.join(loaded)}: {asked}.")
    return loaded[split]


def _library(source: str) -> Any:
    try:
        return import_module("datasets")
    except ImportError as error:
        raise EvaluationError(
            f"{source} is no file or folder of texts; data sets are read with datasets, which is not installed: {PIP}."
        ) from error
