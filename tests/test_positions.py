"""Position arithmetic as properties: cached continuation, padding, caches of fixed size, masks written in blocks.

Every property compares with what needs no arithmetic at all: the whole sequence in one piece.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import masking_utils

from hf_posswap.attention.masks import BlockwiseMask, blockwise_mask
from hf_posswap.errors import SchemeError
from hf_posswap.positions import PositionContext, consecutive, key_positions, remember

thoroughly = settings(deadline=None, max_examples=80, derandomize=True)
chunk_lengths = st.lists(st.integers(1, 6), min_size=1, max_size=6)
seeds = st.integers(0, 2**32)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_positions(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(0, 10_000, (rows, length), generator=generator(seed))


def growing_cache() -> Any:
    return SimpleNamespace()


def fixed_cache(slots: int) -> Any:
    return SimpleNamespace(layers=[SimpleNamespace(max_cache_len=n) for n in (slots, max(1, slots - 3))])


def feed(cache: Any, chunks: list[Tensor], fixed: bool = False, first: int | Tensor = 0) -> Tensor:
    """Positions of all keys after the last chunk, each chunk a call of its own; a fixed cache counts in a tensor."""
    keys, offset = torch.empty(0), first
    for chunk in chunks:
        keys = key_positions(cache, offset, chunk, None)
        remember(cache, keys)
        offset = torch.tensor(int(offset) + chunk.shape[1]) if fixed else int(offset) + chunk.shape[1]
    return keys


def padded_like_generate(rows: int, length: int, seed: int, pad_position: int) -> tuple[Tensor, Tensor]:
    """A mask of left-padded rows and the positions that generation gives them."""
    pads = torch.randint(0, length, (rows, 1), generator=generator(seed))
    real = torch.arange(length)[None] >= pads
    return real, (real.cumsum(-1) - 1).masked_fill(~real, pad_position)


@given(chunk_lengths, st.integers(1, 3), seeds)
@thoroughly
def test_chunks_through_a_growing_cache_are_the_whole(lengths: list[int], rows: int, seed: int) -> None:
    whole = random_positions(rows, sum(lengths), seed)
    assert torch.equal(feed(growing_cache(), list(whole.split(lengths, dim=1))), whole)


@given(chunk_lengths, st.integers(1, 3), st.integers(0, 9), st.sampled_from([0, torch.tensor(0)]), seeds)
@thoroughly
def test_chunks_through_a_fixed_cache_are_the_whole(
    lengths: list[int], rows: int, spare: int, first: int | Tensor, seed: int
) -> None:
    total = sum(lengths)
    whole, cache = random_positions(rows, total, seed), fixed_cache(total + spare)
    keys = feed(cache, list(whole.split(lengths, dim=1)), fixed=True, first=first)
    assert torch.equal(keys[:, :total], whole)
    assert keys.shape in ((rows, total + spare), (rows, lengths[0]))
    # A cache that is reset counts from a tensor that is zero, into the memory of the sequence before.
    again = random_positions(rows, total, seed + 1)
    keys = feed(cache, list(again.split(lengths, dim=1)), fixed=True, first=torch.tensor(0))
    assert torch.equal(keys[:, :total], again)
    assert keys.shape == (rows, total + spare)


@given(st.lists(st.booleans(), min_size=2, max_size=5), st.booleans(), seeds)
@thoroughly
def test_chunks_shared_by_all_rows_may_mix_with_chunks_per_row(shared: list[bool], fixed: bool, seed: int) -> None:
    chunks = [random_positions(1 if one_row else 3, 4, seed + i) for i, one_row in enumerate(shared)]
    keys = feed(fixed_cache(24) if fixed else growing_cache(), chunks, fixed)
    whole = torch.cat([chunk.expand(3, -1) for chunk in chunks], dim=1)
    assert torch.equal(keys[:, : whole.shape[1]].expand(3, -1), whole)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 12), seeds)
@thoroughly
def test_a_cropped_cache_forgets_what_was_cropped(length: int, queries: int, kept: int, seed: int) -> None:
    kept, cache = min(kept, length), growing_cache()
    before, after = random_positions(2, length, seed), random_positions(2, queries, seed + 1)
    feed(cache, [before])
    assert torch.equal(key_positions(cache, kept, after, None), torch.cat((before[:, :kept], after), dim=1))


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 6), st.sampled_from([0, 1]), seeds)
@thoroughly
def test_a_past_that_nothing_is_known_of_is_read_from_the_mask(
    rows: int, past: int, queries: int, pad_position: int, seed: int
) -> None:
    real, positions = padded_like_generate(rows, past + 1, seed, pad_position)
    later = positions[:, -1:] + torch.arange(1, queries)
    real, positions = (torch.cat(pair, dim=1) for pair in ((real, torch.ones_like(later).bool()), (positions, later)))
    for mask in (real, real.long(), torch.cat((real, torch.zeros(rows, 3).bool()), dim=1)):
        keys = key_positions(growing_cache(), past, positions[:, past:], mask)
        assert torch.equal(keys[real], positions[real])


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 3), st.booleans(), seeds)
@thoroughly
def test_a_past_without_a_mask_is_consecutive(past: int, queries: int, rows: int, fixed: bool, seed: int) -> None:
    start = random_positions(rows, 1, seed) + past
    whole = start + torch.arange(-past, queries)
    cache, offset = (fixed_cache(40), torch.tensor(past)) if fixed else (growing_cache(), past)
    assert torch.equal(key_positions(cache, offset, whole[:, past:], None)[:, : past + queries], whole)


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([0, 1]), seeds)
@thoroughly
def test_left_padding_behind_a_past_that_nothing_is_known_of(
    past: int, queries: int, pad_position: int, seed: int
) -> None:
    new, _ = padded_like_generate(3, queries, seed, pad_position)
    real = torch.cat((torch.ones(3, past, dtype=torch.bool), new), dim=1)
    positions = (real.cumsum(-1) - 1).masked_fill(~real, pad_position)
    keys = key_positions(growing_cache(), past, positions[:, past:], real)
    assert torch.equal(keys[real], positions[real])


def test_a_batch_of_another_size_is_refused() -> None:
    cache, mask = growing_cache(), torch.tensor([[0, 1, 1, 1]] * 4)
    feed(cache, [torch.tensor([[0, 0, 1], [0, 1, 2]])])
    with pytest.raises(SchemeError, match="filled with 2 rows of positions and is continued with 4"):
        key_positions(cache, 3, torch.full((4, 1), 2), mask)


def test_positions_of_the_caller_are_never_written_to() -> None:
    given_first, cache = random_positions(2, 8, 1), fixed_cache(8)
    before = given_first.clone()
    feed(cache, [given_first])
    keys = key_positions(cache, torch.tensor(0), random_positions(2, 5, 2), None)
    assert torch.equal(keys[:, :5], random_positions(2, 5, 2))
    assert torch.equal(given_first, before)


@given(st.integers(1, 20), st.integers(0, 1000))
@thoroughly
def test_consecutive(length: int, offset: int) -> None:
    expected = torch.tensor([[offset + i for i in range(length)]])
    for given_offset in (offset, torch.tensor(offset)):
        assert torch.equal(consecutive(length, given_offset, torch.device("cpu")), expected)


def test_tables_follow_the_slots_and_the_device() -> None:
    tables = (random_positions(2, 6, 0), torch.randn(2, 6, 4))
    context = PositionContext(torch.nn.Identity(), tables, tables, torch.arange(6), causal=True)
    context = context.to(torch.device("cpu"))
    assert torch.equal(context.key_positions, tables[0])
    for table, at in zip(tables, context.key_tables_at(torch.tensor([3, 0, 5, 9])), strict=True):
        assert torch.equal(at, table[:, [3, 0, 5, 5]])


@st.composite
def mask_calls(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of transformers' mask interface."""
    rows, queries, past, hidden = (draw(st.integers(*ends)) for ends in ((1, 3), (1, 17), (0, 9), (0, 4)))
    window, chunk = draw(st.integers(1, 12)), torch.randint(0, 3, (rows, 64), generator=generator(draw(seeds)))
    kinds = {
        "causal": masking_utils.causal_mask_function,
        "window": masking_utils.sliding_window_causal_mask_function(window),
        "both": masking_utils.bidirectional_mask_function,
        "packed": masking_utils.and_masks(
            masking_utils.causal_mask_function, masking_utils.packed_sequence_mask_function(chunk.sort(-1).values)
        ),
    }
    hidden = min(hidden, past)
    padding = torch.rand(rows, past + queries, generator=generator(draw(seeds))) > 0.3
    return {
        "batch_size": rows,
        "q_length": queries,
        "kv_length": past + queries - hidden + draw(st.integers(0, 3)),
        "q_offset": past,
        "kv_offset": hidden,
        "mask_function": kinds[draw(st.sampled_from(sorted(kinds)))],
        "attention_mask": padding if draw(st.booleans()) else None,
    }


