"""Bad input: one clear error that names the alternatives, raised before anything is changed, built or written."""

import contextlib
import copy
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from pairs import example
from safetensors.torch import load_file, save_file
from tiny import MODEL_TYPES, tiny, tiny_config
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    ByT5Tokenizer,
    GPT2LMHeadModel,
    PreTrainedConfig,
    PreTrainedModel,
    modeling_utils,
)

import hf_posswap as hp
from hf_posswap.families import MODEL_TYPES as SUPPORTED
from hf_posswap.schemes import SCHEMES
from hf_posswap.schemes.fields import MAX_POSITIONS

INPUTS = torch.arange(3, 27)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        output = model(INPUTS)
    return output.logits if "logits" in output else output.last_hidden_state


def snapshot(model: Any) -> dict[str, Any]:
    """All that a refused call could have changed, in a form that `==` compares; tensors by bits."""
    tensors = [(name, id(value), value.clone()) for name, value in model.named_parameters()]
    return {
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "tensors": tensors,
        "modules": [(name, type(module)) for name, module in model.named_modules()],
        "buffers": {name: tuple(buffer.shape) for name, buffer in model.named_buffers()},
        "configs": {name: id(module.config) for name, module in model.named_modules() if hasattr(module, "config")},
        "config": model.config.to_json_string(),
        "attention": model.config._attn_implementation,
        "hooks": {name: (len(m._forward_pre_hooks), len(m._forward_hooks)) for name, m in model.named_modules()},
        "attributes": {name: {*module.__dict__} - {"_is_hf_initialized"} for name, module in model.named_modules()},
        "scheme": hp.scheme_of(model),
        "random": torch.get_rng_state(),
        "logits": logits(model),
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def assert_unchanged(model: Any, before: dict[str, Any]) -> None:
    after = snapshot(model)
    assert [key for key in before if not same(before[key], after[key])] == []


def required(scheme: type[hp.Scheme]) -> dict[str, Any]:
    """Values for the fields that have no default."""
    return {f.name: getattr(example(scheme), f.name) for f in fields(scheme) if f.default is MISSING}


def files(folder: Path) -> dict[str, bytes]:
    """Every file and directory below, hidden ones too."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


# Names and values


@pytest.mark.parametrize("name", ["bogus", "ALiBi", "", "alibi ", "os.system"])
def test_unknown_schemes_list_the_known_ones(name: str) -> None:
    model = tiny("gpt2")
    before = snapshot(model)
    for call in (hp.patch, hp.check):
        with pytest.raises(hp.SchemeError, match=", ".join(scheme.name for scheme in SCHEMES)):
            call(model, name)
    assert_unchanged(model, before)


@pytest.mark.parametrize("scheme", [None, 3, hp.ALiBi, {"name": "alibi"}, ["alibi"], nn.Identity()])
def test_a_scheme_is_a_name_or_an_instance(scheme: Any) -> None:
    with pytest.raises(hp.SchemeError, match="a name or an instance"):
        hp.patch(tiny("gpt2"), scheme)


def test_wrong_fields_say_which_ones_there_are() -> None:
    model = tiny("gpt2")
    with pytest.raises(hp.SchemeError, match="t5 has no field 'buckets'; its fields are: num_buckets, max_distance"):
        hp.patch(model, "t5", buckets=32)
    with pytest.raises(hp.SchemeError, match=r"alibi has no field 'factor'.*none"):
        hp.check(model, "alibi", factor=2)
    with pytest.raises(hp.SchemeError, match="yarn needs factor"):
        hp.patch(model, "yarn")
    with pytest.raises(hp.SchemeError, match=r"Fields go into the scheme itself: T5Bias\(num_buckets"):
        hp.patch(model, hp.T5Bias(), num_buckets=16)


def every_field() -> list[Any]:
    return [pytest.param(scheme, f, id=f"{scheme.name}-{f.name}") for scheme in SCHEMES for f in fields(scheme)]


@pytest.mark.parametrize(("scheme", "declared"), every_field())
def test_out_of_range_values_say_the_range(scheme: type[hp.Scheme], declared: Any) -> None:
    rules = declared.metadata
    wrong = ["no such option", [1], {}, b"1", object(), 1j]
    if rules["kind"] in (int, float):
        wrong += [rules["low"] * 0.99 - 1, rules["high"] * 1.01 + 1, math.nan, math.inf, True, "4", 10**400]
    if rules["kind"] is int:
        wrong += [rules["low"] + 0.5]
    if rules["kind"] is bool:
        wrong += [0, 1, "true"]
    if not rules["optional"]:
        wrong += [None]
    if rules["kind"] is tuple:
        wrong = [*(value for value in wrong if value != [1]), [], ["1"], [math.nan], [rules["high"] * 1.01]]
    if rules["kind"] in ("text", "scheme", "schemes"):
        wrong = [*wrong[1:], 7, [object()]] + ([""] if rules["kind"] == "text" else [])
    for value in wrong:
        with pytest.raises(hp.SchemeError, match=f"{scheme.name}: {declared.name}=.* is not "):
            scheme(**{**required(scheme), declared.name: value})


def test_values_that_exclude_each_other() -> None:
    with pytest.raises(hp.SchemeError, match="must be larger than beta_slow"):
        hp.patch(tiny("llama"), "yarn", factor=2, beta_fast=1, beta_slow=1)
    with pytest.raises(hp.SchemeError, match="must exceed the 16 exact distances"):
        hp.patch(tiny("gpt2"), "t5", max_distance=16)
    with pytest.raises(hp.SchemeError, match="even number from 4, not 3"):
        hp.patch(tiny("bert"), "t5", num_buckets=3)


# Models


@pytest.mark.parametrize("call", [hp.check, hp.patch])
def test_unknown_architectures_list_the_known_ones(call: Callable[..., Any]) -> None:
    config = AutoConfig.for_model("opt", vocab_size=64, hidden_size=8, ffn_dim=8, num_hidden_layers=1)
    config.num_attention_heads, config.word_embed_proj_dim = 2, 8
    model = AutoModelForCausalLM.from_config(config)
    keys = list(model.state_dict())
    with pytest.raises(hp.FamilyError, match=f"'opt' are not supported; these are: {', '.join(SUPPORTED)}"):
        call(model, "alibi")
    for read in (hp.scheme_of, lambda m: hp.extend(m, 4096)):
        with pytest.raises(hp.FamilyError, match="'opt'"):
            read(model)
    with pytest.raises(hp.FamilyError, match="'opt'"):
        hp.scheme_of(config)
    assert list(model.state_dict()) == keys


def _peft(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))


def _adapter(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    model.add_adapter(peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    return model


def _compiled_in_place(model: Any) -> Any:
    model.compile()
    return model


def _base_compiled(model: Any) -> Any:
    model.transformer.compile()
    return model


class DistributedDataParallel(nn.Module):
    """Stands in for torch's, which needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def _fully_sharded(model: Any) -> Any:
    """What torch's fully_shard does to the class of a module."""
    model.__class__ = type(f"FSDP{type(model).__name__}", (type(model),), {})
    return model


class Wrapper(nn.Module):
    """Somebody's own module with a model inside, and its config for good measure."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.config = model, model.config


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "PeftModel": _peft,
    "add_adapter": _adapter,
    "torch.compile": torch.compile,
    "model.compile": _compiled_in_place,
    "base.compile": _base_compiled,
    "DataParallel": nn.DataParallel,
    "DDP": DistributedDataParallel,
    "fully_shard": _fully_sharded,
    "own module": Wrapper,
    "Linear": lambda model: nn.Linear(2, 2),
}


@pytest.mark.parametrize("case", WRAPPERS)
@pytest.mark.filterwarnings("ignore:.*adapter:UserWarning")
def test_wrapped_models_are_refused_with_the_right_order(case: str) -> None:
    wrapped = WRAPPERS[case](tiny("gpt2"))
    for call in (
        lambda: hp.patch(wrapped, "alibi"),
        lambda: hp.unpatch(wrapped),
        lambda: hp.extend(wrapped, 128),
    ):
        with pytest.raises(hp.FamilyError, match=r"patch, get_peft_model, torch\.compile, DDP or FSDP, optimizer"):
            call()
    if isinstance(wrapped, nn.Module):
        with pytest.raises(hp.FamilyError, match="patch, get_peft_model"):
            hp.scheme_of(wrapped)
        with pytest.raises(hp.FamilyError, match="patch, get_peft_model"):
            hp.check(wrapped, "alibi")
        assert not any(hasattr(module, "hf_posswap") for module in wrapped.modules())


@pytest.mark.parametrize("nothing", [None, "gpt2", 3, {}, nn.Identity])
def test_scheme_of_and_check_refuse_what_is_neither_model_nor_config(nothing: Any) -> None:
    with pytest.raises(hp.FamilyError):
        hp.scheme_of(nothing)
    with pytest.raises(hp.FamilyError):
        hp.check(nothing, "alibi")


@pytest.mark.parametrize(
    ("model_type", "overrides", "says"),
    [
        ("gpt2", {"add_cross_attention": True}, "cross-attention"),
        ("bert", {"add_cross_attention": True, "is_decoder": True}, "cross-attention"),
        ("gpt2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn"),
        ("bert", {"position_embedding_type": "relative_key"}, "relative_key"),
    ],
)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_features_that_no_scheme_fits(
    model_type: str, overrides: dict[str, Any], says: str, scheme: type[hp.Scheme]
) -> None:
    model = tiny(model_type, **overrides)
    keys, config = list(model.state_dict()), model.config
    wanted = example(scheme)
    with pytest.raises(hp.FamilyError, match=says):
        hp.patch(model, wanted)
    with pytest.raises(hp.FamilyError, match=says):
        hp.check(config, wanted)
    with pytest.raises(hp.FamilyError, match=says):
        hp.extend(model, 128)
    assert list(model.state_dict()) == keys
    assert model.config is config


@pytest.mark.parametrize(
    ("model_type", "overrides", "scheme", "says"),
    [
        ("bert", {}, hp.NoPE(), "bag of words.*allow_unordered=True"),
        ("bert", {}, hp.XPos(), "xpos does not work on an encoder"),
        ("gpt2", {"n_embd": 20}, hp.RoPE(), "rope .*even head_dim, not 5"),
        ("gpt2", {"n_embd": 20}, hp.YaRN(factor=2), "yarn .*even head_dim, not 5"),
        ("gpt2", {"n_embd": 20}, hp.NTKRoPE(factor=2), "ntk .*even head_dim, not 5"),
        ("bert", {"hidden_size": 20}, hp.LinearRoPE(factor=2), "linear .*even head_dim, not 5"),
        ("gpt2", {"n_embd": 20}, hp.XPos(), "xpos .*even head_dim, not 5"),
        ("gpt2", {"n_embd": 8}, hp.NTKRoPE(factor=2), "more than 2 dimensions that turn, not 2"),
        ("llama", {"hidden_size": 8}, hp.NTKRoPE(factor=2), "more than 2 dimensions that turn, not 2"),
        ("gpt2", {"n_embd": 15, "n_head": 3}, hp.Sinusoidal(), "even hidden size, not 15"),
        ("gpt2", {}, hp.Learned(max_position_embeddings=65), r"64 rows, fewer than 65.*extend\(model, 65\)"),
        ("bert", {}, hp.Learned(max_position_embeddings=1000), r"64 rows, fewer than 1000"),
    ],
)
def test_impossible_pairs(model_type: str, overrides: dict[str, Any], scheme: hp.Scheme, says: str) -> None:
    model = tiny(model_type, **overrides)
    before = snapshot(model)
    with pytest.raises(hp.SchemeError, match=says):
        hp.patch(model, scheme)
    if scheme.name != "learned":  # the config does not say how long the table is
        with pytest.raises(hp.SchemeError, match=says):
            hp.check(model.config, scheme)
    assert_unchanged(model, before)


def test_layerwise_rope_parameters_are_refused() -> None:
    config = tiny_config("llama")
    config.rope_parameters = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(hp.FamilyError, match="per layer type"):
        hp.check(config, "alibi")


@pytest.mark.parametrize("rope_type", ["dynamic", "longrope", "llama3"])
def test_a_stock_scheme_that_is_unknown_here_is_named_and_can_be_replaced(rope_type: str) -> None:
    needed = {
        "dynamic": {"factor": 2.0},
        "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 32},
        "llama3": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    }
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, **needed[rope_type]}
    model = tiny("llama", rope_parameters=parameters)
    stock = logits(model)
    if any(getattr(scheme, "rope_type", None) == rope_type for scheme in SCHEMES):
        assert hp.scheme_of(model).rope_type == rope_type
    else:
        with pytest.raises(hp.SchemeError, match=f"'{rope_type}' is not known here; known are: .*yarn.*possible"):
            hp.scheme_of(model)
    hp.patch(model, "alibi")
    assert torch.equal(logits(hp.unpatch(model)), stock)


# Backends


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.kind in ("bias", "score")], ids=lambda s: s.name)
def test_a_backend_that_cannot_carry_a_scheme_is_refused_by_name(scheme: type[hp.Scheme]) -> None:
    model = tiny("gpt2")
    for name in ("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn", "paged|sdpa", "bogus"):
        model.config._attn_implementation = name
        with pytest.raises(hp.SchemeError, match=f"{scheme.name} .*{name.replace('|', '.')}.*eager, sdpa"):
            hp.patch(model, example(scheme))
        with pytest.raises(hp.SchemeError, match=scheme.name):
            hp.check(model.config, example(scheme))
    model.config._attn_implementation = "sdpa"
    hp.patch(model, example(scheme))
    assert torch.isfinite(logits(model)).all()


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if s.kind in ("bias", "score")], ids=lambda s: s.name)
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_a_backend_that_is_switched_to_later_is_refused_too(scheme: type[hp.Scheme], model_type: str) -> None:
    model = hp.patch(tiny(model_type), example(scheme))
    expected = logits(model)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(hp.SchemeError, match=f"{scheme.name} .*'flash_attention_2'.*eager, sdpa"):
        model(INPUTS)
    model.config._attn_implementation = "sdpa"
    assert torch.equal(logits(model), expected)


def test_slots_leave_the_backend_alone() -> None:
    model = tiny("llama")
    model.config._attn_implementation = "flash_attention_2"
    hp.check(model, "yarn", factor=2)
    hp.check(model, "nope")
    hp.check(model, "learned")


# Calls


@pytest.mark.parametrize("model_type", ["gpt2", "bert"])
def test_inputs_beyond_a_learned_table(model_type: str) -> None:
    model = hp.extend(tiny(model_type), 80)
    model(torch.ones(1, 80, dtype=torch.long))
    with pytest.raises(hp.SchemeError, match=r"81 tokens are more than the 80 positions.*extend\(model, 81\)"):
        model(torch.ones(1, 81, dtype=torch.long))
    with pytest.raises(hp.SchemeError, match="Position 80 is beyond the learned table of 80"):
        model(torch.ones(1, 1, dtype=torch.long), position_ids=torch.tensor([[80]]))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_position_ids_are_integers(scheme: type[hp.Scheme]) -> None:
    model = hp.patch(tiny("llama" if scheme is hp.Learned else "gpt2"), example(scheme))
    with pytest.raises(hp.SchemeError, match=r"position_ids.*torch\.float32"):
        model(INPUTS, position_ids=torch.arange(24.0)[None], attention_mask=torch.ones_like(INPUTS))


@pytest.mark.parametrize(
    ("model_type", "max_length", "options", "says"),
    [
        ("gpt2", 64, {}, "longer than the 64"),
        ("gpt2", 0, {}, "longer than the 64"),
        ("gpt2", MAX_POSITIONS + 1, {}, f"at most {MAX_POSITIONS}"),
        ("gpt2", 128.0, {}, "a number of positions"),
        ("gpt2", True, {}, "a number of positions"),
        ("gpt2", "128", {}, "a number of positions"),
        ("gpt2", None, {}, "a number of positions"),
        ("gpt2", 128, {"method": "yarn"}, "interpolate, tile, repeat_last"),
        ("bert", 128, {"method": 3}, "interpolate, tile, repeat_last"),
        ("gpt2", 128, {"factor": 2}, "interpolate has no field 'factor'"),
        ("llama", 128, {"scheme": "rope"}, "has no field 'scheme'"),
        ("gpt2", 128, {"table": 1}, "interpolate has no field 'table'"),
        ("llama", 128, {"method": "tile"}, "yarn, linear, ntk, dynamic, .*, theta"),
        ("llama", 128, {"method": "theta"}, "rope_theta"),
        ("llama", 128, {"method": "theta", "rope_theta": 1e5, "beta_fast": 2}, "rope_theta"),
        ("llama", 128, {"method": "theta", "rope_theta": 0.5}, "rope_theta=0.5 is not"),
        ("llama", 128, {"factor": 2}, "works out the factor"),
        ("llama", 128, {"betas": 2}, "yarn has no field 'betas'"),
        ("llama", 128, {"beta_fast": math.nan}, "beta_fast=nan is not"),
    ],
)
def test_extend_refuses(model_type: str, max_length: Any, options: dict[str, Any], says: str) -> None:
    model = tiny(model_type)
    before = snapshot(model)
    tokenizer = ByT5Tokenizer(model_max_length=64)
    with pytest.raises(hp.SchemeError, match=says):
        hp.extend(model, max_length, tokenizer=tokenizer, **options)
    assert_unchanged(model, before)
    assert tokenizer.model_max_length == 64


@pytest.mark.parametrize("name", ["alibi", "t5", "xpos", "nope", "sinusoidal"])
def test_extending_what_has_no_end_takes_a_length_alone(name: str) -> None:
    model = hp.patch(tiny("gpt2"), name)
    before = snapshot(model)
    with pytest.raises(hp.SchemeError, match=f"{name} has no extension method 'yarn'; it has: length"):
        hp.extend(model, 128, method="yarn")
    with pytest.raises(hp.SchemeError, match="takes no fields"):
        hp.extend(model, 128, rope_theta=1e5)
    assert_unchanged(model, before)


# A failure midway


class SabotageError(Exception):
    """Raised by functions that a test has replaced."""


SLOTS = importlib.import_module("hf_posswap.patching.slots")
INSTALL = importlib.import_module("hf_posswap.patching.install")  # the package has a function of that name


def fails_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, call: int = 1, work: bool = True
) -> None:
    """The function does its work (or not, at the call that fails) and raises at its n-th call."""
    original, calls = getattr(owner, name), []

    def sabotaged(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        result = original(*args, **kwargs) if work or len(calls) != call else None
        if len(calls) == call:
            raise error
        return result

    monkeypatch.setattr(owner, name, sabotaged)


def install_fails(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    owner = INSTALL if hasattr(INSTALL, step) else SLOTS
    fails_at(monkeypatch, owner, step, SabotageError("midway"))


STEPS = ("_build", "_write_config", "fill_slots", "_fit_length", "argument_names", "verify")


def trained(model_type: str, name: str) -> Any:
    """A model patched with `name` whose position parameters were trained since."""
    model = hp.patch(tiny(model_type), name)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in model.named_parameters():
        if "position_enc" in key:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    model(INPUTS)
    return model


STARTS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: tiny("gpt2"),
    "bert": lambda: tiny("bert"),
    "llama": lambda: tiny("llama"),
    "gpt2 with trained t5": lambda: trained("gpt2", "t5"),
    "bert with trained t5": lambda: trained("bert", "t5"),
    "llama with trained t5": lambda: trained("llama", "t5"),
    "llama with trained learned": lambda: trained("llama", "learned"),
    "gpt2 with rope": lambda: trained("gpt2", "rope"),
    "gpt2 extended": lambda: hp.extend(tiny("gpt2"), 80),
    "gpt2 with t5, extended": lambda: hp.extend(trained("gpt2", "t5"), 80),
    "base model": lambda: tiny("llama", "base"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("start", STARTS)
def test_a_patch_that_fails_midway_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch, start: str, step: str
) -> None:
    model = STARTS[start]()
    before = snapshot(model)
    install_fails(monkeypatch, step)
    with pytest.raises(SabotageError):
        hp.patch(model, "alibi")
    assert_unchanged(model, before)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_after_a_failed_patch_the_next_one_works(
    monkeypatch: pytest.MonkeyPatch, start: str, scheme: type[hp.Scheme]
) -> None:
    """As on a model that nothing ever failed on."""
    failed, model = STARTS[start](), STARTS[start]()
    wanted = example(scheme)
    try:
        hp.check(model, wanted)
    except hp.SchemeError:
        pytest.skip("the model cannot carry it")
    with monkeypatch.context() as patched:
        install_fails(patched, "verify")
        with contextlib.suppress(SabotageError):
            hp.patch(failed, wanted)
    hp.patch(failed, wanted)
    hp.patch(model, wanted)
    assert hp.scheme_of(failed) == hp.scheme_of(model)
    assert torch.equal(logits(failed), logits(model))
    assert torch.equal(logits(hp.unpatch(failed)), logits(hp.unpatch(model)))


@pytest.mark.parametrize("start", ["gpt2", "gpt2 with trained t5", "llama with trained learned"])
def test_a_check_that_fails_at_every_call_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    model = STARTS[start]()
    before = snapshot(model)

    def broken(*args: Any) -> None:
        raise hp.FamilyError("took no effect")

    monkeypatch.setattr(INSTALL, "verify", broken)
    with pytest.raises(hp.FamilyError, match="took no effect"):
        hp.patch(model, "alibi")
    assert_unchanged(model, before)


def test_an_interrupt_is_a_failure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained("gpt2", "t5")
    before = snapshot(model)
    fails_at(monkeypatch, INSTALL, "verify", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        hp.patch(model, "rope")
    assert_unchanged(model, before)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("start", STARTS)
def test_an_extension_that_fails_midway_leaves_the_model_as_it_was(
    monkeypatch: pytest.MonkeyPatch, start: str, step: str
) -> None:
    model = STARTS[start]()
    before = snapshot(model)
    tokenizer = ByT5Tokenizer(model_max_length=64)
    install_fails(monkeypatch, step)
    try:
        hp.extend(model, 128, tokenizer=tokenizer)
    except SabotageError:
        assert_unchanged(model, before)
        assert tokenizer.model_max_length == 64
    else:
        assert step == "_build" or isinstance(before["scheme"], hp.T5Bias), "the step was not taken"
        assert model.config.max_position_embeddings == 128


def test_unpatch_after_a_failed_patch_gives_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    original = tiny("gpt2")
    stock, model = snapshot(original), hp.patch(original, "t5")
    install_fails(monkeypatch, "verify")
    with pytest.raises(SabotageError):
        hp.patch(model, "rope")
    assert_unchanged(hp.unpatch(model), stock)


def test_a_loaded_model_survives_a_failed_patch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hp.save(trained("gpt2", "t5"), tmp_path / "t5")
    model = hp.load(tmp_path / "t5")
    before = snapshot(model)
    install_fails(monkeypatch, "verify")
    with pytest.raises(SabotageError):
        hp.patch(model, "rope")
    assert_unchanged(model, before)
    with pytest.raises(hp.CheckpointError, match="no original"):
        hp.unpatch(model)


# Saving


@pytest.fixture(params=["new", "there"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory that is not there, or that holds an earlier save and files of the user's."""
    folder = tmp_path / "out"
    if request.param == "there":
        hp.save(trained("gpt2", "t5"), folder)
        (folder / "notes.txt").write_text("mine")
        (folder / "checkpoints").mkdir()
        (folder / "checkpoints" / "optimizer.bin").write_bytes(b"state")
    return folder


SAVE_STEPS: dict[str, dict[str, Any]] = {
    "first shard": {"owner": modeling_utils, "name": "safe_save_file"},
    "second shard": {"owner": modeling_utils, "name": "safe_save_file", "call": 2},
    "model": {"owner": PreTrainedModel, "name": "save_pretrained"},
    "config": {"owner": PreTrainedConfig, "name": "save_pretrained"},
    "tokenizer": {"owner": ByT5Tokenizer, "name": "save_pretrained"},
    "first move": {"owner": os, "name": "replace", "work": False},
    "second move": {"owner": os, "name": "replace", "call": 2, "work": False},
    "third move": {"owner": os, "name": "replace", "call": 3, "work": False},
}
"""What saving does, one after the other; a move is done or not, anything else fails after it did its work."""

NEEDS_FILES = ("second move", "third move")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "ctrl-c"])
@pytest.mark.parametrize("step", SAVE_STEPS)
def test_a_save_that_fails_leaves_the_files_as_they_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: Path, step: str, error: BaseException
) -> None:
    if step in NEEDS_FILES and not target.exists():
        pytest.skip("nothing is there to be moved")
    model = hp.patch(tiny("gpt2"), "rope")
    before, expected = files(tmp_path), logits(model)
    fails_at(monkeypatch, error=error, **SAVE_STEPS[step])
    with pytest.raises(type(error)):
        hp.save(model, target, tokenizer=ByT5Tokenizer(), max_shard_size="20KB")
    monkeypatch.undo()
    assert files(tmp_path) == before
    assert torch.equal(logits(model), expected)
    hp.save(model, target, tokenizer=ByT5Tokenizer())
    assert torch.equal(logits(hp.load(target)), expected)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_files_that_cannot_be_put_back_are_not_deleted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the new directory nor the old one can be moved to where it belongs."""
    hp.save(trained("gpt2", "t5"), tmp_path / "out")
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    original, calls = os.replace, []

    def replace(*paths: Any) -> None:
        calls.append(paths)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        original(*paths)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="Input/output error"):
        hp.save(hp.patch(tiny("gpt2"), "rope"), tmp_path / "out")
    assert weights in [path.read_bytes() for path in tmp_path.rglob("*.safetensors")]


def test_saving_onto_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(hp.CheckpointError, match="is a file"):
        hp.save(hp.patch(tiny("gpt2"), "alibi"), tmp_path / "out")
    assert files(tmp_path) == {"out": b"mine"}


# Broken and hostile checkpoints


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints of ours by name; tests copy them before they damage them."""
    models = {
        "t5": trained("gpt2", "t5"),
        "alibi": hp.patch(tiny("llama"), "alibi"),
        "rope": hp.patch(tiny("bert"), "rope"),
        "learned": trained("llama", "learned"),
        "yarn": hp.patch(tiny("llama"), "yarn", factor=4.0),
        "table": hp.extend(tiny("gpt2"), 128),
        "sinusoidal": hp.patch(tiny("gpt2"), "sinusoidal"),
    }
    folders = {name: tmp_path_factory.mktemp(name) / "saved" for name in models}
    for name, model in models.items():
        hp.save(model, folders[name])
    return folders


