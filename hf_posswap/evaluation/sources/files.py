"""Texts and tokens in files, by the ending of their names."""

import codecs
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.documents import Document
from hf_posswap.files import reason

logger = logging.getLogger(__name__)

PIP = "pip install hf-posswap[data]"
KINDS = "UTF-8 text, .jsonl, .parquet, .npy or .safetensors"
NO_TEXT = (".json", ".csv", ".tsv", ".html", ".xml", ".svg")
"""Tables and markup: read as text they would be measured with all their marks and names."""
START = 2**16
"""Bytes that show whether a file in a folder is text."""
ROWS = 64
"""Rows of a parquet file that are held at one time."""
NAMED = 10
"""Files that a warning names."""


@dataclass(frozen=True)
class Text:
    """What a document is made of."""

    text: str
    name: str


Read = Callable[[Path, str, str], Iterator[Text | Document]]


def read_file(path: Path, name: str, field: str) -> Iterator[Text | Document]:
    """What a file holds, under its `name`; `field` is where text is in rows.

    Raises:
        EvaluationError: it is of none of the kinds, or broken.
    """
    return READERS.get(path.suffix.lower(), _text)(path, name, field)


def read_folder(folder: Path, field: str) -> Iterator[Text | Document]:
    """What all files in a folder hold, by name. What is none of the kinds is named in a warning of the log."""
    names = [file.relative_to(folder) for file in sorted(folder.rglob("*")) if file.is_file()]
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    wrong = {name: None for name in names if not _is_readable(folder / name)}
    if len(wrong) == len(names):
        raise EvaluationError(f"{folder} has no file of {KINDS} in it.")
    if wrong:
        more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        which = ", ".join(map(str, islice(wrong, NAMED))) + more
        logger.warning("%s: left out %d of %d files, which are no %s: %s", folder, len(wrong), len(names), KINDS, which)
    for name in names:
        if name not in wrong:
            yield from read_file(folder / name, str(name), field)


def text_of(row: Any, field: str, where: str) -> Text:
    """The text of a row.

    Raises:
        EvaluationError: there is none in it.
    """
    if not isinstance(row, dict):
        raise EvaluationError(f"{where} is no JSON object with a text under {field!r}, but {row!r:.60}.")
    if field not in row:
        raise EvaluationError(f"{where} has no field {field!r}; there are {', '.join(map(repr, row)) or 'none'}.")
    if not isinstance(row[field], str):
        raise EvaluationError(f"{where}: the field {field!r} is no text, but {row[field]!r:.60}.")
    return Text(row[field], where)


def _is_readable(path: Path) -> bool:
    kind = path.suffix.lower()
    if kind in READERS or kind in NO_TEXT:
        return kind in READERS
    with path.open("rb") as file:
        start = file.read(START)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return b"\0" not in start


def _text(path: Path, name: str, field: str) -> Iterator[Text]:
    if path.suffix.lower() in NO_TEXT:
        raise EvaluationError(
            f"{name} is a table or markup: write it as .jsonl or .parquet, or as .txt if it is the text itself."
        )
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EvaluationError(f"{name} is no UTF-8 text, see byte {error.start}; what can be read: {KINDS}.") from error
    if "\0" in text:
        raise EvaluationError(f"{name} is no text, because it holds a NUL; what can be read: {KINDS}.")
    yield Text(text, name)


def _json_lines(path: Path, name: str, field: str) -> Iterator[Text]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise EvaluationError(f"{name}:{number} is no JSON: {error}.") from error
            yield text_of(row, field, f"{name}:{number}")


def _parquet(path: Path, name: str, field: str) -> Iterator[Text]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise EvaluationError(f"{name} is read with pyarrow, which is not installed: {PIP}.") from error
    try:
        with ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if field not in columns:
                text_of(dict.fromkeys(columns), field, name)
            rows = (row for batch in file.iter_batches(ROWS, columns=[field]) for row in batch.to_pylist())
            for number, row in enumerate(rows):
                yield text_of(row, field, f"{name}:{number}")
    except pyarrow.ArrowException as error:
        raise EvaluationError(f"{name} is no parquet file, or broken: {reason(error)}.") from error


def _array(path: Path, name: str, field: str) -> Iterator[Document]:
    import numpy as np
    import torch

    try:
        array = np.load(path, allow_pickle=False)
        tokens = torch.from_numpy(array.astype(np.int64) if array.dtype.kind in "iu" else array)
    except (ValueError, TypeError, EOFError) as error:
        raise EvaluationError(f"{name} is no array of token ids, or broken: {reason(error)}.") from error
    yield _tokens(tokens, name)


def _tensors(path: Path, name: str, field: str) -> Iterator[Document]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            for key in sorted(file.keys()):
                yield _tokens(file.get_tensor(key), f"{name}:{key}")
    except SafetensorError as error:
        raise EvaluationError(f"{name} is no safetensors file, or broken: {reason(error)}.") from error


def _tokens(tokens: Tensor, name: str) -> Document:
    try:
        return Document(Document(tokens).input_ids.long(), name)
    except EvaluationError as error:
        raise EvaluationError(f"{name}: {error}") from error


READERS: dict[str, Read] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
    ".npy": _array,
    ".safetensors": _tensors,
}
"""All other files are text."""
