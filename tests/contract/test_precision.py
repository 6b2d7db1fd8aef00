"""Property 6: no cast, copy or way of loading degrades angles and biases, up to position 1,000,000."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pairs import build, example, is_patched, pairs, patched
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import hf_posswap as hp
from hf_posswap.patching.install import encodings_of

COMPOSITIONS = (hp.Layered, hp.LogScaled)  # their parts are encodings of other schemes

FAR = torch.randint(990_000, 1_000_000, (1, 64))


def by_loading(model: Any, directory: Path) -> Any:
    model.save_pretrained(directory)
    auto = AutoModelForMaskedLM if model.config.model_type == "bert" else AutoModelForCausalLM
    if model.config.model_type == "bert" and model.config.is_decoder:
        auto = AutoModelForCausalLM
    return hp.load(directory, auto_class=auto, dtype=torch.bfloat16)


WAYS: dict[str, Callable[[Any, Path], Any]] = {
    "bfloat16": lambda model, _: model.to(torch.bfloat16),
    "half and back": lambda model, _: model.half().float(),
    "deepcopy": lambda model, _: copy.deepcopy(model.to(torch.bfloat16)),
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model.to(torch.bfloat16))),
    "load": by_loading,
}


def encoding(model: Any) -> Any:
    found = encodings_of(model.base_model, model.base_model.hf_posswap)
    return found.input or found.rotary or found.scores


def reference_angles(pair: Any, model: Any) -> Tensor:
    state = model.base_model.hf_posswap
    return FAR[..., None].double() * state.scheme.inv_freq(state.geometry)


@pytest.mark.parametrize("way", WAYS)
@pairs(("gpt2", "bert", "llama"), kind="rotary")
def test_angles(pair: Any, way: str, tmp_path: Path) -> None:
    model = patched(pair)
    if not is_patched(model) or pair[1] in COMPOSITIONS:
        return
    angles, scaling = (
        reference_angles(pair, model),
        model.base_model.hf_posswap.scheme.scaling(model.base_model.hf_posswap.geometry),
    )
    rotary = encoding(WAYS[way](model, tmp_path / "m"))
    cos, sin = (table.double()[..., : angles.shape[-1]] for table in rotary.rotation(FAR, torch.float32))
    assert (cos - angles.cos() * scaling).abs().max() <= 2e-7
    assert (sin - angles.sin() * scaling).abs().max() <= 2e-7
    once = rotary.rotation(FAR, torch.bfloat16)[0][..., : angles.shape[-1]]
    assert torch.equal(once, (angles.cos() * scaling).to(torch.bfloat16))


@pytest.mark.parametrize("way", WAYS)
@pairs(("gpt2", "bert", "llama"), kind="bias")
def test_biases(pair: Any, way: str, tmp_path: Path) -> None:
    model = patched(pair)
    if pair[1] in COMPOSITIONS:
        return
    own = copy.deepcopy(encoding(model)).double()
    keys = torch.randint(0, 1_000_000, (1, 64))
    exact = own(own.tables(FAR), own.tables(keys))
    changed = encoding(WAYS[way](model, tmp_path / "m"))
    found = changed(changed.tables(FAR), changed.tables(keys))
    assert found.dtype == torch.float32
    tolerance = 2e-7 if not list(own.parameters()) else 5e-3  # a learned table is stored in the model's dtype
    assert ((found.double() - exact).abs() <= tolerance * exact.abs()).all()


@pytest.mark.parametrize("way", WAYS)
@pairs(("gpt2", "bert", "llama"), kind=("input", "score"))
def test_other_constants_stay_in_float64(pair: Any, way: str, tmp_path: Path) -> None:
    model = hp.patch(build(pair[0]), example(pair[1]))
    if not is_patched(model) or encoding(model) is None:
        return
    before = {k: v.clone() for k, v in vars(encoding(model)).items() if isinstance(v, Tensor)}
    after = vars(encoding(WAYS[way](model, tmp_path / "m")))
    assert all(v.dtype == torch.float64 or not v.is_floating_point() for v in before.values())
    assert all(torch.equal(after[k], v) for k, v in before.items())
