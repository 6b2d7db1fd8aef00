"""Where documents come from: files, folders, data sets, or what a program has at hand."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.sources.datasets import is_saved_dataset, read_dataset, read_saved_dataset
from hf_posswap.evaluation.sources.files import READERS, Text, read_file, read_folder
from hf_posswap.evaluation.sources.tokenizing import tokenized
from hf_posswap.files import reason

Source = str | os.PathLike[str] | Iterable[str | Tensor | Document]


def read_documents(
    source: Source,
    tokenizer: Any = None,
    *,
    field: str = "text",
    split: str | None = None,
    add_special_tokens: bool = False,
    most: int | None = None,
) -> list[Document]:
    """The documents of a source, in order, each named after where it is from.

    One text, one row and one tensor are one document each. Texts are tokenised one by one (which takes about 0.5 KiB a
    token as long as it lasts, and 24 bytes from then on), and of files in lines or rows and of data sets no more is
    read than the documents that are asked for. An empty text is a document without
    tokens, which measurements report as too short. Of tokens in a file nothing but the tokens is known; of text
    `Document.byte_ends` and `Document.words` are, where the tokenizer tells which characters a token stands for, or
    gives one token for every byte.

    Args:
        source: a file: UTF-8 text (a byte order mark is left out), `.jsonl` with one JSON object in each line,
            `.parquet`, or token ids: `.npy` with a row, `.safetensors` with rows, one document each in the order of
            their names. A folder: all files in it and in its folders, by name; hidden ones are passed over, and those
            that are none of these are named in a warning of the log. A folder of `datasets.save_to_disk`. The name of a
            data set that `datasets` finds on the Hub, "NAME" or "NAME:CONFIG". Or texts, tensors `[L]` and documents.
        tokenizer: the model's; needed for text only.
        field: where the text is in JSON lines, parquet and data sets.
        split: of a data set, such as "test"; needed where it has several.
        add_special_tokens: as the tokenizer does by itself. Measurements that want a BOS have an argument for it.
        most: read only so many documents, the first ones.

    Raises:
        EvaluationError: there is no such source, it is of another kind, has no text, or has something else where text
            should be; with its file and line.
    """
    if most is not None and not (isinstance(most, Integral) and most >= 1):
        raise EvaluationError(f"most is a number of documents from 1 up, or None for all, not {most!r:.60}.")
    try:
        pieces = islice(_pieces(source, field, split), most)
        found = [tokenized(each, tokenizer, add_special_tokens) if isinstance(each, Text) else each for each in pieces]
    except OSError as error:
        raise EvaluationError(f"{error.filename or source} cannot be read: {reason(error)}.") from error
    if not any(map(len, found)):
        where = f"{os.fspath(source)} has" if isinstance(source, (str, os.PathLike)) else "These documents have"
        raise EvaluationError(f"{where} no text: every document is empty.")
    return found


def _pieces(source: Source, field: str, split: str | None) -> Iterator[Text | Document]:
    path = Path(source).expanduser() if isinstance(source, (str, os.PathLike)) else None
    if path is not None and is_saved_dataset(path):
        return read_saved_dataset(path, field, split)
    if isinstance(source, str) and path is not None and not path.exists() and not _is_path(source):
        return read_dataset(source, field, split)
    if split is not None:
        raise EvaluationError(f"Only data sets have splits, so that there is no {split!r} here.")
    if path is None:
        return _given(source)
    if source == "" or not path.exists():
        raise EvaluationError(f"There is no file or folder '{source}'.")
    return read_folder(path, field) if path.is_dir() else read_file(path, path.name, field)


def _is_path(source: str) -> bool:
    """Whether this cannot be the name of a data set."""
    return source.startswith(("/", ".", "~")) or source.endswith((".txt", *READERS)) or source.count("/") > 1


def _given(source: Any) -> Iterator[Text | Document]:
    if not isinstance(source, Iterable):
        raise EvaluationError(f"Documents are read from a path, a name, or a list of texts, not from {source!r:.60}.")
    for i, each in enumerate(source):
        if isinstance(each, str):
            yield Text(each, f"text {i}")
        else:
            yield each if isinstance(each, Document) else Document(each, f"tokens {i}")
