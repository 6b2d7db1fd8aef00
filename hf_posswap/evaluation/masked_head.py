"""The logits of a masked language model at one position of each row.

In front of its output embeddings only the hidden state of the wanted position goes on; all else is done by the model's
own forward pass. A class that does not put hidden states `[B, L, E]` through its output embeddings gives logits at all
positions, and the wanted ones are taken from those: the same numbers for more memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from hf_posswap.errors import EvaluationError

CLASSES = frozenset(MODEL_FOR_MASKED_LM_MAPPING_NAMES.values())


def logits_at(model: Any, input_ids: Tensor, positions: Tensor) -> Tensor:
    """Logits `[B, V]` at `positions [B]` of `input_ids [B, L]`, one forward pass without padding.

    Raises:
        EvaluationError: the model's output is not logits by position.
    """
    with _only(positions, model.get_output_embeddings()):
        logits: Tensor = model(input_ids=input_ids.to(model.device))[0]
    if logits.shape[:-1] == input_ids.shape and logits.shape[1] > 1:
        return _at(logits, positions)[:, 0]
    if logits.shape[:-1] != (len(input_ids), 1):
        raise EvaluationError(f"{type(model).__name__} gives {list(logits.shape)}, which are no logits by position.")
    return logits[:, 0]


def refuse_without_masked_head(model: Any) -> None:
    """Raises EvaluationError for models that do not predict a token from those on both sides of it."""
    config = model.config
    names = [each.__name__ for each in type(model).__mro__]
    masked = any(name in CLASSES or "ForMaskedLM" in name for name in names)
    if not masked or config.is_encoder_decoder or getattr(config, "is_decoder", False):
        raise EvaluationError(
            f"{names[0]} is no masked language model that sees both sides of a mask: load an encoder with "
            "AutoModelForMaskedLM, and measure perplexity of causal language models."
        )


@contextmanager
def _only(positions: Tensor, embeddings: nn.Module | None) -> Iterator[None]:
    def choose(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (_at(args[0], positions), *args[1:]) if args[0].dim() == 3 else args

    if embeddings is None:
        yield
        return
    hook = embeddings.register_forward_pre_hook(choose)
    try:
        yield
    finally:
        hook.remove()


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """`[B, 1, ...]` of `[B, L, ...]`."""
    rows = torch.arange(len(values), device=values.device)
    return values[rows, positions.to(values.device)].unsqueeze(1)
