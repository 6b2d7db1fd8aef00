"""Property 3: decoding step by step with a cache gives the logits of one forward pass."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from pairs import CAUSAL, LENGTH, close, example, is_patched, pairs, patched, tokens
from torch import Tensor
from transformers import DynamicCache, StaticCache

import hf_posswap as hp

PREFILL = 10


def cache_for(model: Any, name: str) -> Any:
    if name == "dynamic":
        return DynamicCache(config=model.config)
    return StaticCache(config=model.config, max_cache_len=LENGTH + 5)


def step_by_step(model: Any, ids: Tensor, cache: Any, **per_call: Any) -> Tensor:
    """Logits of a prefill, a chunk of three tokens and single tokens after it."""
    borders = [0, PREFILL, PREFILL + 3, *range(PREFILL + 4, ids.shape[1] + 1)]
    parts = []
    for start, stop in pairwise(borders):
        call = {name: make(start, stop) for name, make in per_call.items()}
        parts.append(model(ids[:, start:stop], past_key_values=cache, use_cache=True, **call).logits)
    return torch.cat(parts, dim=1)


def assert_cached_equals_uncached(model: Any, ids: Tensor, cache: str, mask: Tensor, positions: Tensor) -> None:
    """Of all tokens of `mask [B, L]`, at `positions [B or 1, L]`."""
    whole = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    found = step_by_step(
        model,
        ids,
        cache_for(model, cache),
        attention_mask=lambda start, stop: mask[:, :stop],
        position_ids=lambda start, stop: positions[:, start:stop],
    )
    close(found[mask.bool()], whole[mask.bool()], 1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pairs(CAUSAL)
@torch.no_grad()
def test_cached_equals_uncached(pair: Any, cache: str) -> None:
    model, ids = patched(pair), tokens()
    close(step_by_step(model, ids, cache_for(model, cache)), model(ids, use_cache=False).logits, 1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pairs(CAUSAL)
@torch.no_grad()
def test_cached_equals_uncached_with_left_padding(pair: Any, cache: str) -> None:
    model, ids = patched(pair), tokens()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    assert_cached_equals_uncached(model, ids, cache, mask, positions)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pairs(tuple(k for k in CAUSAL if "window" not in k and "mixed" not in k))
@torch.no_grad()
def test_skipped_positions_are_remembered_by_the_cache(pair: Any, cache: str) -> None:
    model, ids = patched(pair), tokens()
    positions = torch.arange(LENGTH)[None] + (torch.arange(LENGTH) >= 6) * 20
    assert_cached_equals_uncached(model, ids, cache, torch.ones_like(ids), positions)


@pairs(CAUSAL)
@torch.no_grad()
def test_generate_takes_the_likeliest_tokens_of_full_passes(pair: Any) -> None:
    model, prompt = patched(pair), tokens(length=7)
    mask = torch.ones_like(prompt)
    mask[1, :3] = 0
    expected = prompt
    for _ in range(6):
        seen = torch.cat((mask, mask.new_ones(2, expected.shape[1] - 7)), dim=1)
        positions = (seen.cumsum(-1) - 1).clamp(min=0)
        last = model(expected, attention_mask=seen, position_ids=positions, use_cache=False).logits[:, -1]
        expected = torch.cat((expected, last.argmax(-1, keepdim=True)), dim=1)
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    assert torch.equal(model.generate(prompt, **options), expected)
    static = model.generate(prompt, cache_implementation="static", disable_compile=True, **options)
    assert torch.equal(static, expected)
    assert model.generate(prompt, num_beams=3, **options).shape == expected.shape


@pairs(("llama", "gpt2"))
@torch.no_grad()
def test_a_prefix_can_be_copied_cropped_and_continued(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    whole = model(ids, use_cache=False).logits
    cache = model(ids[:, :16], use_cache=True).past_key_values
    twin = copy.deepcopy(cache)
    close(model(ids[:, 16:], past_key_values=twin).logits, whole[:, 16:], 1e-5)
    cache.crop(-6)
    close(model(ids[:, 10:], past_key_values=cache).logits, whole[:, 10:], 1e-5)


@pairs(("llama", "gpt2"))
@torch.no_grad()
def test_a_static_cache_can_be_reset_and_used_again(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    cache = cache_for(model, "static")
    step_by_step(model, tokens(), cache)
    cache.reset()
    close(step_by_step(model, ids, cache), model(ids, use_cache=False).logits, 1e-5)


@pairs(("llama", "gpt2"))
@torch.no_grad()
def test_a_prefix_that_nothing_is_remembered_of_with_left_padding(pair: Any) -> None:
    """As prefix tuning has it: cached keys, then a padded batch without position_ids."""
    model, prefix, ids = patched(pair), tokens(1, 30), tokens(2, 12)
    if pair[1].kind in ("input", "rotary") or not pair[1].relative:
        return  # positions count the padding, as in stock models, and cached keys may be rotated already
    cache = model(prefix.expand(2, -1), use_cache=True).past_key_values
    vars(cache).pop("hf_posswap_key_positions")
    alone = model(ids, past_key_values=copy.deepcopy(cache)).logits
    for pads in (5, 20):
        row = torch.cat((torch.zeros(2, pads, dtype=torch.long), ids), dim=1)
        mask = torch.cat((torch.ones(2, 30), torch.zeros(2, pads), torch.ones(2, 12)), dim=1).long()
        padded = model(row, past_key_values=copy.deepcopy(cache), attention_mask=mask)
        close(padded.logits[:, pads:], alone, 1e-5)


@pairs(("llama", "gpt2"), kind=("bias", "score"))
@torch.no_grad()
def test_a_cache_of_selected_rows_is_refused(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    call = {"attention_mask": mask[:, :15], "position_ids": positions[:, :15]}
    cache = model(ids[:, :15], **call).past_key_values
    cache.batch_select_indices(torch.tensor([1]))
    with pytest.raises(hp.SchemeError, match="filled with 2 rows of positions and is continued with 1"):
        model(ids[1:, 15:], past_key_values=cache)


@pairs(("llama", "gpt2"))
@torch.no_grad()
def test_a_cache_that_another_scheme_filled_is_refused(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    if not is_patched(model):
        return
    cache = model(ids[:, :10], use_cache=True).past_key_values
    other = hp.Layered(hp.RoPE(rope_theta=77.0), pattern="R")
    hp.patch(model, other)
    with pytest.raises(hp.SchemeError, match=r"cache was filled under .* and is continued under .*: fill a new one"):
        model(ids[:, 10:], past_key_values=cache)
    static = cache_for(model, "static")
    model(ids[:, :10], past_key_values=static)
    hp.patch(model, example(pair[1]))
    static.reset()
    assert model(ids[:, :10], past_key_values=static).logits.isfinite().all()
