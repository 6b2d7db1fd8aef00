"""The negative log-likelihood of every token, without the logits of all positions at once."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from hf_posswap.errors import EvaluationError, FamilyError, SchemeError
from hf_posswap.evaluation.bare import bare
from hf_posswap.evaluation.output_head import hidden_states_and_head
from hf_posswap.patching import scheme_of

CHUNK_ELEMENTS = 2**23
"""Logits that exist at one time, 32 MiB in float32, unless that is fewer than `CHUNK_ROWS` positions."""
CHUNK_ROWS = 256
"""Positions that go through the head at least: with fewer a GPU waits for the head's weights, not for arithmetic."""

CAUSAL_WHEN_DECODER = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES} & {*MODEL_FOR_MASKED_LM_MAPPING_NAMES} | {"xlnet"}
"""Model types that transformers lists as causal although they are so only with `is_decoder=True`; XLNet never is."""


def token_nll(
    model: Any, input_ids: Tensor, attention_mask: Tensor | None = None, *, last: int | None = None
) -> Tensor:
    """Negative log-likelihood in nats, `[B, L-1]`: entry t is that of token t + 1 given tokens 0 to t.

    One forward pass without cache, dropout or gradients, exact for every class with a causal language modelling head;
    head and cross-entropy run over chunks of positions, so that the `[B, L, V]` logits never exist. The head runs in
    the model's dtype, as in the model itself, and its softmax in float32 (float64 for a float64 model).

    `input_ids [B, L]` are token ids; `attention_mask [B, L]` is 1 for tokens and 0 for padding on either side. Where a
    token or its predecessor is padding, the entry is NaN: take `nanmean()`. The result is float32 (float64) and lies
    where the model's output embeddings are. The model's training mode is restored. With `last`, only the last so many
    entries are computed and returned, `[B, last]`: what is in front of them is context, and costs no output head.

    Raises:
        EvaluationError: no causal language model, a head that does more than is known here, ids that are none, more
            tokens than the model has positions for, or a `last` that is no number of tokens with one in front.
    """
    refuse_non_causal(model)
    _check_tokens(model, input_ids, attention_mask)
    input_ids = input_ids.long()
    if last is not None and (type(last) is not int or last not in range(1, input_ids.shape[1])):
        raise EvaluationError(f"last is from 1 to {input_ids.shape[1] - 1}, the tokens with one in front, not {last}.")
    refuse_too_long(model, input_ids.shape[1])
    with evaluating(model):
        hidden, head = hidden_states_and_head(model, _call(model, input_ids, attention_mask))
        scored = input_ids.shape[1] - 1 if last is None else last
        nll = _by_chunks(hidden[:, -1 - scored : -1], head, input_ids[:, -scored:].to(hidden.device))
    if attention_mask is None:
        return nll
    real = attention_mask.to(nll.device)[:, -1 - scored :] != 0
    return nll.masked_fill(~(real[:, 1:] & real[:, :-1]), torch.nan)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every submodule is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def refuse_non_causal(model: Any) -> None:
    """Raises EvaluationError for models whose prediction at a position sees the tokens after it."""
    config, name = model.config, type(bare(model)).__name__
    encoder = "MaskedLM" in name or config.is_encoder_decoder or not getattr(config, "is_causal", True)
    if config.model_type in CAUSAL_WHEN_DECODER and not getattr(config, "is_decoder", False):
        encoder = True
    if encoder:
        raise EvaluationError(
            f"{name} is no causal language model (what it predicts at a position depends on later tokens, or on an "
            "encoder), so its tokens have no likelihood given those before them."
        )


def refuse_too_long(model: Any, length: int) -> None:
    """Raises EvaluationError when the model has a fixed table of fewer than `length` positions."""
    limit = position_limit(model)
    if limit is not None and length > limit:
        raise EvaluationError(
            f"{length} tokens are more than the {limit} positions that {type(model).__name__} has a table for: shorten "
            f"the text, or extend(model, {length}) first."
        )


def refuse_unknown_tokens(model: Any, input_ids: Tensor) -> None:
    """Raises EvaluationError when the model has no embedding for one of these ids, of which there is at least one."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if input_ids.min() < 0 or input_ids.max() >= vocabulary:
        raise EvaluationError(
            f"Token ids from {int(input_ids.min())} to {int(input_ids.max())} do not fit a vocabulary of {vocabulary}: "
            "take the model's own tokenizer."
        )


def position_limit(model: Any) -> int | None:
    """How many positions a model has when they come from a table; None when they come from a formula."""
    try:
        return scheme_of(bare(model)).limit()
    except SchemeError:  # a rotary formula of transformers that has no name here
        return None
    except FamilyError:
        tables = [m for name, m in model.named_modules() if re.search(r"wpe|position", name)]
        rows = [len(t.weight) - _first_row(t) for t in tables if isinstance(t, nn.Embedding)]
        return min(rows, default=None)


def _first_row(table: nn.Embedding) -> int:
    """The row of position 0: OPT starts at 2, RoBERTa after its padding index."""
    return getattr(table, "offset", 0 if table.padding_idx is None else table.padding_idx + 1)


def _check_tokens(model: Any, input_ids: Tensor, attention_mask: Tensor | None) -> None:
    ids = input_ids if isinstance(input_ids, Tensor) else torch.empty(0)
    if ids.dim() != 2 or not len(ids) or ids.shape[1] < 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        what = f"{ids.dtype} {list(ids.shape)}" if ids is input_ids else type(input_ids).__name__
        raise EvaluationError(
            f"input_ids are a tensor of whole numbers [batch, length] with a length of at least 2, not {what}."
        )
    if attention_mask is not None and getattr(attention_mask, "shape", None) != ids.shape:
        shape = list(getattr(attention_mask, "shape", ())) or type(attention_mask).__name__
        raise EvaluationError(f"attention_mask {shape} is not of the shape of input_ids {list(ids.shape)}.")
    refuse_unknown_tokens(model, input_ids)


def _call(model: Any, input_ids: Tensor, attention_mask: Tensor | None) -> dict[str, Any]:
    """Arguments of the forward pass; positions do not count padding, as in `generate`."""
    call: dict[str, Any] = {"input_ids": input_ids.to(model.device), "use_cache": False}
    if attention_mask is not None:
        call["attention_mask"] = attention_mask.to(model.device)
        if "position_ids" in signature(model.forward).parameters:
            call["position_ids"] = (call["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    return call


def _by_chunks(hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy `[B, L]` of `targets [B, L]`, from `hidden [B, L, E]`."""
    flat_hidden, flat_targets = hidden.flatten(0, 1), targets.flatten()
    vocabulary = head(flat_hidden[:1]).shape[-1]
    size = max(CHUNK_ROWS, CHUNK_ELEMENTS // vocabulary)
    # Room for all results is made first: small ones left behind by each chunk would keep the C library from giving the
    # next chunk the memory of the last one.
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    nll = torch.empty(flat_targets.shape, dtype=dtype, device=hidden.device)
    for start in range(0, len(nll), size):
        chunk = slice(start, start + size)
        nll[chunk] = _cross_entropy(head(flat_hidden[chunk]), flat_targets[chunk])
    return nll.view_as(targets)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """`[N]` of logits `[N, V]`, which are overwritten: half the memory of torch's own, and less rounding."""
    exact = logits if logits.dtype == torch.float64 else logits.float()
    of_targets = exact.gather(1, targets[:, None])[:, 0]
    largest = exact.amax(dim=1)
    return exact.sub_(largest[:, None]).exp_().sum(dim=1).log_().add_(largest).sub_(of_targets)
