"""A mask that is written out one block of queries at a time, so that no `[L, L]` tensor is ever made for it.

transformers asks the mask function registered under the attention's own name once per forward pass; stock functions
return a dense tensor. It also knows there where queries and keys lie in the cache, which attention needs as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass
class BlockwiseMask:
    """Which keys each query may see.

    `query_slots [Q]` and `key_slots [K]` are the places of queries and keys in the sequence as the cache counts it;
    `allowed(batch, head, query_slot, key_slot)` is transformers' index-based mask function; `padding [B, K]` is False
    for keys that are padding.
    """

    allowed: Callable[..., Tensor]
    padding: Tensor | None
    batch_size: int
    query_slots: Tensor
    key_slots: Tensor
    key_count: int | None
    """Keys visible to the first query, where that is a plain number; None under a cache of fixed size."""

    ndim = 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(B, 1, Q, K)`, the shape of the dense mask that this one stands for."""
        return self.batch_size, 1, len(self.query_slots), len(self.key_slots)

    def contiguous(self) -> "BlockwiseMask":
        """Itself: `generate` asks this of a mask that it makes before the forward pass (caches of fixed size)."""
        return self

    def block(self, start: int, stop: int, keys: int, device: torch.device) -> Tensor:
        """True where a query of the block may see one of the first keys: broadcasts to `[B, 1, stop - start, keys]`."""
        batch = torch.arange(self.batch_size, device=self.query_slots.device).view(-1, 1, 1, 1)
        queries = self.query_slots[start:stop].view(1, 1, -1, 1)
        key_slots = self.key_slots[:keys].view(1, 1, 1, -1)
        seen = self.allowed(batch, batch.new_zeros(1, 1, 1, 1), queries, key_slots)
        if self.padding is not None:
            seen = seen & self.padding[:, None, None, :keys]
        return seen.to(device)

    def keys_for(self, stop: int, total: int) -> int:
        """How many of the `total` keys a causal query before `stop` can see."""
        return total if self.key_count is None else min(total, self.key_count + stop - 1)


def blockwise_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] | None = None,
    attention_mask: "Tensor | BlockwiseMask | None" = None,
    device: Any = "cpu",
    **kwargs: Any,
) -> BlockwiseMask:
    """transformers' mask interface (`masking_utils.AttentionMaskInterface`), for eager and sdpa."""
    if isinstance(attention_mask, BlockwiseMask):  # made by generate before the forward pass
        return attention_mask
    assert mask_function is not None
    padding = attention_mask
    if padding is not None:
        missing = kv_length + kv_offset - padding.shape[-1]
        padding = pad(padding, (0, missing)) if missing > 0 else padding
        padding = padding[:, kv_offset : kv_offset + kv_length]
    return BlockwiseMask(
        allowed=mask_function,
        padding=padding,
        batch_size=batch_size,
        # The offset of a cache of fixed size is a tensor that the cache will count up: the sum keeps its value of now.
        query_slots=torch.arange(q_length, device=device) + q_offset,
        key_slots=torch.arange(kv_length, device=device) + kv_offset,
        key_count=q_offset - kv_offset + 1 if isinstance(q_offset, int) else None,
    )
