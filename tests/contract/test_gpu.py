"""What only a GPU shows: its kernels, its dtypes, compiled decoding, and memory."""

from typing import Any

import pytest
import torch
from pairs import (
    CAUSAL,
    build,
    close,
    draw_position_parameters,
    example,
    is_carried,
    is_patched,
    pairs,
    patched,
    tokens,
)

import hf_posswap as hp
from hf_posswap.schemes import SCHEMES

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),
]


@pairs()
@torch.no_grad()
def test_gpu_equals_cpu(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    mask = torch.ones_like(ids)
    mask[0, :6] = 0
    expected = model(ids, attention_mask=mask).logits[mask.bool()]
    model.cuda()
    for backend in ("sdpa", "eager"):
        model.set_attn_implementation(backend)
        found = model(ids.cuda(), attention_mask=mask.cuda()).logits[mask.bool().cuda()]
        close(found.cpu(), expected, 1e-4)
    if is_patched(model):
        close(hp.unpatch(model)(ids.cuda()).logits.cpu(), build(pair[0])(ids).logits, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pairs()
@torch.no_grad()
def test_half_precision_is_as_good_as_the_stock_model_in_it(pair: Any, dtype: torch.dtype) -> None:
    kind, scheme = pair
    longer = {"n_positions": 512} if kind == "gpt2" else {"max_position_embeddings": 512}
    ids = tokens(length=400)
    stock, model = (build(kind, **longer).to(dtype) for _ in range(2))
    hp.patch(model, example(scheme))
    draw_position_parameters(model)
    errors = []
    for low in (stock, model):
        logits = low.cuda()(ids.cuda()).logits.double().cpu()
        exact = low.cpu().double()(ids).logits
        errors.append(float((logits - exact).norm() / exact.norm()))
    assert errors[1] <= 1.5 * errors[0], errors


@pairs(CAUSAL)
@torch.no_grad()
def test_compiled_decoding_with_a_static_cache(pair: Any) -> None:
    """`generate` compiles the decoding step by itself on a GPU when the cache has a fixed size."""
    torch._dynamo.reset()
    model, prompt = patched(pair).cuda(), tokens(length=7).cuda()
    mask = torch.ones_like(prompt)
    mask[1, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
    expected = model.generate(prompt, **options)
    assert torch.equal(model.generate(prompt, cache_implementation="static", **options), expected)


FLEX = [(k, s) for k in ("llama", "mistral-window", "bert") for s in SCHEMES if is_carried(k, s) and s.kind == "bias"]


@pytest.mark.parametrize("pair", FLEX, ids=lambda p: f"{p[0]}-{p[1].name}")
def test_flex_agrees_forward_and_backward(pair: Any) -> None:
    torch._dynamo.reset()
    model, ids = patched(pair, hidden_size=64).cuda(), tokens(length=200).cuda()
    mask = torch.ones_like(ids)
    mask[0, -30:] = 0
    results = []
    for backend in ("sdpa", "flex_attention"):
        model.set_attn_implementation(backend)
        model.zero_grad()
        logits = model(ids, attention_mask=mask).logits[mask.bool()]
        logits.square().mean().backward()
        results.append(
            (logits.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        )
    close(results[1][0], results[0][0], 1e-3)
    for name, gradient in results[0][1].items():
        if gradient.norm() > 1e-6:
            close(results[1][1][name], gradient, 1e-2)


@pairs(("llama",), kind=("bias", "score"))
@torch.no_grad()
def test_memory_grows_with_length_not_with_its_square(pair: Any) -> None:
    model = patched(pair).to(device="cuda", dtype=torch.bfloat16)
    peaks = []
    for length in (8192, 16384):
        ids = tokens(1, length).cuda()
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        model.base_model(ids, use_cache=False)
        peaks.append(torch.cuda.max_memory_allocated() - start)
    assert peaks[1] <= 2.5 * peaks[0], peaks
    assert peaks[1] < 16384**2 * 4, peaks
