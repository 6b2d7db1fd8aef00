"""Rotation by segment: a run of queries in one segment, with all keys rotated by that segment's frequencies.

Keys are cached as the projections gave them. Rotating all of them for every token would cost more than attention does,
so the rotated ones are kept beside the cache and appended to, as long as decoding stays in the segment and nobody
touched the cache; at any doubt they are made anew.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hf_posswap.attention.masks import BlockwiseMask
from hf_posswap.attention.scores import Block, blocks, for_every_head
from hf_posswap.positions import PositionContext, Run
from hf_posswap.schemes.base import NoBias
from hf_posswap.schemes.length_dependent import SegmentedRotation

MOST_RUNS = 256
"""More runs than that in one call (positions that jump about) are cheaper as scores of all segments at once."""

ROOM = 256
"""Keys that a buffer of rotated keys has room for beyond those it was made for."""

NOTHING = NoBias()


def runs(encoding: Any, positions: Tensor) -> tuple[Run, ...] | None:
    """Where queries at `positions [1 or B, Q]` change segments; None where looking is no help."""
    if not isinstance(encoding, SegmentedRotation) or not positions.shape[1]:
        return None
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # what is read now would be built into the program
        return None
    segments = encoding.segments(positions)
    changes = (segments[:, 1:] != segments[:, :-1]).any(dim=0).nonzero()[:, 0] + 1
    starts = [0, *changes.tolist()]
    if len(starts) > MOST_RUNS:
        return None
    ends = [*starts[1:], positions.shape[1]]
    rows = segments[:, starts].T.tolist()
    return tuple(Run(start, end, tuple(row)) for start, end, row in zip(starts, ends, rows, strict=True))


@dataclass
class Kept:
    """The rotated keys of one layer: `buffer [B, G, room, D]`, of which the first `length` are written."""

    segments: tuple[int, ...]
    buffer: Tensor
    length: int
    cached: weakref.ref
    version: int

    def still_holds(self, layer: Any) -> bool:
        """Whether the cache's layer has the keys that these were made of, unchanged."""
        keys: Any = getattr(layer, "keys", None)
        return isinstance(keys, Tensor) and _version(keys) == self.version and keys is self.cached()

    def can_take(self, keys: Tensor) -> bool:
        """Whether `keys` can be written into the buffer: of its dtype, and no inference tensor outside of that mode."""
        writable = torch.is_inference_mode_enabled() or not self.buffer.is_inference()
        return writable and self.buffer.dtype == keys.dtype


