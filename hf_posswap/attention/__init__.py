"""How scores get biased, per backend. The one place that registers attention functions with transformers.

| backend of the model | function here | how the bias gets in |
|---|---|---|
| eager | hf_posswap_eager | scores written out; returns weights |
| sdpa | hf_posswap_sdpa | additive mask of the fused kernel, in blocks of queries (see `scores.can_fuse`) |
| flex_attention | hf_posswap_flex_attention | inside the kernel; biases of distance only |

Each has a mask function under the same name: without one transformers passes no mask at all, silently.
Input and rotary schemes use the model's stock attention and run on every backend.

A fourth function, hf_posswap_observed, shows its scores and weights to an observer while a model is measured.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from hf_posswap.attention.flex import flex_attention, flex_mask
from hf_posswap.attention.masks import BlockwiseMask, blockwise_mask
from hf_posswap.attention.scores import Block, attend, blocks, for_every_head, recomputed, weights_of
from hf_posswap.attention.segments import turned_blocks
from hf_posswap.errors import EvaluationError, SchemeError
from hf_posswap.positions import PositionContext, consecutive
from hf_posswap.schemes.base import NoBias
from hf_posswap.schemes.layered import PerLayer

PREFIX = "hf_posswap_"
BACKENDS = {"bias": ("eager", "sdpa", "flex_attention"), "score": ("eager", "sdpa")}
"""Backends that carry each kind of encoding which attention itself has to apply."""

OBSERVED = PREFIX + "observed"

ShowBlock = Callable[[int, Tensor, Tensor], None]
"""Takes the place of a block's first query among the queries, its scores before the softmax and its weights, both
`[B, H, q, K]`; a key that a query may not see has a score below `HIDDEN`, and there may be none after the block's last
query."""
Observer = Callable[[Tensor, Tensor], ShowBlock]
"""Called by each attention module in turn with queries `[B, H, Q, D]` and keys `[B, G, K, D]`, as attention gets them;
what it returns is shown the blocks."""
HIDDEN = torch.finfo(torch.float32).min / 2
NOT_OBSERVED = ("softcap", "s_aux", "position_bias")
"""Arguments of attention functions in transformers that change scores or weights, and that no family here has."""


def stock_backend(name: str | None) -> str:
    """The backend's own name, whether or not it is one of ours."""
    return (name or "sdpa").removeprefix(PREFIX)


def our_backend(kind: str, name: str | None, scheme: str) -> str:
    """The attention function that carries `kind` on the backend called `name`.

    Raises:
        SchemeError: that backend cannot carry it.
    """
    backend = stock_backend(name)
    if backend not in BACKENDS[kind]:
        carried = ", ".join(BACKENDS[kind])
        raise SchemeError(
            f"{scheme} cannot be carried by the attention implementation {backend!r}; "
            f"model.set_attn_implementation() to one of: {carried}."
        )
    return PREFIX + backend


def eager(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockwiseMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_context: PositionContext | PerLayer | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """transformers' attention interface: output `[B, Q, H, D]` and weights `[B, H, Q, K]`."""
    query, key, value, scale, context = _prepare(module, query, key, value, scaling, position_context)
    if context.runs is not None:
        whole = list(turned_blocks(module.layer_idx, query, key, value, attention_mask, context, whole=True))
    else:
        # One block with all keys: the caller may want the whole matrix of weights.
        key, value = for_every_head(query, key, value)
        whole = list(blocks(query, key, value, attention_mask, replace(context, causal=False), size=query.shape[2]))
    parts = [weights_of(block, scale, dropout, module.training) for block in whole]
    # The weights that are returned are those that the output is made of: a caller may ask for their gradient.
    weights = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return (weights @ whole[0].value).transpose(1, 2).contiguous(), weights


def sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockwiseMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_context: PositionContext | PerLayer | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: output `[B, Q, H, D]`, no weights."""
    query, key, value, scale, context = _prepare(module, query, key, value, scaling, position_context)
    cut = list(_blocks(module, query, key, value, attention_mask, context))
    # The scores of one block may stay for the backward pass, those of many would add up to all of them.
    one = recomputed if len(cut) > 1 and torch.is_grad_enabled() else attend
    parts = [one(block, scale, dropout, module.training) for block in cut]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def flex(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_context: PositionContext | PerLayer | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: output `[B, Q, H, D]`, no weights."""
    if dropout > 0:
        raise SchemeError("flex_attention has no attention dropout; model.eval(), or set it to 0 in the config.")
    query, key, value, scale, context = _prepare(module, query, key, value, scaling, position_context)
    output = flex_attention(module, query, key, value, attention_mask, context, scale)
    return output.transpose(1, 2).contiguous(), None


def observed(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockwiseMask | Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_context: PositionContext | PerLayer | None = None,
    observer: Observer | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: output `[B, Q, H, D]` without dropout, what it is made of shown to `observer`.

    Serves models without a scheme of ours too, which give no `position_context`. For calls without a cache.
    """
    unknown = [name for name in NOT_OBSERVED if kwargs.get(name) is not None]
    if observer is None or unknown:
        why = f"changes its scores by {unknown[0]}" if unknown else "is not handed the arguments of the call"
        raise EvaluationError(f"{type(module).__name__} {why}, so its attention cannot be observed.")
    context = _unbiased(module, query) if position_context is None else position_context
    query, key, value, scale, own = _prepare(module, query, key, value, scaling, context)
    show, parts = observer(query, key), []
    for block in _blocks(module, query, key, value, attention_mask, own):
        scores = block.scores(scale)
        weights = scores.softmax(dim=-1)
        show(block.start, scores, weights)
        parts.append(weights.to(block.value.dtype) @ block.value)
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _unbiased(module: nn.Module, query: Tensor) -> PositionContext:
    """Of a module whose attention is its queries, its keys and the mask."""
    positions, causal = consecutive(query.shape[2], 0, query.device), bool(getattr(module, "is_causal", False))
    return PositionContext(NoBias(), (positions,), (positions,), positions[0], causal)


def _blocks(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: BlockwiseMask | Tensor | None,
    context: PositionContext,
) -> Iterator[Block]:
    """Blocks of queries with the keys that they see, rotated where attention has to do that."""
    if context.runs is not None:
        return turned_blocks(module.layer_idx, query, key, value, mask, context)
    return blocks(query, key, value, mask, context)


def _prepare(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    given: "PositionContext | PerLayer | None",
) -> tuple[Tensor, Tensor, Tensor, float, PositionContext]:
    """The layer's own context, its scale applied to the queries, and the default scaling filled in."""
    if given is None:
        raise SchemeError(
            "Attention was reached without positions: call the model that was patched, not a layer of it, and leave "
            "config._attn_implementation of unpatched models to transformers' own names."
        )
    context = given.of(module.layer_idx) if isinstance(given, PerLayer) else given  # type: ignore[arg-type]
    if context.query_scale is not None:
        query = (query * context.query_scale[:, None, :, None]).to(query.dtype)
    return query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling, context


AttentionInterface.register(PREFIX + "eager", eager)
AttentionInterface.register(PREFIX + "sdpa", sdpa)
AttentionInterface.register(PREFIX + "flex_attention", flex)
AttentionInterface.register(OBSERVED, observed)
AttentionMaskInterface.register(OBSERVED, blockwise_mask)
AttentionMaskInterface.register(PREFIX + "eager", blockwise_mask)
AttentionMaskInterface.register(PREFIX + "sdpa", blockwise_mask)
AttentionMaskInterface.register(PREFIX + "flex_attention", flex_mask)
