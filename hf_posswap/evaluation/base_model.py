"""Windows of documents put through a model without its head: for what is measured inside of it."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.documents import Document, Documents, long_enough
from hf_posswap.evaluation.token_nll import refuse_too_long, refuse_unknown_tokens

Windows = tuple[list[Document], list[Tensor], tuple[int, ...]]


def whole_windows(model: Any, documents: Documents, length: int) -> Windows:
    """The documents of at least `length` tokens, each one's windows `[N, length]` that follow one another without
    overlap (the rest of a document is left out), and the indices of the documents that are too short.

    Raises:
        EvaluationError: no document is long enough, its tokens are none of the model's, or the model cannot read them.
    """
    if not isinstance(length, Integral) or isinstance(length, bool) or length < 2:
        raise EvaluationError(f"length is a whole number of tokens from 2 up, not {length!r:.60}.")
    if model.config.is_encoder_decoder:
        raise EvaluationError(
            f"{type(model).__name__} has an encoder and a decoder, with positions of their own: take a decoder or an "
            "encoder."
        )
    refuse_too_long(model, length)
    kept, skipped = long_enough(documents, length)
    for document in kept:
        refuse_unknown_tokens(model, document.input_ids)
    return kept, [document.input_ids.long().unfold(0, length, length) for document in kept], skipped


def batches(windows: Tensor, tokens_per_batch: int) -> Sequence[Tensor]:
    """`windows [N, L]` in parts of at most so many tokens, or of one window."""
    return windows.split(max(1, tokens_per_batch // windows.shape[1]))


def last_hidden_states(model: Any, input_ids: Tensor, **told_to_layers: Any) -> Tensor:
    """`[B, L, E]` of `input_ids [B, L]`, one pass without a cache and without the head."""
    body = model.base_model
    while body.base_model is not body:  # of PEFT's wrapper it is the whole model, head and all
        body = body.base_model
    hidden: Tensor = body(input_ids=input_ids.to(model.device), use_cache=False, **told_to_layers)[0]
    return hidden
