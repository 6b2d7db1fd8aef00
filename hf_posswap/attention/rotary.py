"""Rotation where a family has no rotary slot: after the projections, before the cache."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_posswap.schemes.base import rotated


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x [B, H, L, D]` with dimensions i and i + D/2 turned by the angle of `cos, sin [B, L, D]`."""
    cos, sin = (table[..., : table.shape[-1] // 2].to(x.device) for table in (cos, sin))
    return rotated(x, cos, sin, "half")


def attend_rotated(
    module: Any,
    projected: tuple[Tensor, Tensor, Tensor],
    position_embeddings: tuple[Tensor, Tensor],
    past_key_values: Any,
    attention_mask: Any,
    dropout: nn.Dropout,
    eager: Callable[..., Any],
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """What stock self-attention does between its projections, with queries and keys rotated first.

    `projected` are query, key and value `[B, H, Q, D]`; `eager` is the family's own eager function. Returns the output
    `[B, Q, H, D]` and the weights, if the backend gives them.
    """
    query, key, value = projected
    query, key = rotate(query, *position_embeddings), rotate(key, *position_embeddings)
    if past_key_values is not None:
        own = past_key_values
        own = own.self_attention_cache if isinstance(own, EncoderDecoderCache) else own
        key, value = own.update(key, value, module.layer_idx)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager)
    p = dropout.p if module.training else 0.0
    return attend(module, query, key, value, attention_mask, dropout=p, scaling=module.scaling, **kwargs)
