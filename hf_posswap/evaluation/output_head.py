"""The output head of a causal language model, applied to a few positions at a time.

The model's own forward pass runs once, whole, with one change: in front of its output embeddings the hidden states are
kept and only those of the last position go on. Whatever a class does before its head (the transform of BERT decoders,
the projections of OPT) is thus done by the class itself. What it does *after* the head (soft-capping, a scale) is read
from the config, and must reproduce the logits that the model itself gave for the last position.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hf_posswap.errors import EvaluationError


def hidden_states_and_head(model: Any, call: dict[str, Any]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Hidden states `[B, L, E]` in front of the output embeddings, and the function from them to logits `[..., V]`.

    Raises:
        EvaluationError: the model has no output embeddings, does not use them once per position, or does something to
            their output that is not known here.
    """
    embeddings = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if embeddings is None:
        raise EvaluationError(
            f"{type(model).__name__} has no output embeddings: take a causal language model, unwrapped "
            "(accelerator.unwrap_model)."
        )
    with _last_position_only(embeddings) as kept:
        own = model(**call)[0]
    if len(kept) != 1 or kept[0].shape[:-1] != call["input_ids"].shape:
        raise EvaluationError(f"{type(model).__name__} does not put each position through its output embeddings once.")
    after = _after_head(model.config)

    def logits(hidden: Tensor) -> Tensor:
        return after(embeddings(hidden))

    _compare(model, own, logits(kept[0][:, -1:]))
    return kept[0], logits


@contextmanager
def _last_position_only(embeddings: nn.Module) -> Iterator[list[Tensor]]:
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        kept.append(args[0])
        return (args[0][:, -1:], *args[1:])

    hook = embeddings.register_forward_pre_hook(keep)
    try:
        yield kept
    finally:
        hook.remove()


def _after_head(model_config: Any) -> Callable[[Tensor], Tensor]:
    """What the model classes of transformers do to logits, by the names in their configs."""
    config = model_config.get_text_config()
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma
    scale = getattr(config, "logit_scale", None)  # Cohere
    divisor = getattr(config, "logits_scaling", None)  # Granite

    def after(logits: Tensor) -> Tensor:
        if cap is not None:
            return torch.tanh(logits / cap) * cap
        if scale is not None:
            return logits * scale
        return logits if divisor is None else logits / divisor

    return after


def _compare(model: Any, own: Tensor, ours: Tensor) -> None:
    tolerance = 8 * torch.finfo(ours.dtype).eps
    if own.shape != ours.shape or not torch.allclose(
        own.float(), ours.float(), rtol=tolerance, atol=tolerance, equal_nan=True
    ):
        raise EvaluationError(
            f"{type(model).__name__} changes what comes out of its output embeddings in a way that is not known here, "
            "so its logits cannot be computed a few positions at a time."
        )
