"""Which position every query and every key has, from `position_ids`, the attention mask and the cache.

Rotated keys carry their position inside the cache. Biases and scores do not, so the positions of cached keys are
remembered on the cache object itself: it is copied, deep-copied and passed around together with the keys.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

REMEMBERED = "hf_posswap_key_positions"
"""Name of the attribute on a cache: positions of the keys in its slots, `[1 or B, slots]`."""


@dataclass
class PositionContext:
    """What attention is told once per forward pass, the same for all layers.

    `encoding` computes a bias or scores from `query_tables` (`[1 or B, Q, ...]`) and `key_tables`
    (`[1 or B, slots, ...]`, a row per slot of the cache). `causal`: no query sees a key in a later slot.
    """

    encoding: nn.Module
    query_tables: tuple[Tensor, ...]
    key_tables: tuple[Tensor, ...]
    causal: bool

    @property
    def key_positions(self) -> Tensor:
        """`[1 or B, slots]`."""
        return self.key_tables[0]

    def to(self, device: torch.device, non_blocking: bool = False) -> "PositionContext":
        """For models that accelerate has spread over several devices."""
        query, key = (
            tuple(t.to(device, non_blocking=non_blocking) for t in tables)
            for tables in (self.query_tables, self.key_tables)
        )
        return PositionContext(self.encoding, query, key, self.causal)

    def key_tables_at(self, slots: Tensor) -> tuple[Tensor, ...]:
        """The tables of the keys in `slots [K]`; slots that nothing was written to yet repeat the last one."""
        last = self.key_positions.shape[1] - 1
        return tuple(table.index_select(1, slots.clamp(max=last)) for table in self.key_tables)


def consecutive(length: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """`[1, length]` positions that follow `offset` earlier tokens: what models assume without `position_ids`."""
    return (torch.arange(length, device=device) + offset)[None]


def key_positions(cache: Any, offset: int | Tensor, queries: Tensor, mask: Tensor | None) -> Tensor:
    """Positions of the keys in all slots up to the new ones: `[1 or B, slots]`.

    `cache` holds `offset` tokens, `queries [1 or B, Q]` are the positions of the tokens that come now, `mask` is the
    2D attention mask, if any.
    """
    if isinstance(offset, int) and offset == 0:
        return queries
    remembered = getattr(cache, REMEMBERED, None)
    if not isinstance(offset, int):
        return _write_static(cache, remembered, offset, queries)
    if remembered is None or remembered.shape[1] < offset or not _rows_agree(remembered, queries):
        remembered = _consecutive_past(offset, queries, mask)
    rows = max(len(remembered), len(queries))
    past = remembered[:, :offset].to(queries.device)
    return torch.cat((past.expand(rows, -1), queries.expand(rows, -1)), dim=1)


def remember(cache: Any, positions: Tensor) -> None:
    """Keeps the positions of a cache's keys for the next call."""
    if getattr(cache, REMEMBERED, None) is not positions:
        setattr(cache, REMEMBERED, positions)


def _rows_agree(remembered: Tensor, queries: Tensor) -> bool:
    return 1 in (len(remembered), len(queries)) or len(remembered) == len(queries)


def _consecutive_past(offset: int, queries: Tensor, mask: Tensor | None) -> Tensor:
    """`[B, offset]`: the past of a cache that nothing was remembered of (a prefix, a hand-made cache).

    Its tokens are taken to be consecutive up to the first query, those that the mask leaves out not counted.
    """
    if mask is not None and mask.ndim == 2 and mask.shape[1] >= offset + queries.shape[1]:
        count = mask[:, : offset + 1].to(queries.device).long().cumsum(-1)
    else:
        count = torch.arange(offset + 1, device=queries.device)[None]
    return queries[:, :1] + count[:, :offset] - count[:, offset:]


def _write_static(cache: Any, remembered: Tensor | None, offset: Tensor, queries: Tensor) -> Tensor:
    """The same for a cache of fixed size, whose offset is a tensor: written in place, without reading a value."""
    slots = max(layer.max_cache_len for layer in cache.layers)
    offset = offset.to(queries.device)
    if remembered is None or remembered.shape[1] != slots or len(remembered) < len(queries):
        start = torch.arange(slots, device=queries.device)[None]
        # Before the first query: consecutive, unless the first call was remembered.
        fresh = (queries[:, :1] - offset + start).contiguous()
        if remembered is not None and _rows_agree(remembered, queries):
            known = min(remembered.shape[1], slots)
            fresh[:, :known] = remembered[:, :known].to(queries.device)
        remembered = fresh
    where = torch.arange(queries.shape[1], device=queries.device) + offset
    return remembered.index_copy_(1, where, queries.expand(len(remembered), -1))
