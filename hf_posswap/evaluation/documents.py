"""What is measured: token ids, and what is known of the text behind them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.fingerprints import fingerprint_of_settings, fingerprint_of_tokens


@dataclass(frozen=True, eq=False)
class Document:
    """One text as token ids. A tensor of token ids stands for a document of which no more is known.

    Raises:
        EvaluationError: `input_ids` is no row of whole numbers, or another field is not as long as it.
    """

    input_ids: Tensor
    """`[L]`."""
    name: str = ""
    """Where it is from: a file, with the line or row in it."""
    byte_ends: Tensor | None = None
    """`[L]`: how many UTF-8 bytes of the text the tokens up to and with each one stand for; None: not known."""
    words: Tensor | None = None
    """`[L]`: the number of the word that each token begins in, counted from 0 on, -1 for none; None: not known."""

    def __post_init__(self) -> None:
        _check_row(self.input_ids)
        for name, values in (("byte_ends", self.byte_ends), ("words", self.words)):
            if values is not None and values.shape != self.input_ids.shape:
                raise EvaluationError(
                    f"A document has one of {name} for every token, {len(self)} here, not {list(values.shape)}."
                )

    def __len__(self) -> int:
        return len(self.input_ids)


Documents = Sequence[Document | Tensor]


def as_documents(documents: Documents) -> list[Document]:
    """All as `Document`, checked.

    Raises:
        EvaluationError: one of them is no row of token ids.
    """
    return [each if isinstance(each, Document) else Document(each) for each in documents]


def _check_row(ids: Any) -> None:
    if not isinstance(ids, Tensor) or ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        what = f"{ids.dtype} {list(ids.shape)}" if isinstance(ids, Tensor) else type(ids).__name__
        raise EvaluationError(
            f"A document is a tensor of token ids [length], not {what}; read_documents makes them of text."
        )


def long_enough(documents: Documents, length: int) -> tuple[list[Document], tuple[int, ...]]:
    """The documents of at least `length` tokens, and the indices of the others.

    Raises:
        EvaluationError: none is long enough.
    """
    found = as_documents(documents)
    skipped = tuple(i for i, document in enumerate(found) if len(document) < length)
    if len(skipped) == len(found):
        longest = max(map(len, found), default=0)
        raise EvaluationError(
            f"None of the {len(found)} documents has {length} tokens (the longest has {longest}): take longer text "
            "or shorter lengths."
        )
    return [document for document in found if len(document) >= length], skipped


def fingerprint_of_documents(documents: Sequence[Document]) -> str:
    """Of their token ids and of what is known of them, in order; not of their names."""
    known = ((each.input_ids, each.byte_ends, each.words) for each in documents)
    return fingerprint_of_settings([[None if x is None else fingerprint_of_tokens(x) for x in row] for row in known])
