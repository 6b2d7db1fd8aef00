"""Which position every query and every key has, from `position_ids`, the attention mask and the cache.

Rotated keys carry their position inside the cache. Biases and scores do not, so the positions of cached keys are
remembered on the cache object itself: it is copied, deep-copied and passed around together with the keys.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError

REMEMBERED = "hf_posswap_key_positions"
"""Name of the attribute on a cache: positions of the keys in its slots, `[1 or B, slots]`."""


@dataclass(frozen=True)
class Run:
    """Queries `start` to `stop` of a call, during which every row stays in one segment: `segments`, one a row."""

    start: int
    stop: int
    segments: tuple[int, ...]


@dataclass
class PositionContext:
    """What attention is told once per forward pass, the same for all layers.

    `encoding` computes a bias or scores from `query_tables` (`[1 or B, Q, ...]`) and `key_tables`
    (`[1 or B, slots, ...]`, a row per slot of the cache). `query_slots [Q]` are the slots of the queries' own keys.
    `causal`: no query sees a key in a later slot. `query_scale [1 or B, Q]`: a factor on queries. `growing`: keys are
    appended to what the cache holds, not written into slots of it. `runs` and `rotated_keys` serve rotation by segment.
    """

    encoding: nn.Module
    query_tables: tuple[Tensor, ...]
    key_tables: tuple[Tensor, ...]
    query_slots: Tensor
    causal: bool
    query_scale: Tensor | None = None
    growing: bool = True
    runs: tuple[Run, ...] | None = None
    rotated_keys: Any = None
    angles: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)

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
        scale = None if self.query_scale is None else self.query_scale.to(device)
        slots = self.query_slots.to(device)
        return replace(self, query_tables=query, key_tables=key, query_slots=slots, query_scale=scale)

    def last_slots(self, keys: int) -> Tensor:
        """The slots `[keys]` of the last keys known: where keys lie when no mask of ours says it."""
        known = self.key_positions.shape[1]
        return torch.arange(keys, device=self.key_positions.device) + max(known - keys, 0)

    def key_tables_at(self, slots: Tensor) -> tuple[Tensor, ...]:
        """The tables of the keys in `slots [K]`; slots that nothing was written to yet repeat the last one."""
        last = self.key_positions.shape[1] - 1
        return tuple(table.index_select(1, slots.clamp(max=last)) for table in self.key_tables)


def padding_leads(queries: Tensor, mask: Tensor | None) -> Tensor:
    """`queries [1 or B, Q]` with the padding before a row's first token at that token's position.

    Nobody attends to padding, but an encoding may measure from the first query.
    """
    length = queries.shape[1]
    if mask is None or mask.ndim != 2 or mask.shape[1] < length:
        return queries
    first = mask[:, mask.shape[1] - length :].to(queries.device).long().argmax(dim=1, keepdim=True)
    queries = queries.expand(len(mask), -1)
    before = torch.arange(length, device=queries.device) < first
    return torch.where(before, queries.gather(1, first), queries)


def tokens_of_rows(queries: Tensor, mask: Tensor | None) -> Tensor:
    """`[1 or B, 1 or Q]`: how many tokens each query may read in a row that is read in both directions."""
    if mask is None:
        return torch.full((1, 1), queries.shape[1], device=queries.device)
    if mask.ndim == 2:
        return mask.to(queries.device).long().sum(dim=1, keepdim=True)
    # A mask of the caller's own `[B, 1, Q, K]`, of booleans or of what is added to scores: packed sequences, say.
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return seen.to(queries.device)[:, 0].sum(dim=-1)


def consecutive(length: int, offset: int | Tensor, device: torch.device) -> Tensor:
    """`[1, length]` positions that follow `offset` earlier tokens: what models assume without `position_ids`."""
    return (torch.arange(length, device=device) + offset)[None]


def key_positions(
    cache: Any, offset: int | Tensor, queries: Tensor, mask: Tensor | None, batch: int | None = None
) -> Tensor:
    """Positions of the keys in all slots up to the new ones: `[1 or B, slots]`.

    `cache` holds `offset` tokens, `queries [1 or B, Q]` are the positions of the tokens that come now in `batch`
    rows, `mask` is the 2D attention mask, if any.

    Raises:
        SchemeError: the cache was filled with another number of rows.
    """
    if isinstance(offset, int) and offset == 0:
        return queries
    remembered = getattr(cache, REMEMBERED, None)
    if remembered is not None:
        _refuse_other_rows(len(remembered), batch if batch or len(queries) == 1 else len(queries))
    if not isinstance(offset, int):
        return _write_static(cache, remembered, offset, queries)
    if remembered is None or remembered.shape[1] < offset:
        remembered = _consecutive_past(offset, queries, mask)
    rows = max(len(remembered), len(queries))
    past = remembered[:, :offset].to(queries.device)
    return torch.cat((past.expand(rows, -1), queries.expand(rows, -1)), dim=1)


def remember(cache: Any, positions: Tensor) -> None:
    """Keeps the positions of a cache's keys for the next call: a copy, because the caller may own what came in."""
    if getattr(cache, REMEMBERED, None) is not positions:
        setattr(cache, REMEMBERED, _writable(positions))


def _writable(positions: Tensor) -> Tensor:
    """A copy that can be written into outside of `inference_mode` too."""
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return positions.clone()
    with torch.inference_mode(False):
        return positions.clone()


def _refuse_other_rows(remembered: int, rows: int | None) -> None:
    if rows is not None and 1 != remembered != rows:
        raise SchemeError(
            f"The cache was filled with {remembered} rows of positions and is continued with {rows}: fill it anew "
            "after selecting or repeating rows."
        )


def _consecutive_past(offset: int, queries: Tensor, mask: Tensor | None) -> Tensor:
    """`[B, offset]`: the past of a cache that nothing was remembered of (a prefix, a hand-made cache).

    Its tokens are taken to be consecutive up to the first query that is no padding; what the mask hides is not counted.
    """
    total = offset + queries.shape[1]
    if mask is None or mask.ndim != 2 or mask.shape[1] < total:
        return queries[:, :1] - offset + torch.arange(offset, device=queries.device)
    seen = mask[:, :total].to(queries.device).long()
    first = seen[:, offset:].argmax(dim=1, keepdim=True)
    count = seen.cumsum(dim=1)
    anchor = queries.expand(len(seen), -1).gather(1, first) - count.gather(1, first + offset)
    return anchor + count[:, :offset]


def _write_static(cache: Any, remembered: Tensor | None, offset: Tensor, queries: Tensor) -> Tensor:
    """The same for a cache of fixed size, whose offset is a tensor: written in place, without reading a value."""
    slots = max(layer.max_cache_len for layer in cache.layers)
    offset = offset.to(queries.device)
    if remembered is None or remembered.shape[1] != slots or len(remembered) < len(queries):
        # Before the first query: consecutive, unless an earlier call was remembered.
        fresh = queries[:, :1] - offset + torch.arange(slots, device=queries.device)
        if remembered is not None:
            fresh = fresh.expand(max(len(remembered), len(queries)), -1).clone()
            known = min(remembered.shape[1], slots)
            fresh[:, :known] = remembered[:, :known].to(queries.device)
        remembered = fresh
    where = torch.arange(queries.shape[1], device=queries.device) + offset
    return remembered.index_copy_(1, where, queries.expand(len(remembered), -1))
