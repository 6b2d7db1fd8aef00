"""Property 1: unpatching is exact; patching again starts from the original."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from pairs import KINDS, build, draw_position_parameters, example, pairs, patched, position_parameters, tokens
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import hf_posswap as hp


def facts(model: Any) -> dict[str, Any]:
    """What must come back. Hooks are counted, because a hook that stays costs at every call."""
    return {
        "keys": list(model.state_dict()),
        "types": [(path, type(module)) for path, module in model.named_modules()],
        "configs": [id(m.config) for m in model.modules() if hasattr(m, "config")],
        "config": model.config.to_dict(),
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules()],
        "attributes": [sorted(vars(m)) for m in model.modules()],
        "parameters": [id(p) for p in model.parameters()],
        "training": [m.training for m in model.modules()],
    }


@pairs()
def test_unpatch_brings_everything_back(pair: Any) -> None:
    kind, scheme = pair
    model, ids = build(kind), tokens()
    logits, before = model(ids).logits, facts(model)
    hp.patch(model, example(scheme))
    draw_position_parameters(model)
    model(ids)
    assert hp.unpatch(model) is model
    assert facts(model) == before
    assert torch.equal(model(ids).logits, logits)


@pairs()
def test_another_patch_starts_from_the_original(pair: Any) -> None:
    kind, scheme = pair
    ids = tokens()
    twice = hp.patch(hp.patch(build(kind), hp.ALiBi()), example(scheme))
    assert torch.equal(twice(ids).logits, hp.patch(build(kind), example(scheme))(ids).logits)
    assert torch.equal(hp.unpatch(twice)(ids).logits, build(kind)(ids).logits)


@pairs()
def test_the_same_scheme_again_does_nothing(pair: Any) -> None:
    model = patched(pair)
    before = facts(model)
    values = {k: v.clone() for k, v in position_parameters(model).items()}
    hp.patch(model, hp.scheme_of(model))
    hp.patch(model, example(pair[1]))
    assert facts(model) == before
    assert all(torch.equal(v, values[k]) for k, v in position_parameters(model).items())


@pytest.mark.parametrize("kind", KINDS)
def test_other_weights_stay_trained_and_positions_come_back(kind: str) -> None:
    model, ids = build(kind), tokens()
    reference = build(kind)
    hp.patch(model, hp.T5Bias())
    for twin in (model, reference):
        with torch.no_grad():
            twin.get_input_embeddings().weight.mul_(1.5)
    draw_position_parameters(model)
    assert torch.equal(hp.unpatch(model)(ids).logits, reference(ids).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_positions_come_back_in_the_dtype_and_mode_of_now(kind: str) -> None:
    model = hp.patch(build(kind), hp.ALiBi()).to(torch.bfloat16).train()
    reference = build(kind)
    rotary = getattr(reference.base_model, "rotary_emb", None)
    hp.unpatch(model)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert all(m.training for m in model.modules())
    if rotary is not None:
        assert torch.equal(model.base_model.rotary_emb.inv_freq, rotary.inv_freq)


@pairs()
def test_a_copy_can_be_undone_alone(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    logits = model(ids).logits
    twin = copy.deepcopy(model)
    assert torch.equal(twin(ids).logits, logits)
    assert torch.equal(hp.unpatch(twin)(ids).logits, build(pair[0])(ids).logits)
    assert torch.equal(model(ids).logits, logits)


def test_unpatching_a_stock_model_does_nothing() -> None:
    model = build("gpt2")
    before = facts(model)
    assert facts(hp.unpatch(model)) == before


@pytest.mark.parametrize("kind", KINDS)
def test_edits_of_the_config_outlive_the_patch(kind: str, tmp_path: Path) -> None:
    """A vocabulary that grew on the patched model is still grown after another patch, saving, and unpatching."""
    model = hp.patch(build(kind), hp.ALiBi())
    model.resize_token_embeddings(80)
    model.config.use_cache = False
    hp.patch(model, hp.T5Bias())
    assert (model.config.vocab_size, model.config.use_cache) == (80, False)
    hp.save(model, tmp_path / "m")
    auto = AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM
    assert hp.load(tmp_path / "m", auto_class=auto).config.vocab_size == 80
    hp.unpatch(model)
    assert (model.config.vocab_size, model.config.use_cache) == (80, False)
    assert not hasattr(model.config, "hf_posswap")
    assert model(tokens()).logits.shape[-1] == 80


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_copy_of_a_shared_config_is_not_touched(kind: str) -> None:
    """Two models may be built from one config object; patching one leaves the other alone."""
    first = build(kind)
    second = type(first)(first.config).eval()
    ids = tokens()
    expected = second(ids).logits
    hp.extend(hp.patch(first, hp.ALiBi()), 256)
    assert second.config is not first.config
    assert torch.equal(second(ids).logits, expected)
