"""Biases through flex_attention: the bias is computed inside the kernel, from positions and head."""

from typing import Any

from torch import Tensor, nn
from transformers import AttentionMaskInterface
from transformers.integrations.flex_attention import compile_friendly_flex_attention

from hf_posswap.errors import SchemeError
from hf_posswap.positions import PositionContext
from hf_posswap.schemes.base import DistanceBias, NoBias

STOCK_MASK = AttentionMaskInterface()["flex_attention"]


def flex_mask(*args: Any, **kwargs: Any) -> Any:
    """transformers' block mask, unchanged: flex is index-based like it."""
    return STOCK_MASK(*args, **kwargs)


def flex_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    context: PositionContext,
    scaling: float,
) -> Tensor:
    """Output `[B, H, Q, D]`.

    Raises:
        SchemeError: the encoding is no function of distance, or the caller brought a dense mask of its own.
    """
    encoding = context.encoding
    if not isinstance(encoding, (DistanceBias, NoBias)):
        raise SchemeError("flex_attention carries biases of distance only; set_attn_implementation('sdpa') or 'eager'.")
    if isinstance(mask, Tensor):
        raise SchemeError("flex_attention with a bias takes no 4D mask; set_attn_implementation('sdpa') or 'eager'.")
    query_positions = context.query_tables[0].expand(query.shape[0], -1)
    key_tables = context.key_tables_at(context.last_slots(key.shape[2]))
    key_positions = key_tables[0].expand(query.shape[0], -1)

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert isinstance(encoding, DistanceBias)
        return score + encoding.bias(query_positions[batch, q] - key_positions[batch, k], head)

    return compile_friendly_flex_attention(
        query,
        key,
        value,
        training=module.training,
        score_mod=None if isinstance(encoding, NoBias) else add_bias,
        block_mask=mask,
        enable_gqa=query.shape[1] != key.shape[1],
        scale=scaling,
    )
