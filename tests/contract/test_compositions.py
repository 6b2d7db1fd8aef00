"""Schemes made of schemes: different ones in different layers, and queries scaled by the logarithm of length."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import oracle_logits
from pairs import build, close, draw_position_parameters, position_parameters, tokens
from test_cache import cache_for, step_by_step
from tiny import tiny_config
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, GPT2DoubleHeadsModel

import hf_posswap as hp
from hf_posswap.families import family_of

SEGMENTED = hp.DynamicNTKRoPE(factor=2.0, original_max_position_embeddings=8)
COMPOSED: dict[str, hp.Scheme] = {
    "rope or alibi": hp.Layered(hp.RoPE(), hp.ALiBi(), pattern="RA"),
    "t5 or segments": hp.Layered(hp.T5Bias(), SEGMENTED, pattern="TS"),
    "log-scaled rope or nope": hp.Layered(
        hp.LogScaled(hp.RoPE(), original_max_position_embeddings=8), hp.NoPE(), pattern="LN"
    ),
    "log-scaled t5": hp.LogScaled(hp.T5Bias(), original_max_position_embeddings=8),
    "log-scaled segments": hp.LogScaled(SEGMENTED, original_max_position_embeddings=8),
    "log-scaled table": hp.LogScaled(hp.Learned(init="normal"), original_max_position_embeddings=8),
}
every_composition = pytest.mark.parametrize("scheme", COMPOSED.values(), ids=COMPOSED)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "smollm3"])
@every_composition
def test_logits_gradients_undo_and_reload(scheme: Any, kind: str, tmp_path: Path) -> None:
    stock, model = build(kind).double(), hp.patch(build(kind).double(), scheme)
    draw_position_parameters(model)
    embeddings = torch.randn(2, 24, model.config.hidden_size, dtype=torch.float64, requires_grad=True)
    found, expected = model(inputs_embeds=embeddings).logits, oracle_logits(stock, model, embeddings)
    close(found, expected, 1e-5)
    wanted = [embeddings, *position_parameters(model).values()]
    direction = torch.randn_like(found)
    for mine, theirs in zip(
        *(torch.autograd.grad((logits * direction).sum(), wanted) for logits in (found, expected)), strict=True
    ):
        close(mine, theirs, 1e-4)
    model.save_pretrained(tmp_path / "m")
    auto_class = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    loaded = hp.load(tmp_path / "m", auto_class=auto_class, dtype=torch.float64).eval()
    assert hp.scheme_of(loaded) == hp.scheme_of(model)
    ids = tokens()
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert torch.equal(hp.unpatch(model)(ids).logits, stock(ids).logits)
    assert model.state_dict().keys() == stock.state_dict().keys()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2-mixed", "smollm3"])
@every_composition
@torch.no_grad()
def test_cached_equals_uncached(scheme: Any, kind: str, cache: str) -> None:
    model, ids = hp.patch(build(kind), scheme), tokens()
    draw_position_parameters(model)
    close(step_by_step(model, ids, cache_for(model, cache)), model(ids, use_cache=False).logits, 1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
@every_composition
@torch.no_grad()
def test_backends_agree(scheme: Any, kind: str) -> None:
    model, ids = hp.patch(build(kind), scheme), tokens()
    draw_position_parameters(model)
    fused = model(ids).logits
    model.set_attn_implementation("eager")
    close(model(ids).logits, fused, 1e-5)
    if hp.scheme_of(model).kind == "score" and kind == "llama":
        model.set_attn_implementation("flex_attention")
        with pytest.raises(hp.SchemeError, match="flex_attention"):
            model(ids)


@torch.no_grad()
def test_the_scale_of_an_encoder_counts_tokens_not_padding() -> None:
    model = hp.patch(build("bert"), hp.LogScaled(hp.RoPE(), original_max_position_embeddings=8))
    ids = tokens(1, 20)
    alone = model(ids).logits
    padded = torch.cat((ids, torch.zeros(1, 12, dtype=torch.long)), dim=1)
    mask = (torch.arange(32) < 20).long()[None]
    close(model(padded, attention_mask=mask).logits[:, :20], alone, 1e-5)
    scores = model.base_model.position_encoding
    counted = scores.query_scale(torch.arange(20)[None], torch.tensor([[20]]))
    close(counted, torch.full((1, 20), math.log(20) / math.log(8)), 1e-6)


# SmolLM3 is layered as it comes.


def test_smollm3_is_read_as_what_it_is() -> None:
    model = build("smollm3", num_hidden_layers=8, no_rope_layers=None)
    assert hp.scheme_of(model) == hp.Layered(hp.RoPE(), hp.NoPE(), pattern="RRRN").resolve(
        family_of(model.config).geometry(model.config)
    )
    assert hp.scheme_of(build("smollm3", no_rope_layers=[1, 1])).name == "rope"
    assert hp.scheme_of(build("smollm3", no_rope_layers=[0, 0])).name == "nope"
    assert hp.scheme_of(build("smollm3", num_hidden_layers=3, no_rope_layers=[0, 1, 1])).pattern == "NRR"


@pytest.mark.parametrize(
    ("scheme", "layers"),
    [
        (hp.RoPE(), [1, 1]),
        (hp.YaRN(factor=4.0), [1, 1]),
        (hp.NoPE(), [0, 0]),
        (hp.Layered(hp.NoPE(), hp.Llama3RoPE(), pattern="NR"), [0, 1]),
        (hp.Layered(hp.YaRN(factor=2.0), hp.NoPE(), pattern="RN"), [1, 0]),
    ],
    ids=str,
)
@torch.no_grad()
def test_smollm3_is_written_natively(scheme: Any, layers: list[int], tmp_path: Path) -> None:
    stock, ids = build("smollm3"), tokens(1, 60)
    model = hp.patch(build("smollm3"), scheme)
    expected = model(ids).logits
    hp.save(model, tmp_path / "m")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "m").eval()
    assert not hasattr(plain.base_model, "hf_posswap")
    assert plain.config.no_rope_layers == layers
    close(plain(ids).logits, expected, 1e-5)
    assert hp.scheme_of(plain) == hp.scheme_of(model) == hp.scheme_of(hp.load(tmp_path / "m"))
    assert torch.equal(hp.unpatch(model)(ids).logits, stock(ids).logits)
    assert [layer.self_attn.use_rope for layer in model.model.layers] == [1, 0]


def test_what_cannot_be_composed() -> None:
    refused = [
        (lambda: hp.Layered(hp.RoPE(), hp.NoPE(), pattern="R"), "1 letters for 2 schemes"),
        (lambda: hp.Layered(hp.RoPE(), pattern="RN"), "2 letters for 1 schemes"),
        (lambda: hp.Layered(hp.Layered(hp.RoPE(), pattern="R"), pattern="L"), "one of the layers' schemes"),
        (lambda: hp.Layered(), "needs schemes"),
        (lambda: hp.Layered(7, pattern="R"), "schemes=7 is not a list of schemes"),
        (lambda: hp.Layered("rope", "stretched", pattern="RS"), "no scheme 'stretched'"),
        (lambda: hp.LogScaled(hp.LogScaled(hp.RoPE())), "cannot be inside"),
        (lambda: hp.LogScaled(hp.RoPE(), hp.NoPE()), "takes one scheme"),
        (lambda: hp.LogScaled(hp.RoPE(), original_max_position_embeddings=1), "original_max_position_embeddings=1"),
    ]
    for make, says in refused:
        with pytest.raises(hp.SchemeError, match=says):
            make()
    model = build("llama")
    config = model.config
    for scheme, says in [
        (hp.Layered(hp.RoPE(), hp.Learned(), pattern="RL"), "reaches all layers"),
        (hp.Layered(hp.RoPE(), hp.NoPE(), pattern="RRRN"), "gives nope no layer in a model of 2"),
    ]:
        with pytest.raises(hp.SchemeError, match=says):
            hp.patch(model, scheme)
    assert model.config is config
    with pytest.raises(hp.SchemeError, match="does not work on an encoder"):
        hp.patch(build("bert"), hp.Layered(hp.RoPE(), hp.XPos(), pattern="RX"))
    with pytest.raises(hp.SchemeError, match="bag of words"):
        hp.patch(build("bert"), hp.LogScaled(hp.NoPE()))


@torch.no_grad()
def test_two_heads_of_gpt2_with_three_dimensional_input() -> None:
    model = hp.patch(GPT2DoubleHeadsModel(tiny_config("gpt2")).eval(), hp.LogScaled(hp.RoPE()))
    ids = tokens(6, 20)
    found = model(ids.view(2, 3, 20), attention_mask=torch.ones(2, 3, 20), use_cache=False).logits
    close(found.view(6, 20, -1), model(ids, use_cache=False).logits, 1e-5)