def dense(call: dict[str, Any]) -> Tensor:
    return masking_utils.sdpa_mask(**call, allow_is_causal_skip=False).expand(call["batch_size"], -1, -1, -1)


@given(mask_calls(), st.integers(1, 20), st.booleans())
@thoroughly
def test_blocks_of_any_size_tile_the_dense_mask(call: dict[str, Any], size: int, fixed: bool) -> None:
    expected = dense(call)
    mask = blockwise_mask(**{**call, "q_offset": torch.tensor(call["q_offset"]) if fixed else call["q_offset"]})
    assert mask.shape == expected.shape
    rows, _, queries, keys = mask.shape
    blocks = [mask.block(i, min(i + size, queries), keys, torch.device("cpu")) for i in range(0, queries, size)]
    assert all(block.dtype == torch.bool for block in blocks)
    assert torch.equal(torch.cat([block.expand(rows, 1, -1, keys) for block in blocks], dim=2), expected)


@given(mask_calls(), st.integers(1, 20), st.booleans())
@thoroughly
def test_keys_that_a_causal_block_leaves_out_are_hidden(call: dict[str, Any], size: int, fixed: bool) -> None:
    if call["mask_function"] is masking_utils.bidirectional_mask_function:
        call["mask_function"] = masking_utils.causal_mask_function
    expected = dense(call)
    mask = blockwise_mask(**{**call, "q_offset": torch.tensor(call["q_offset"]) if fixed else call["q_offset"]})
    queries, keys = mask.shape[2:]
    for start in range(0, queries, size):
        stop = min(start + size, queries)
        visible = mask.keys_for(stop, keys)
        assert 1 <= visible <= keys
        assert not expected[:, :, start:stop, visible:].any()
        assert torch.equal(
            mask.block(start, stop, visible, torch.device("cpu")).expand(mask.batch_size, 1, -1, visible),
            expected[:, :, start:stop, :visible],
        )