@pytest.fixture
def edited(checkpoints: dict[str, Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of a checkpoint whose config.json went through `edit`."""

    def make(name: str, edit: Callable[[dict[str, Any]], Any]) -> Path:
        folder = tmp_path / name
        shutil.copytree(checkpoints[name], folder)
        config = json.loads((folder / "config.json").read_text())
        edit(config)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


@pytest.fixture
def no_model_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(self: Any, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("a model was built")

    monkeypatch.setattr(PreTrainedModel, "__init__", build)


def put(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """An edit that sets one place of a config."""

    def edit(config: dict[str, Any]) -> None:
        for key in path[:-1]:
            config = config[key]
        config[path[-1]] = value

    return edit


def drop(*path: str) -> Callable[[dict[str, Any]], None]:
    """An edit that removes one place of a config."""

    def edit(config: dict[str, Any]) -> None:
        for key in path[:-1]:
            config = config[key]
        del config[path[-1]]

    return edit


BLOCK = "hf_posswap"
SCHEME_EDITS = {
    "block is text": put(BLOCK, value="alibi"),
    "block is a list": put(BLOCK, value=["alibi"]),
    "block is a number": put(BLOCK, value=3),
    "block is empty": put(BLOCK, value={}),
    "version is missing": drop(BLOCK, "version"),
    "version is of the future": put(BLOCK, "version", value=2),
    "version is text": put(BLOCK, "version", value="1"),
    "version is a fraction": put(BLOCK, "version", value=1.5),
    "version is true": put(BLOCK, "version", value=True),
    "version is null": put(BLOCK, "version", value=None),
    "version is 0": put(BLOCK, "version", value=0),
    "version is negative": put(BLOCK, "version", value=-1),
    "scheme is missing": drop(BLOCK, "scheme"),
    "scheme is null": put(BLOCK, "scheme", value=None),
    "scheme is text": put(BLOCK, "scheme", value="alibi"),
    "scheme is a list": put(BLOCK, "scheme", value=["alibi"]),
    "scheme has no name": drop(BLOCK, "scheme", "name"),
    "name is a list": put(BLOCK, "scheme", "name", value=["t5"]),
    "name is unknown": put(BLOCK, "scheme", "name", value="bogus"),
    "name is a class path": put(BLOCK, "scheme", "name", value="hf_posswap.schemes.alibi.ALiBi"),
    "name is a call": put(BLOCK, "scheme", "name", value="os.system"),
    "name is dunder": put(BLOCK, "scheme", "name", value="__init__"),
    "a class path beside": put(BLOCK, "scheme", "_target_", value="os.system"),
    "a dunder beside": put(BLOCK, "scheme", "__class__", value="os.system"),
    "unknown field": put(BLOCK, "scheme", "bogus", value=1),
}
T5_EDITS = {
    "buckets are huge": put(BLOCK, "scheme", "num_buckets", value=10**12),
    "buckets are beyond float": put(BLOCK, "scheme", "num_buckets", value=10**400),
    "buckets are NaN": put(BLOCK, "scheme", "num_buckets", value=math.nan),
    "buckets are infinite": put(BLOCK, "scheme", "num_buckets", value=math.inf),
    "buckets are text": put(BLOCK, "scheme", "num_buckets", value="32"),
    "buckets are a list": put(BLOCK, "scheme", "num_buckets", value=[32]),
    "buckets are a mapping": put(BLOCK, "scheme", "num_buckets", value={}),
    "buckets are null": put(BLOCK, "scheme", "num_buckets", value=None),
    "buckets are true": put(BLOCK, "scheme", "num_buckets", value=True),
    "buckets are a fraction": put(BLOCK, "scheme", "num_buckets", value=32.5),
    "buckets and distance contradict": put(BLOCK, "scheme", "max_distance", value=2),
    "hidden size is missing": drop(BLOCK, "hidden_size"),
    "hidden size is text": put(BLOCK, "hidden_size", value="many"),
    "hidden size is a list": put(BLOCK, "hidden_size", value=[64]),
    "hidden size is null": put(BLOCK, "hidden_size", value=None),
    "hidden size is 0": put(BLOCK, "hidden_size", value=0),
    "hidden size is negative": put(BLOCK, "hidden_size", value=-64),
}
REMEMBERED_EDITS = {
    **{
        f"trained length is {value!r}": put(BLOCK, "trained_length", value=value)
        for value in (0, -1, 10**12, "64", 64.5, True, None, [64], math.nan, {})
    },
    "trained length is missing": drop(BLOCK, "trained_length"),
    **{
        f"theta is {value!r}": put(BLOCK, "rope_theta", value=value)
        for value in ("1e4", -1.0, 0, math.nan, math.inf, [1e4], {}, True)
    },
}
LENGTH_EDITS = {f"length is {value!r}": put("n_positions", value=value) for value in (0, -1, 10**12)}
WRONG_TYPES = {
    f"{name} is {value!r}": put(name, value=value)
    for name in ("n_positions", "n_layer", "n_head")
    for value in ("64", 64.5, None, [64], True)
}
"""Which transformers refuses in words of its own."""
T5_CASES = {**SCHEME_EDITS, **T5_EDITS, **REMEMBERED_EDITS, **LENGTH_EDITS, "block is gone": drop(BLOCK)}


@pytest.mark.usefixtures("no_model_is_built")
@pytest.mark.parametrize("case", T5_CASES)
@pytest.mark.parametrize("reader", ["load", "auto class", "scheme_of"])
def test_edited_blocks_are_refused_before_anything_is_built(
    edited: Callable[..., Path], reader: str, case: str
) -> None:
    folder = edited("t5", T5_CASES[case])
    with pytest.raises(hp.CheckpointError):
        READERS[reader](folder)


@pytest.mark.usefixtures("no_model_is_built")
@pytest.mark.parametrize("case", WRONG_TYPES)
def test_stock_fields_of_a_wrong_type_are_refused_before_anything_is_built(
    edited: Callable[..., Path], case: str
) -> None:
    folder = edited("t5", WRONG_TYPES[case])
    for reader in READERS.values():
        with pytest.raises((hp.CheckpointError, StrictDataclassError)):
            reader(folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "load": hp.load,
    "auto class": AutoModelForCausalLM.from_pretrained,
    "scheme_of": lambda folder: hp.scheme_of(AutoConfig.from_pretrained(folder)),
}

PLAIN_CASES = {
    **SCHEME_EDITS,
    **REMEMBERED_EDITS,
    "factor is huge": put(BLOCK, "scheme", "factor", value=1e30),
    "factor is NaN": put(BLOCK, "scheme", "factor", value=math.nan),
    "factor is a list": put(BLOCK, "scheme", "factor", value=[4.0]),
    "factor contradicts": put(BLOCK, "scheme", "factor", value=8.0),
    "another scheme": put(BLOCK, "scheme", value={"name": "linear", "factor": 4.0}),
    "a scheme without rotation": put(BLOCK, "scheme", value={"name": "alibi"}),
    "rope_parameters were changed": put("rope_parameters", "factor", value=2.0),
    "rope_parameters of another base": put("rope_parameters", "rope_theta", value=5e5),
    "rope_parameters of another type": put("rope_parameters", value={"rope_type": "default", "rope_theta": 1e4}),
    "length is huge": put("max_position_embeddings", value=10**12),
    "length is 0": put("max_position_embeddings", value=0),
}


@pytest.mark.usefixtures("no_model_is_built")
@pytest.mark.parametrize("case", PLAIN_CASES)
@pytest.mark.parametrize("reader", ["load", "scheme_of"])
def test_edited_blocks_of_plain_checkpoints_are_refused_before_anything_is_built(
    edited: Callable[..., Path], reader: str, case: str
) -> None:
    folder = edited("yarn", PLAIN_CASES[case])
    with pytest.raises(hp.CheckpointError):
        READERS[reader](folder)


TABLE_CASES = {
    "the block's table is longer": put(BLOCK, "scheme", "max_position_embeddings", value=256),
    "the block's table is shorter": put(BLOCK, "scheme", "max_position_embeddings", value=64),
    "the block's table is huge": put(BLOCK, "scheme", "max_position_embeddings", value=10**12),
    "the config's table is shorter": put("n_positions", value=64),
    "the block says t5": put(BLOCK, "scheme", value={"name": "t5"}),
    "the block says alibi": put(BLOCK, "scheme", value={"name": "alibi"}),
    "the block says rope": put(BLOCK, "scheme", value={"name": "rope"}),
    "the block says nope": put(BLOCK, "scheme", value={"name": "nope"}),
}


@pytest.mark.usefixtures("no_model_is_built")
@pytest.mark.parametrize("case", TABLE_CASES)
def test_a_plain_checkpoint_whose_block_names_another_table_is_refused(edited: Callable[..., Path], case: str) -> None:
    with pytest.raises(hp.CheckpointError):
        hp.load(edited("table", TABLE_CASES[case]))


def test_a_table_that_is_no_longer_the_formulas_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoints["sinusoidal"], tmp_path / "changed")
    weights = load_file(folder / "model.safetensors")
    weights["transformer.wpe.weight"] += 0.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(hp.CheckpointError, match="another one than the formula's"):
        hp.load(folder)


LOST = {
    "t5": "transformer.position_encoding.relative_attention_bias",
    "learned": "model.position_input.weight",
    "table": "transformer.wpe.weight",
}


@pytest.mark.parametrize(
    ("name", "reader"),
    [("t5", "load"), ("t5", "auto class"), ("learned", "load"), ("learned", "auto class"), ("table", "load")],
)
def test_a_lost_position_parameter_is_refused(
    checkpoints: dict[str, Path], tmp_path: Path, name: str, reader: str
) -> None:
    folder = shutil.copytree(checkpoints[name], tmp_path / name)
    weights = load_file(folder / "model.safetensors")
    del weights[LOST[name]]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(hp.CheckpointError, match=LOST[name]):
        READERS[reader](folder)


@pytest.mark.parametrize("reader", ["load", "auto class"])
def test_position_parameters_that_the_scheme_does_not_have_are_refused(
    edited: Callable[..., Path], reader: str
) -> None:
    """The weights are T5's and the block, edited by hand, says ALiBi."""
    folder = edited("t5", put(BLOCK, "scheme", value={"name": "alibi"}))
    with pytest.raises(hp.CheckpointError, match="position_encoding"):
        READERS[reader](folder)


@pytest.mark.parametrize("reader", ["load", "auto class"])
def test_position_parameters_of_another_shape_are_refused(edited: Callable[..., Path], reader: str) -> None:
    folder = edited("t5", put(BLOCK, "scheme", "num_buckets", value=16))
    with pytest.raises((hp.CheckpointError, RuntimeError)):  # the latter is transformers' own
        READERS[reader](folder)


def test_a_stock_class_by_name_does_not_lose_the_scheme(checkpoints: dict[str, Path]) -> None:
    """A stock class builds no encoding: loading what needs one would leave its parameters to chance."""
    with pytest.raises(hp.CheckpointError):
        hp.load(checkpoints["t5"], auto_class=GPT2LMHeadModel)


def test_a_model_that_was_built_without_its_scheme_does_not_claim_to_have_it(
    checkpoints: dict[str, Path],
) -> None:
    model = GPT2LMHeadModel(AutoConfig.from_pretrained(checkpoints["t5"]))
    with pytest.raises(hp.PosswapError):
        hp.scheme_of(model)


def test_making_a_checkpoint_stock_by_hand_does_not_lose_the_scheme(edited: Callable[..., Path]) -> None:
    def pretend(config: dict[str, Any]) -> None:
        config.update(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=32)

    with pytest.raises(hp.CheckpointError):
        hp.load(edited("t5", pretend))


# Code and pickles


@pytest.mark.parametrize("name", ["t5", "yarn"])
def test_code_beside_a_checkpoint_is_never_run(edited: Callable[..., Path], name: str) -> None:
    wants_code = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"), "evil.Evil")
    folder = edited(name, put("auto_map", value=wants_code))
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(folder / 'mark')!r})\nclass Evil: pass\n")
    for reader in READERS.values():
        with contextlib.suppress(ValueError):
            reader(folder)
    assert not (folder / "mark").exists()


