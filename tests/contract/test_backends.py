"""Property 5: attention implementations agree, or refuse by name, at patch time and when switched to later."""

import functools
import math
from typing import Any

import pytest
import torch
from allocations import elements_of
from pairs import LENGTH, VOCAB, build, close, draw_position_parameters, example, is_carried, pairs, patched, tokens

import hf_posswap as hp
from hf_posswap.attention import BACKENDS, PREFIX
from hf_posswap.schemes import SCHEMES

STOCK = ("eager", "sdpa")


@pairs()
@torch.no_grad()
def test_eager_and_sdpa_agree(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    found = {}
    for backend in STOCK:
        model.set_attn_implementation(backend)
        found[backend] = model(ids, attention_mask=mask).logits
    close(found["eager"][mask.bool()], found["sdpa"][mask.bool()], 1e-5)


@pairs()
@torch.no_grad()
def test_patching_keeps_the_backend(pair: Any) -> None:
    kind, scheme = pair
    for backend in STOCK:
        model = hp.patch(build(kind, attn_implementation=backend), example(scheme))
        assert model.config._attn_implementation.removeprefix(PREFIX) == backend
        assert hp.unpatch(model).config._attn_implementation == backend


@pairs(kind=("bias", "score"))
@torch.no_grad()
def test_a_later_switch_keeps_the_scheme(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    expected = model(ids).logits
    for backend in ("eager", "sdpa", "eager"):
        model.set_attn_implementation(backend)
        close(model(ids).logits, expected, 1e-5)
        assert model.config._attn_implementation == PREFIX + backend


@pairs(kind=("bias", "score"))
def test_eager_returns_attention_weights(pair: Any) -> None:
    kind, _ = pair
    model, ids = patched(pair, attn_implementation="eager"), tokens()
    weights = model(ids, output_attentions=True).attentions
    assert len(weights) == 2
    for layer in weights:
        assert layer.shape == (2, 4, LENGTH, LENGTH)
        torch.testing.assert_close(layer.sum(-1), torch.ones(2, 4, LENGTH))
        assert kind == "bert" or layer.triu(1).abs().max() == 0


@pairs(kind=("bias", "score"))
@pytest.mark.parametrize("name", ["flash_attention_2", "paged|sdpa", "no_such_thing"])
def test_backends_that_cannot_carry_it_are_refused_by_name(pair: Any, name: str) -> None:
    kind, scheme = pair
    model = build(kind)
    model.config._attn_implementation_internal = name
    with pytest.raises(hp.SchemeError, match=rf"{scheme.name} cannot be carried by .*{name.split('|')[0]}"):
        hp.patch(model, example(scheme))
    model = patched(pair)
    model.config._attn_implementation_internal = name
    with pytest.raises(hp.SchemeError, match=rf"{scheme.name} cannot be carried by .*{name.split('|')[0]}"):
        model(tokens())


FLEX = [(k, s) for k in ("llama", "bert") for s in SCHEMES if is_carried(k, s) and s.kind == "bias"]


@functools.cache
def flex_error() -> float:
    """How far stock LLaMA with flex_attention is from itself with sdpa on this machine."""
    torch._dynamo.reset()
    model, ids = build("llama"), torch.arange(4, 28)[None]
    expected = model(ids).logits
    model.set_attn_implementation("flex_attention")
    error = float((model(ids).logits - expected).norm() / expected.norm())
    return error if error == error else float("inf")


@pytest.mark.parametrize("pair", FLEX, ids=lambda p: f"{p[0]}-{p[1].name}")
@torch.no_grad()
def test_flex_agrees_in_the_forward_pass(pair: Any) -> None:
    if flex_error() > 1e-4:
        pytest.skip(f"torch's flex_attention is wrong on this CPU: stock LLaMA is off by {flex_error():.2g}")
    torch._dynamo.reset()
    model, ids = patched(pair), tokens()
    mask = torch.ones_like(ids)
    mask[0, -6:] = 0
    expected = model(ids, attention_mask=mask).logits
    model.set_attn_implementation("flex_attention")
    found = model(ids, attention_mask=mask).logits
    assert model.config._attn_implementation == PREFIX + "flex_attention"
    close(found[mask.bool()], expected[mask.bool()], 1e-5)


def test_flex_is_refused_where_it_cannot_carry_the_scheme() -> None:
    model = hp.patch(build("llama"), hp.XPos())
    model.set_attn_implementation("flex_attention")
    with pytest.raises(hp.SchemeError, match=r"xpos cannot be carried by .*flex_attention.*eager, sdpa"):
        model(tokens())


def test_gpt2_and_flex_is_refused_by_transformers_itself() -> None:
    model = hp.patch(build("gpt2"), hp.ALiBi())
    with pytest.raises(ValueError, match="flex"):
        model.set_attn_implementation("flex_attention")


@pairs(("llama", "gpt2", "bert", "mistral-window"), kind=("bias", "score"))
@torch.no_grad()
def test_blocks_of_queries_add_up(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers however the queries are cut."""
    model, ids = patched(pair), tokens()
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    expected = model(ids, attention_mask=mask).logits
    monkeypatch.setattr("hf_posswap.attention.scores.BLOCK_ELEMENTS", 1)
    monkeypatch.setattr("hf_posswap.attention.scores.SMALLEST_BLOCK", 5)
    close(model(ids, attention_mask=mask).logits[mask.bool()], expected[mask.bool()], 1e-5)


SHARPER = {
    "longrope": 1 + math.log(4) / math.log(8),  # its attention factor, squared
    "log_scaled": math.log(200) / math.log(8),
}
"""How much larger a scheme makes scores on purpose: their rounding errors grow along."""


@pairs(("llama", "gpt2", "bert"), kind=("bias", "score"))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_is_as_good_as_the_stock_model_in_it(pair: Any, dtype: torch.dtype) -> None:
    """Error against the same weights in float64, compared with that of the stock model without a bias."""
    kind, scheme = pair
    ids = tokens(length=200)
    stock = build(kind, **({"n_positions": 256} if kind == "gpt2" else {"max_position_embeddings": 256})).to(dtype)
    model = hp.patch(build(kind, **({"n_positions": 256} if kind == "gpt2" else {})).to(dtype), example(scheme))
    draw_position_parameters(model)
    errors = []
    for low in (stock, model):
        logits = low(ids).logits.double()
        exact = low.double()(ids).logits
        errors.append(float((logits - exact).norm() / exact.norm()))
    assert errors[1] <= 1.5 * errors[0] * SHARPER.get(scheme.name, 1.0), errors


@pairs(kind=("bias", "score"))
def test_no_square_tensor_is_made_or_kept(pair: Any) -> None:
    """Memory grows with L: no operation makes L x L elements, and what is kept for backward is far fewer in all."""
    length = 2048
    model = patched(pair)
    ids = torch.randint(4, VOCAB, (1, length))
    largest, kept = elements_of(lambda: model.base_model(ids, use_cache=False), block_elements=2**16)
    square = length * length
    assert largest < square / 4
    assert kept < square, kept / square


@pairs(("llama", "gpt2", "bert"), kind=("bias", "score"))
def test_blocks_give_the_gradients_of_the_whole(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = patched(pair).double(), tokens()
    weights = torch.randn(2, LENGTH, VOCAB, dtype=torch.float64)
    results = []
    for elements in (2**24, 1):
        monkeypatch.setattr("hf_posswap.attention.scores.BLOCK_ELEMENTS", elements)
        monkeypatch.setattr("hf_posswap.attention.scores.SMALLEST_BLOCK", 7)
        model.zero_grad()
        (model(ids).logits * weights).sum().backward()
        results.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
    for name, gradient in results[0].items():
        if gradient.norm() > 1e-9:
            close(results[1][name], gradient, 1e-5)


def test_every_kind_that_attention_applies_has_backends() -> None:
    assert set(BACKENDS) == {s.kind for s in SCHEMES} - {"input", "rotary"}
