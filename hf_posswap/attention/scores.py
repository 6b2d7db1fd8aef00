"""Attention with a bias or with scores of its own, in blocks of queries: memory grows with L, not with L^2."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from hf_posswap.attention.masks import BlockwiseMask
from hf_posswap.positions import PositionContext
from hf_posswap.schemes.base import ScoreEncoding

BLOCK_ELEMENTS = 2**24
"""Elements of one block of scores over all heads and rows: 64 MiB in float32."""

SMALLEST_BLOCK = 16
"""Queries of a block however long the keys are: below that, starting a kernel costs more than it computes."""


@dataclass
class Block:
    """A block of queries with the keys that it can see."""

    query: Tensor
    key: Tensor
    value: Tensor
    seen: Tensor | None
    query_tables: tuple[Tensor, ...]
    key_tables: tuple[Tensor, ...]
    encoding: nn.Module

    def biased(self) -> Tensor:
        """The bias `[B or 1, H, q, K]`, the lowest number where a key is hidden.

        Not minus infinity: a padding query that sees nothing must come out finite, or its NaN reaches the others
        through the next layer's values.
        """
        bias = self.encoding(self.query_tables, self.key_tables)
        return bias if self.seen is None else _hide(bias, self.seen)

    def scores(self, scaling: float) -> Tensor:
        """`[B, H, q, K]` in the bias's precision, hidden keys at the lowest number."""
        if isinstance(self.encoding, ScoreEncoding):
            own = self.encoding(self.query, self.key, self.query_tables, self.key_tables)
            scores = own.to(self.encoding.exact_dtype) * scaling
            return scores if self.seen is None else _hide(scores, self.seen)
        return self.query @ self.key.transpose(-1, -2) * scaling + self.biased()


def _hide(scores: Tensor, seen: Tensor) -> Tensor:
    lowest = torch.finfo(scores.dtype).min
    if seen.dtype != torch.bool:  # a caller's own additive mask
        return (scores + seen.to(scores.dtype)).clamp(min=lowest)
    return torch.where(seen, scores, lowest)


def blocks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: BlockwiseMask | Tensor | None,
    context: PositionContext,
    size: int | None = None,
) -> Iterator[Block]:
    """Cuts `query [B, H, Q, D]` into blocks of `size`, by default as many as fit in `BLOCK_ELEMENTS`."""
    total, keys = query.shape[2], key.shape[2]
    rows = query.shape[0] * query.shape[1] * keys
    size = size or max(SMALLEST_BLOCK, BLOCK_ELEMENTS // max(rows, 1))
    slots = mask.key_slots if isinstance(mask, BlockwiseMask) else _slots(context, keys)
    key_tables = context.key_tables_at(slots)
    for start in range(0, total, size):
        stop = min(start + size, total)
        visible = mask.keys_for(stop, keys) if context.causal and isinstance(mask, BlockwiseMask) else keys
        yield Block(
            query=query[:, :, start:stop],
            key=key[:, :, :visible],
            value=value[:, :, :visible],
            seen=_seen(mask, start, stop, visible, query.device),
            query_tables=tuple(t[:, start:stop] for t in context.query_tables),
            key_tables=tuple(t[:, :visible] for t in key_tables),
            encoding=context.encoding,
        )


def _slots(context: PositionContext, keys: int) -> Tensor:
    """Slots of the keys when the caller brought a mask of its own: the last ones of those known."""
    known = context.key_positions.shape[1]
    return torch.arange(keys, device=context.key_positions.device) + max(known - keys, 0)


def _seen(mask: BlockwiseMask | Tensor | None, start: int, stop: int, keys: int, device: torch.device) -> Tensor | None:
    if isinstance(mask, BlockwiseMask):
        return mask.block(start, stop, keys, device)
    return None if mask is None else mask[:, :, start:stop, :keys].to(device)


def explicit(block: Block, scaling: float, dropout_p: float, training: bool) -> tuple[Tensor, Tensor]:
    """Output `[B, H, q, D]` and weights `[B, H, q, K]` by writing the scores out."""
    weights = block.scores(scaling).softmax(dim=-1).to(block.value.dtype)
    weights = dropout(weights, p=dropout_p, training=training)
    return weights @ block.value, weights


def fused(block: Block, scaling: float, dropout_p: float) -> Tensor:
    """The same through torch's kernel, with the bias as an additive mask."""
    return scaled_dot_product_attention(
        block.query, block.key, block.value, attn_mask=block.biased(), dropout_p=dropout_p, scale=scaling
    )


def can_fuse(block: Block) -> bool:
    """Whether torch's kernel takes this block without rounding the bias to the queries' dtype.

    Where it cannot, and for score encodings, the block's scores are written out.
    """
    if isinstance(block.encoding, ScoreEncoding):
        return False
    exact = getattr(block.encoding, "exact_dtype", torch.float32)
    if block.query.dtype == exact:
        return True
    learned = torch.is_grad_enabled() and any(p.requires_grad for p in block.encoding.parameters())
    return block.query.device.type == "cpu" and not learned
