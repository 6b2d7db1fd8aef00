"""Attention with a bias or with scores of its own, in blocks of queries: memory grows with L, not with L^2."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

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
    mask: BlockwiseMask | Tensor | None
    start: int
    query_tables: tuple[Tensor, ...]
    key_tables: tuple[Tensor, ...]
    own: Tensor
    """Which of the keys belongs to each query's own token, `[q]`."""
    encoding: nn.Module

    def biased(self) -> Tensor:
        """The bias `[B or 1, H, q, K]`, the lowest number where a key is hidden.

        Not minus infinity: a padding query that sees nothing must come out finite, or its NaN reaches the others
        through the next layer's values.
        """
        return self._hide(self.encoding(self.query_tables, self.key_tables))

    def scores(self, scaling: float) -> Tensor:
        """`[B, H, q, K]` in the bias's precision, hidden keys at the lowest number."""
        if isinstance(self.encoding, ScoreEncoding):
            own = self.encoding(self.query, self.key, self.query_tables, self.key_tables, self.own)
            return self._hide(own.to(self.encoding.exact_dtype) * scaling)
        return self.query @ self.key.transpose(-1, -2) * scaling + self.biased()

    def _hide(self, scores: Tensor) -> Tensor:
        stop, keys = self.start + self.query.shape[2], self.key.shape[2]
        lowest = torch.finfo(scores.dtype).min
        if self.mask is None:
            return scores
        if isinstance(self.mask, BlockwiseMask):
            return torch.where(self.mask.block(self.start, stop, keys, scores.device), scores, lowest)
        own = self.mask[:, :, self.start : stop, :keys].to(scores.device)
        if own.dtype == torch.bool:
            return torch.where(own, scores, lowest)
        return (scores + own.to(scores.dtype)).clamp(min=lowest)


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
    slots = mask.key_slots if isinstance(mask, BlockwiseMask) else context.last_slots(keys)
    key_tables = context.key_tables_at(slots)
    for start in range(0, total, size):
        stop = min(start + size, total)
        visible = mask.keys_for(stop, keys) if context.causal and isinstance(mask, BlockwiseMask) else keys
        yield Block(
            query=query[:, :, start:stop],
            key=key[:, :, :visible],
            value=value[:, :, :visible],
            mask=mask,
            start=start,
            query_tables=tuple(t[:, start:stop] for t in context.query_tables),
            key_tables=tuple(t[:, :visible] for t in key_tables),
            own=context.query_slots[start:stop] - slots[0],
            encoding=context.encoding,
        )


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


def attend(block: Block, scaling: float, dropout_p: float, training: bool) -> Tensor:
    """Output `[B, H, q, D]` by torch's kernel where it is exact, else by writing the scores out."""
    if can_fuse(block):
        return fused(block, scaling, dropout_p)
    return explicit(block, scaling, dropout_p, training)[0]


def recomputed(block: Block, scaling: float, dropout_p: float, training: bool) -> Tensor:
    """`attend`, keeping nothing of the size of the scores for the backward pass, which computes them again."""
    return checkpoint(attend, block, scaling, dropout_p, training, use_reentrant=False)


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