@dataclass
class RotatedKeys:
    """What is kept beside a cache, by layer. A copy of the cache starts without."""

    layers: dict[int, Kept] = field(default_factory=dict)

    def __deepcopy__(self, memo: Any) -> "RotatedKeys":
        return RotatedKeys()

    def __reduce__(self) -> Any:
        return RotatedKeys, ()

    def drop_stale(self, cache: Any) -> None:
        """Forgets the layers whose keys were reordered, cropped, reset or replaced since the last call."""
        known = cache.layers
        self.layers = {i: kept for i, kept in self.layers.items() if i < len(known) and kept.still_holds(known[i])}

    def turned(self, index: int, key: Tensor, run: Run, turn: "Turn") -> Tensor:
        """`key [B, G, K, D]` rotated for a run: those of earlier calls as they are kept, the new ones now."""
        kept, context = self.layers.get(index), turn.context
        if kept is None or kept.segments != run.segments or not kept.can_take(key):
            kept = self._anew(key, run, turn)
        elif context.growing:
            kept = self._appended(kept, key, run, turn)
        else:
            new = turn.written(key.index_select(2, context.query_slots), run)
            kept.buffer.index_copy_(2, context.query_slots, new)
        kept.cached, kept.version = weakref.ref(key), _version(key)
        self.layers[index] = kept
        return kept.buffer[:, :, : key.shape[2]]

    def _anew(self, key: Tensor, run: Run, turn: "Turn") -> Kept:
        turned, keys = turn.all_keys(key, run), key.shape[2]
        if turn.context.growing:
            turned = _with_room(turned, keys + ROOM)
        return Kept(run.segments, turned, keys, weakref.ref(key), _version(key))

    def _appended(self, kept: Kept, key: Tensor, run: Run, turn: "Turn") -> Kept:
        keys = key.shape[2]
        if keys > kept.buffer.shape[2]:
            kept.buffer = _with_room(kept.buffer[:, :, : kept.length], keys + max(ROOM, keys // 8))
        kept.buffer[:, :, kept.length : keys] = turn.written(key[:, :, kept.length :], run)
        kept.length = keys
        return kept


@dataclass
class Turn:
    """Rotates what one layer brings. Angles are worked out once for all layers and wait in `context.angles`."""

    context: PositionContext
    mask: BlockwiseMask | Tensor | None

    def queries(self, query: Tensor, run: Run) -> Tensor:
        """`query [B, H, q, D]` of a run."""
        at = self.context.query_tables[0][:, run.start : run.stop]
        return self._turned(query, at, run, ("queries", run.start, run.stop))

    def all_keys(self, key: Tensor, run: Run) -> Tensor:
        """`key [B, G, K, D]`, one for each of the slots."""
        blockwise = self.mask if isinstance(self.mask, BlockwiseMask) else None
        slots = self.context.last_slots(key.shape[2]) if blockwise is None else blockwise.key_slots
        # Layers of one kind share a mask, which lives as long as the call: its identity names their slots.
        name = ("keys", key.shape[2], None if blockwise is None else id(blockwise), run.segments)
        return self._turned(key, self.context.key_tables_at(slots)[0], run, name)

    def written(self, key: Tensor, run: Run) -> Tensor:
        """The keys `[B, G, q, D]` that came with the queries of this call, for a run's frequencies."""
        return self._turned(key, self.context.query_tables[0][:, -key.shape[2] :], run, ("written", run.segments))

    def _turned(self, x: Tensor, positions: Tensor, run: Run, name: tuple[Any, ...]) -> Tensor:
        encoding: Any = self.context.encoding
        known = self.context.angles
        if name not in known:
            known[name] = encoding.angles(positions, torch.tensor(run.segments), x.dtype)
        cos, sin = known[name]
        return encoding.turned(x, (cos.to(x.device), sin.to(x.device)))


def turned_blocks(
    index: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: BlockwiseMask | Tensor | None,
    context: PositionContext,
    whole: bool = False,
) -> Iterator[Block]:
    """Blocks of the rotated `query [B, H, Q, D]` with rotated keys, which attention then needs no positions for.

    `key, value [B, G, K, D]` are those of layer `index`; `whole` makes one block of a run.
    """
    assert context.runs is not None
    turn = Turn(context, mask)
    plain = replace(context, encoding=NOTHING, causal=context.causal and not whole)
    shared = query.shape[2] == 1 and not whole  # as `blocks` has it
    value = value if shared else for_every_head(query, value)[0]
    made: dict[tuple[int, ...], Tensor] = {}
    for run in context.runs:
        if run.segments not in made:
            keys = _keys(index, key, run, turn)
            made[run.segments] = keys if shared else for_every_head(query, keys)[0]
        asking = turn.queries(query[:, :, run.start : run.stop], run)
        size = run.stop - run.start if whole else None
        yield from blocks(asking, made[run.segments], value, mask, plain, size=size, first=run.start)


def _keys(index: int, key: Tensor, run: Run, turn: Turn) -> Tensor:
    store = turn.context.rotated_keys
    # A layer with a window keeps its last keys only, which move in its buffer at every step.
    if store is None or torch.is_grad_enabled() or key.shape[2] != turn.context.key_positions.shape[1]:
        return turn.all_keys(key, run)
    return store.turned(index, key, run, turn)


def _with_room(keys: Tensor, room: int) -> Tensor:
    buffer = keys.new_empty(*keys.shape[:2], room, keys.shape[3])
    buffer[:, :, : keys.shape[2]] = keys
    return buffer


def _version(keys: Tensor) -> int:
    """How often a tensor was written into; under `inference_mode` nobody counts."""
    return 0 if keys.is_inference() else keys._version