@given(st.integers(1, 17), st.integers(0, 9), st.integers(1, 20))
@thoroughly
def test_no_key_is_visited_in_vain(queries: int, past: int, stop: int) -> None:
    call = {"batch_size": 1, "q_length": queries, "kv_length": past + queries, "q_offset": past}
    mask = blockwise_mask(**call, mask_function=masking_utils.causal_mask_function)
    stop = min(stop, queries)
    visible = mask.keys_for(stop, past + queries)
    assert bool(mask.block(stop - 1, stop, visible, torch.device("cpu"))[..., -1])


def test_a_mask_made_before_the_forward_pass_is_kept() -> None:
    made = blockwise_mask(2, 5, 5, mask_function=masking_utils.causal_mask_function)
    assert blockwise_mask(2, 5, 5, attention_mask=made) is made.contiguous() is made
    assert isinstance(made, BlockwiseMask)
    assert made.ndim == 4


@pytest.mark.parametrize("block", [(0, 3), (2, 7), (6, 7)])
def test_a_block_keeps_the_offset_that_the_cache_had(block: tuple[int, int]) -> None:
    offset = torch.tensor(4)
    mask = blockwise_mask(1, 7, 16, q_offset=offset, mask_function=masking_utils.causal_mask_function)
    before = mask.block(*block, 16, torch.device("cpu"))
    offset += 7
    assert torch.equal(mask.block(*block, 16, torch.device("cpu")), before)
