"""Attention with a bias or with scores of its own, in blocks of queries: memory grows with L, not with L^2."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from hf_posswap.attention.masks import BlockwiseMask
from hf_posswap.positions import PositionContext
from hf_posswap.schemes.base import NoBias, ScoreEncoding

BLOCK_ELEMENTS = 2**24
"""Elements of one block of scores over all heads and rows: 64 MiB in float32."""

SMALLEST_BLOCK = 16
"""Queries of a block however long the keys are: below that, starting a kernel costs more than it computes."""


@dataclass
class Block:
    """A block of queries `[B, H, q, D]` with the keys and values `[B, H or G, K, D]` that it can see."""

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

    @property
    def unmasked(self) -> bool:
        """Whether nothing is added to the scores."""
        return self.mask is None and isinstance(self.encoding, NoBias)

    def biased(self) -> Tensor:
        """The bias `[B or 1, H or 1, q, K]`, the lowest number where a key is hidden.

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
    first: int = 0,
) -> Iterator[Block]:
    """Cuts `query [B, H, Q, D]` into blocks of `size`, by default as many as fit in `BLOCK_ELEMENTS`.

    `first` is the place of these queries among those of the whole call. A single query shares keys between heads.
    """
    total, keys = query.shape[2], key.shape[2]
    if total > 1:
        key, value = for_every_head(query, key, value)
    rows = query.shape[0] * query.shape[1] * keys
    size = size or max(SMALLEST_BLOCK, BLOCK_ELEMENTS // max(rows, 1))
    slots = mask.key_slots if isinstance(mask, BlockwiseMask) else context.last_slots(keys)
    key_tables = context.key_tables_at(slots)
    for start in range(0, total, size):
        stop = min(start + size, total)
        begin, end = first + start, first + stop
        visible = mask.keys_for(end, keys) if context.causal and isinstance(mask, BlockwiseMask) else keys
        yield Block(
            query=query[:, :, start:stop],
            key=key[:, :, :visible],
            value=value[:, :, :visible],
            mask=mask,
            start=begin,
            query_tables=tuple(t[:, begin:end] for t in context.query_tables),
            key_tables=tuple(t[:, :visible] for t in key_tables),
            own=context.query_slots[begin:end] - slots[0],
            encoding=context.encoding,
        )


def weights_of(block: Block, scaling: float, dropout_p: float, training: bool) -> Tensor:
    """Attention weights `[B, H, q, K]` by writing the scores out."""
    weights = block.scores(scaling).softmax(dim=-1).to(block.value.dtype)
    return dropout(weights, p=dropout_p, training=training)


def fused(block: Block, scaling: float, dropout_p: float) -> Tensor:
    """Output `[B, H, q, D]` through torch's kernel, with the bias as an additive mask."""
    query, bias = block.query, None if block.unmasked else block.biased()
    if isinstance(block.encoding, NoBias) and bias is not None:
        bias = bias.to(query.dtype)
    heads, shared = query.shape[1], block.key.shape[1]
    if heads != shared:
        # One query: the heads that share a key head take the place of queries, and no key is copied.
        query = query.reshape(query.shape[0], shared, heads // shared, query.shape[3])
        bias = (
            bias.reshape(bias.shape[0], shared, heads // shared, -1) if bias is not None and bias.shape[1] > 1 else bias
        )
    output = scaled_dot_product_attention(
        query, block.key, block.value, attn_mask=bias, dropout_p=dropout_p, scale=scaling
    )
    return output.reshape(block.query.shape)


def attend(block: Block, scaling: float, dropout_p: float, training: bool) -> Tensor:
    """Output `[B, H, q, D]` by torch's kernel where it is exact, else by writing the scores out."""
    if can_fuse(block):
        return fused(block, scaling, dropout_p)
    key, value = for_every_head(block.query, block.key, block.value)
    return weights_of(replace(block, key=key, value=value), scaling, dropout_p, training) @ value


def for_every_head(query: Tensor, *shared: Tensor) -> tuple[Tensor, ...]:
    """Keys and values repeated for the query heads that share them: `[B, G, K, D] -> [B, H, K, D]`."""
    groups = query.shape[1] // shared[0].shape[1]
    return shared if groups == 1 else tuple(x.repeat_interleave(groups, dim=1) for x in shared)


def recomputed(block: Block, scaling: float, dropout_p: float, training: bool) -> Tensor:
    """`attend`, keeping nothing of the size of the scores for the backward pass, which computes them again."""
    return checkpoint(attend, block, scaling, dropout_p, training, use_reentrant=False)


def can_fuse(block: Block) -> bool:
    """Whether torch's kernel takes this block without rounding the bias to the queries' dtype.

    Where it cannot, and for score encodings, the block's scores are written out.
    """
    if isinstance(block.encoding, ScoreEncoding):
        return False
    if isinstance(block.encoding, NoBias):
        return True
    exact = getattr(block.encoding, "exact_dtype", torch.float32)
    if block.query.dtype == exact:
        return True
    learned = torch.is_grad_enabled() and any(p.requires_grad for p in block.encoding.parameters())
    return block.query.device.type == "cpu" and not learned
