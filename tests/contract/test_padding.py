"""Property 4: padding shifts nothing, packed sequences are the sequences alone, skipped positions are honoured."""

from typing import Any

import pytest
import torch
from oracles import oracle_logits
from pairs import CAUSAL, KINDS, LENGTH, build, close, pairs, patched, tokens

import hf_posswap as hp

SHORT = 15


@pytest.mark.parametrize("side", ["left", "right"])
@pairs()
@torch.no_grad()
def test_padded_equals_unpadded(pair: Any, side: str) -> None:
    model, ids = patched(pair), tokens()
    start = LENGTH - SHORT if side == "left" else 0
    mask = torch.ones_like(ids)
    mask[0] = 0
    mask[0, start : start + SHORT] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = model(ids, attention_mask=mask, position_ids=positions).logits
    alone = model(ids[:1, start : start + SHORT]).logits
    close(padded[:1, start : start + SHORT], alone, 1e-5)
    close(padded[1:], model(ids[1:]).logits, 1e-5)
    assert padded.isfinite().all()


@pairs(kind=("rotary", "bias", "score"), relative=True)
@torch.no_grad()
def test_relative_schemes_need_no_position_ids_for_left_padding(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    mask = torch.ones_like(ids)
    mask[0, : LENGTH - SHORT] = 0
    padded = model(ids, attention_mask=mask).logits
    close(padded[:1, -SHORT:], model(ids[:1, -SHORT:]).logits, 1e-5)


@pairs(tuple(k for k in CAUSAL if k != "bert-decoder"))
@torch.no_grad()
def test_packed_equals_alone(pair: Any) -> None:
    """As transformers honours it: positions that restart, no mask, no cache."""
    model, ids = patched(pair), tokens()
    lengths = (9, 15)
    positions = torch.cat([torch.arange(n) for n in lengths])[None].expand(2, -1)
    packed = model(ids, position_ids=positions, use_cache=False).logits
    for part, found in zip(ids.split(lengths, 1), packed.split(lengths, 1), strict=True):
        close(found, model(part, use_cache=False).logits, 1e-5)


@pairs()
@torch.no_grad()
def test_packed_with_a_mask_of_the_caller(pair: Any) -> None:
    """As BERT needs it: a 4D mask with a block for each document."""
    model, ids = patched(pair), tokens()
    if "window" in pair[0] or "mixed" in pair[0]:
        pytest.skip("a caller's own 4D mask replaces the window of stock transformers as well")
    lengths = (9, 15)
    positions = torch.cat([torch.arange(n) for n in lengths])[None].expand(2, -1)
    blocks = torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool()
    allowed = (blocks.tril() if pair[0] != "bert" else blocks)[None, None].expand(2, -1, -1, -1)
    packed = model(ids, position_ids=positions, attention_mask=allowed).logits
    for part, found in zip(ids.split(lengths, 1), packed.split(lengths, 1), strict=True):
        close(found, model(part).logits, 1e-5)


@pairs(kind=("rotary", "bias", "score"))
@torch.no_grad()
def test_skipped_positions_are_honoured(pair: Any) -> None:
    """Moving the second half away is the same as having that many more tokens between, which nobody attends to."""
    kind, _ = pair
    if "window" in kind or "mixed" in kind:
        pytest.skip("a window counts tokens, not positions, in stock transformers too")
    model, ids = patched(pair), tokens()
    gap = 13
    positions = torch.arange(LENGTH)[None] + (torch.arange(LENGTH) >= 10) * gap
    skipped = model(ids, position_ids=positions.expand(2, -1), attention_mask=torch.ones_like(ids)).logits
    filled = torch.cat((ids[:, :10], torch.full((2, gap), 3), ids[:, 10:]), dim=1)
    hidden = torch.ones_like(filled)
    hidden[:, 10 : 10 + gap] = 0
    expected = model(filled, attention_mask=hidden).logits
    close(skipped, torch.cat((expected[:, :10], expected[:, 10 + gap :]), dim=1), 1e-5)


@pairs(CAUSAL)
@torch.no_grad()
def test_jumps_of_any_size_stay_finite(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    if hp.scheme_of(model).limit() is not None:
        return
    positions = torch.arange(LENGTH)[None] + (torch.arange(LENGTH) >= 10) * 500_000
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        assert model(ids, position_ids=positions, attention_mask=torch.ones_like(ids)).logits.isfinite().all()


@pytest.mark.parametrize("kind", [k for k in CAUSAL if k != "bert-decoder"])
def test_an_ambiguous_call_is_refused(kind: str) -> None:
    model, ids = hp.patch(build(kind), hp.ALiBi()), tokens()
    positions = torch.arange(LENGTH)[None]
    with pytest.raises(hp.SchemeError, match=r"attention_mask of ones .* or use_cache=False"):
        model(ids, position_ids=positions)
    model(ids, position_ids=positions, attention_mask=torch.ones_like(ids))
    model(ids, position_ids=positions, use_cache=False)
    model(ids)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_inputs_embeds_get_positions_too(kind: str) -> None:
    for scheme in (hp.Sinusoidal(), hp.RoPE(rope_theta=777.0), hp.ALiBi()):
        model, ids = hp.patch(build(kind), scheme), tokens()
        embeddings = model.get_input_embeddings()(ids)
        close(model(inputs_embeds=embeddings).logits, model(ids).logits, 1e-6)
        close(model(ids).logits, oracle_logits(build(kind), model, embeddings), 2e-5)