class Evil:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("reader", ["load", "auto class"])
@pytest.mark.parametrize("name", ["t5", "yarn"])
@pytest.mark.parametrize("hostile", [False, True])
def test_pickled_weights_are_never_read(
    checkpoints: dict[str, Path], tmp_path: Path, name: str, hostile: bool, reader: str
) -> None:
    if reader == "auto class" and name == "yarn":
        pytest.skip("a plain checkpoint in a stock Auto class is transformers' own matter")
    folder = shutil.copytree(checkpoints[name], tmp_path / name)
    weights: dict[str, Any] = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if hostile:
        weights["evil"] = Evil(str(tmp_path / "mark"))
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises((OSError, hp.CheckpointError), match="safetensors"):
        READERS[reader](folder)
    assert not (tmp_path / "mark").exists()


def test_asking_for_pickles_is_refused(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(hp.CheckpointError, match="safetensors"):
        hp.load(checkpoints["t5"], use_safetensors=False)


def test_nothing_but_safetensors_is_written(checkpoints: dict[str, Path]) -> None:
    for name in ("t5", "alibi", "yarn", "table"):
        assert {p.suffix for p in checkpoints[name].iterdir()} == {".json", ".safetensors"}


# Loading with a wrong request


@pytest.mark.usefixtures("no_model_is_built")
def test_a_wrong_scheme_is_refused_before_the_model_is_loaded(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(hp.SchemeError, match="there are nope"):
        hp.load(checkpoints["t5"], scheme="bogus")
    with pytest.raises(hp.SchemeError, match="yarn needs factor"):
        hp.load(checkpoints["t5"], scheme="yarn")


def test_a_scheme_that_does_not_fit_is_refused_by_load(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(hp.SchemeError, match="xpos does not work on an encoder"):
        hp.load(checkpoints["rope"], auto_class=AutoModelForMaskedLM, scheme="xpos")


def test_missing_and_broken_directories(tmp_path: Path) -> None:
    for content in (None, "{", "[]", '{"model_type": "bogus"}'):
        folder = tmp_path / str(content)
        if content is not None:
            folder.mkdir()
            (folder / "config.json").write_text(content)
        with pytest.raises((OSError, ValueError)):
            hp.load(folder)


# Without the package

WITHOUT = """
import json, sys
import transformers
from transformers.models.auto import modeling_auto

transformers.logging.set_verbosity(50)
loaded = []
for path, names in json.loads(sys.argv[1]).items():
    autos = {n: c for n, c in vars(modeling_auto).items() if n.startswith("AutoModel") and hasattr(c, "register")}
    classes = {**autos, **{name: getattr(transformers, name) for name in ("AutoConfig", *names)}}
    for name, cls in classes.items():
        try:
            cls.from_pretrained(path)
        except Exception:
            continue
        loaded.append((path, name))
assert "hf_posswap" not in sys.modules
transformers.AutoModelForCausalLM.from_pretrained(sys.argv[2])  # a plain one does load
sys.exit(f"loaded without hf_posswap: {loaded}" if loaded else 0)
"""


def test_without_the_package_nothing_loads_what_needs_it(checkpoints: dict[str, Path]) -> None:
    stock = {
        "t5": ["GPT2Config", "GPT2Model", "GPT2LMHeadModel", "GPT2ForSequenceClassification", "GPT2DoubleHeadsModel"],
        "alibi": ["LlamaConfig", "LlamaModel", "LlamaForCausalLM"],
        "learned": ["LlamaConfig", "LlamaModel", "LlamaForCausalLM", "MistralForCausalLM"],
        "rope": ["BertConfig", "BertModel", "BertForMaskedLM", "BertForPreTraining"],
    }
    paths = {str(checkpoints[name]): classes for name, classes in stock.items()}
    argv = [sys.executable, "-c", WITHOUT, json.dumps(paths), str(checkpoints["yarn"])]
    done = subprocess.run(argv, stderr=-1, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_checking_changes_nothing(model_type: str) -> None:
    model = tiny(model_type)
    before, config = snapshot(model), copy.deepcopy(model.config.to_dict())
    for scheme in SCHEMES:
        wanted = example(scheme)
        try:
            hp.check(model, wanted)
        except hp.SchemeError:
            assert model_type == "bert"
    assert_unchanged(model, before)
    assert model.config.to_dict() == config


# What is no model, and models patched in part


@pytest.mark.parametrize("thing", [None, "gpt2", tiny("gpt2").config], ids=["None", "path", "config"])
def test_what_is_no_loaded_model_is_refused(thing: Any) -> None:
    for call in (lambda: hp.patch(thing, "alibi"), lambda: hp.extend(thing, 128), lambda: hp.unpatch(thing)):
        with pytest.raises(hp.FamilyError, match="A loaded model is needed here"):
            call()
    if not hasattr(thing, "model_type"):
        with pytest.raises(hp.FamilyError, match="load it first"):
            hp.scheme_of(thing)


@pytest.mark.parametrize("model_type", ["gpt2", "bert", "llama"])
def test_a_model_and_its_base_are_not_patched_apart(model_type: str, tmp_path: Path) -> None:
    model, base_first = tiny(model_type), tiny(model_type)
    expected = logits(model)
    hp.patch(model, "alibi")
    for call in (lambda: hp.unpatch(model.base_model), lambda: hp.patch(model.base_model, "t5")):
        with pytest.raises(hp.FamilyError, match="not patched together"):
            call()
    assert torch.equal(logits(hp.unpatch(model)), expected)
    hp.patch(base_first.base_model, "alibi")
    patched = logits(base_first)
    for call in (
        lambda: hp.unpatch(base_first),
        lambda: hp.patch(base_first, "t5"),
        lambda: hp.extend(base_first, 128),
    ):
        with pytest.raises(hp.FamilyError, match="not patched together"):
            call()
    with pytest.raises(hp.CheckpointError, match="The base model was patched"):
        hp.save(base_first, tmp_path / "m")
    assert torch.equal(logits(base_first), patched)
    hp.unpatch(base_first.base_model)
    assert torch.equal(logits(base_first), expected)


def test_load_says_how_a_scheme_with_fields_is_given(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path / "m")
    with pytest.raises(hp.SchemeError, match=r"scheme=YaRN\(factor=4.0\)"):
        hp.load(tmp_path / "m", scheme="yarn")
    tiny("bert").save_pretrained(tmp_path / "b")
    bag = hp.load(tmp_path / "b", auto_class=AutoModelForMaskedLM, scheme="nope", allow_unordered=True)
    assert hp.scheme_of(bag) == hp.NoPE()


def test_saving_keeps_links_and_the_usual_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = hp.patch(tiny("gpt2"), "t5")
    (tmp_path / "plain").mkdir()
    hp.save(model, tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    hp.save(model, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "plain" / "config.json").exists()
    monkeypatch.chdir(tmp_path / "plain")
    (tmp_path / "plain" / "notes").symlink_to("nowhere")
    hp.save(model, ".")
    assert "config.json" in os.listdir("."), "the working directory is still the one that was saved to"
    monkeypatch.chdir(tmp_path)
    hp.save(model, tmp_path / "plain")
    assert (tmp_path / "plain" / "notes").is_symlink()
    (tmp_path / "plain" / "notes").unlink()
    assert torch.equal(logits(hp.load(tmp_path / "plain")), logits(model))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "new", "plain"]


def test_saving_an_adapter_beside_a_model_keeps_the_weights(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    hp.save(hp.patch(tiny("llama"), "t5"), tmp_path / "m")
    weights = (tmp_path / "m" / "model.safetensors").read_bytes()
    base = hp.load(tmp_path / "m")
    hp.save(peft.get_peft_model(base, peft.LoraConfig(r=2, task_type="CAUSAL_LM")), tmp_path / "m")
    assert (tmp_path / "m" / "adapter_model.safetensors").exists()
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == weights
