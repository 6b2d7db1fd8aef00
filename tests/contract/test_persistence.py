"""Property 7: what is saved comes back bit-equal, plain where stock transformers can express it."""

import copy
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from pairs import build, close, draw_position_parameters, example, is_patched, pairs, patched, tokens
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

import hf_posswap as hp


def auto_class(kind: str) -> Any:
    return AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM


def is_native(path: Path) -> bool:
    return not json.loads((path / "config.json").read_text())["model_type"].startswith("hf_posswap")


@pairs()
@torch.no_grad()
def test_saved_and_loaded_is_bit_equal(pair: Any, tmp_path: Path) -> None:
    model, ids = patched(pair), tokens()
    expected = model(ids).logits
    model.save_pretrained(tmp_path / "m")
    loaded = hp.load(tmp_path / "m", auto_class=auto_class(pair[0])).eval()
    assert hp.scheme_of(loaded) == hp.scheme_of(model)
    assert loaded.config.max_position_embeddings == model.config.max_position_embeddings
    assert type(loaded) is type(model)
    if is_patched(model):
        assert torch.equal(loaded(ids).logits, expected)
        assert list(loaded.state_dict()) == list(model.state_dict())


@pairs()
@torch.no_grad()
def test_auto_classes_load_it_too(pair: Any, tmp_path: Path) -> None:
    kind, _ = pair
    model, ids = patched(pair), tokens()
    expected = model(ids).logits
    hp.save(model, tmp_path / "m", max_shard_size="20KB")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 1
    loaded = auto_class(kind).from_pretrained(tmp_path / "m").eval()
    if is_native(tmp_path / "m"):  # a stock model: same to the rounding of its float32 rotation
        assert not is_patched(loaded)
        close(loaded(ids).logits, expected, 1e-5)
    else:
        assert torch.equal(loaded(ids).logits, expected)
    assert hp.scheme_of(loaded) == hp.scheme_of(model) == hp.scheme_of(AutoConfig.from_pretrained(tmp_path / "m"))
    base = AutoModel.from_pretrained(tmp_path / "m").eval()
    close(base(ids).last_hidden_state, model.base_model(ids).last_hidden_state, 1e-5)


@pairs()
@torch.no_grad()
def test_saving_again_writes_the_same(pair: Any, tmp_path: Path) -> None:
    model = patched(pair)
    model.save_pretrained(tmp_path / "one")
    hp.load(tmp_path / "one", auto_class=auto_class(pair[0])).save_pretrained(tmp_path / "two")
    one, two = (json.loads((tmp_path / n / "config.json").read_text()) for n in ("one", "two"))
    assert one.get("hf_posswap") == two.get("hf_posswap")
    assert {k: v for k, v in one.items() if k != "_name_or_path"} == {
        k: v for k, v in two.items() if k != "_name_or_path"
    }
    assert all(
        (tmp_path / "one" / n).read_bytes() == (tmp_path / "two" / n).read_bytes() for n in ("model.safetensors",)
    )


@pairs()
@torch.no_grad()
def test_loading_in_half_precision_degrades_no_position(pair: Any, tmp_path: Path) -> None:
    model, ids = patched(pair), tokens()
    model.save_pretrained(tmp_path / "m")
    loaded = hp.load(tmp_path / "m", auto_class=auto_class(pair[0]), dtype=torch.bfloat16).eval()
    cast = model.to(torch.bfloat16)
    if is_patched(model):
        assert torch.equal(loaded(ids).logits, cast(ids).logits)
        assert torch.equal(loaded.float()(ids).logits, cast.float()(ids).logits)


@pairs()
def test_from_config_builds_the_patched_model(pair: Any) -> None:
    kind, _ = pair
    model = patched(pair)
    if not is_patched(model):
        return
    built = auto_class(kind).from_config(model.config).eval()
    assert hp.scheme_of(built) == hp.scheme_of(model)
    built.load_state_dict(model.state_dict())
    ids = tokens()
    assert torch.equal(built(ids).logits, model(ids).logits)


@pairs()
def test_a_loaded_model_has_no_original(pair: Any, tmp_path: Path) -> None:
    kind, _ = pair
    model, ids = patched(pair), tokens()
    if not is_patched(model):
        return
    model.save_pretrained(tmp_path / "m")
    loaded = hp.load(tmp_path / "m", auto_class=auto_class(kind)).eval()
    with pytest.raises(hp.CheckpointError, match="no original"):
        hp.unpatch(loaded)
    hp.patch(loaded, hp.ALiBi())
    expected = hp.patch(build(kind), hp.ALiBi())
    close(loaded(ids).logits, expected(ids).logits, 1e-6)
    with pytest.raises(hp.CheckpointError, match="no original"):
        hp.unpatch(loaded)


@pairs()
def test_load_can_patch_in_the_same_step(pair: Any, tmp_path: Path) -> None:
    kind, scheme = pair
    build(kind).save_pretrained(tmp_path / "stock")
    loaded = hp.load(tmp_path / "stock", auto_class=auto_class(kind), scheme=example(scheme)).eval()
    ids = tokens()
    expected = hp.patch(build(kind), example(scheme))
    assert torch.equal(loaded(ids).logits, expected(ids).logits)
    assert torch.equal(hp.unpatch(loaded)(ids).logits, build(kind)(ids).logits)


@pairs()
@torch.no_grad()
def test_pickle_deepcopy_and_torch_save(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    expected = model(ids).logits
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(buffer, weights_only=False)):
        assert torch.equal(twin(ids).logits, expected)
        assert torch.equal(hp.unpatch(twin)(ids).logits, build(pair[0])(ids).logits)


@pairs()
@torch.no_grad()
def test_a_model_made_on_meta_loads_its_state(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    if not is_patched(model):
        return
    with torch.device("meta"):
        empty = auto_class(pair[0]).from_config(model.config)
    empty = empty.to_empty(device="cpu").eval()
    for module in empty.modules():  # stock BERT's own unsaved buffers are not ours to fill
        for name, buffer in module.named_buffers(recurse=False):
            if name in ("position_ids", "token_type_ids"):
                buffer.copy_(torch.arange(buffer.numel())[None] if name == "position_ids" else 0)
    empty.load_state_dict(model.state_dict())
    empty.tie_weights()
    assert torch.equal(empty(ids).logits, model(ids).logits)


@pairs(("gpt2", "llama"))
def test_a_state_dict_goes_back_in(pair: Any) -> None:
    model, ids = patched(pair), tokens()
    saved = copy.deepcopy(model.state_dict())
    expected = model(ids).logits
    draw_position_parameters(model)
    result = model.load_state_dict(saved)
    assert not result.missing_keys
    assert not result.unexpected_keys
    assert torch.equal(model(ids).logits, expected)
