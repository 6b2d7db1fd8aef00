"""Which style of rope keys transformers takes, and that two styles which disagree are refused."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import LENGTH, tiny
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import hf_posswap as hp
from hf_posswap.cli import main
from hf_posswap.persistence.rope_keys import rope_keys

YARN = {"factor": 4.0, "original_max_position_embeddings": LENGTH}
V5 = {"rope_type": "yarn", "rope_theta": 5e5, **YARN}
V4 = {"rope_scaling": {"type": "yarn", **YARN}, "rope_theta": 5e5}
LISTS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}


def raw(**keys: Any) -> dict[str, Any]:
    return {"model_type": "llama", "max_position_embeddings": 4 * LENGTH, **keys}


AGREEING = {
    "nothing": ({}, "none"),
    "nulls": ({"rope_parameters": None, "rope_scaling": None}, "none"),
    "v5 alone": ({"rope_parameters": V5}, "v5"),
    "v4 alone": (V4, "v4"),
    "only a theta": ({"rope_theta": 5e5}, "v4"),
    "both": ({"rope_parameters": V5, **V4}, "v4+v5"),
    "a null beside v5": ({"rope_parameters": V5, "rope_scaling": None}, "v5"),
    "the same theta left over": ({"rope_parameters": V5, "rope_theta": 5e5}, "v4+v5"),
    "both names of the type": ({"rope_parameters": V5, "rope_scaling": {**V5, "type": "yarn"}}, "v4+v5"),
    "defaults written out on one side": (
        {"rope_parameters": {**V5, "beta_fast": 32.0, "beta_slow": 1, "truncate": True, "mscale": None}, **V4},
        "v4+v5",
    ),
    "an integer for a float": ({"rope_parameters": {**V5, "factor": 4, "rope_theta": 500000}, **V4}, "v4+v5"),
    "the default theta on one side": (
        {"rope_parameters": {**V5, "rope_theta": 10000.0}, "rope_scaling": {"type": "yarn", **YARN}},
        "v4+v5",
    ),
    "su is longrope": (
        {
            "rope_parameters": {"rope_type": "longrope", **YARN, **LISTS},
            "rope_scaling": {"type": "su", **YARN, **LISTS},
        },
        "v4+v5",
    ),
    "su is longrope in one mapping": ({"rope_scaling": {"type": "su", "rope_type": "longrope", **YARN, **LISTS}}, "v4"),
    "the original length beside the keys": (
        {"rope_parameters": V5, **V4, "rope_scaling": {"type": "yarn", "factor": 4.0}}
        | {"original_max_position_embeddings": LENGTH},
        "v4+v5",
    ),
    "one set a layer type": ({"rope_parameters": {"full_attention": V5}, "rope_theta": 1.5}, "per layer type"),
}

DISAGREEING = {
    "type": ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, **V4}, "'default'", "'yarn'"),
    "factor": ({"rope_parameters": {**V5, "factor": 8.0}, **V4}, "factor=8.0", "factor=4.0"),
    "original length": (
        {"rope_parameters": {**V5, "original_max_position_embeddings": 32}, **V4},
        "original_max_position_embeddings=32",
        f"original_max_position_embeddings={LENGTH}",
    ),
    "a beta that is not its default": ({"rope_parameters": {**V5, "beta_fast": 8.0}, **V4}, "8.0", "32"),
    "an attention factor": ({"rope_parameters": {**V5, "attention_factor": 1.0}, **V4}, "1.0", "None"),
    "lists": (
        {
            "rope_parameters": {"rope_type": "longrope", **YARN, **LISTS},
            "rope_scaling": {"type": "longrope", **YARN, **LISTS, "long_factor": [2.0, 4.0]},
        },
        "[2.0, 3.0]",
        "[2.0, 4.0]",
    ),
    "a theta left over": ({"rope_parameters": V5, "rope_theta": 10000.0}, "500000.0", "10000.0"),
    "a theta that rope_scaling loses": (
        {"rope_parameters": V5, "rope_scaling": {"type": "yarn", **YARN}},
        "rope_theta=500000.0",
        "rope_theta=10000.0",
    ),
    "two names of the type": ({"rope_scaling": {**V5, "type": "linear"}}, "'linear'", "'yarn'"),
}


@pytest.mark.parametrize("case", AGREEING)
def test_what_is_taken_is_what_transformers_takes(case: str) -> None:
    keys, style = AGREEING[case]
    config = raw(**keys)
    before = copy.deepcopy(config)
    found = rope_keys(config)
    assert found.style == style
    assert config == before
    if found.parameters is None:
        return
    if "longrope" in found.parameters["rope_type"]:
        config["rope_scaling"] = {**config["rope_scaling"], "type": "longrope"}  # transformers 5 knows no "su" on LLaMA
    loaded = CONFIG_MAPPING["llama"].from_dict(config)
    loaded.standardize_rope_params()  # as a rotary module does before it reads them
    taken = {k: v for k, v in loaded.rope_parameters.items() if k != "type" and v is not None}
    assert taken.items() <= found.parameters.items()


@pytest.mark.parametrize("case", DISAGREEING)
def test_a_disagreement_is_refused_with_both_values(case: str) -> None:
    keys, *values = DISAGREEING[case]
    with pytest.raises(hp.CheckpointError) as error:
        rope_keys(raw(**keys))
    for value in values:
        assert value in str(error.value)


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_no_mapping(name: str) -> None:
    with pytest.raises(hp.CheckpointError, match="no mapping"):
        rope_keys(raw(**{name: "yarn"}))


def test_default_theta_is_that_of_the_model_type() -> None:
    assert (
        CONFIG_MAPPING["qwen2"].default_theta
        == rope_keys({"model_type": "qwen2", "rope_scaling": {"type": "linear", "factor": 2.0}}).parameters[
            "rope_theta"
        ]
    )  # type: ignore[index]


def test_it_can_be_shown() -> None:
    assert str(rope_keys(raw())) == "none"
    assert str(rope_keys(raw(rope_parameters=V5))).startswith("rope_parameters: rope_type='yarn' beta_fast=32")
    assert "rope_scaling" in str(rope_keys(raw(**V4)))
    assert "agree" in str(rope_keys(raw(rope_parameters=V5, **V4)))


def edited(folder: Path, **keys: Any) -> Path:
    """A plain checkpoint of a tiny LLaMA whose config was edited by hand."""
    tiny("llama").save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **keys}))
    return folder


def test_load_refuses_what_disagrees(tmp_path: Path) -> None:
    # What a user gets who extended the model in the words of transformers 4, on a checkpoint of transformers 5.
    folder = edited(tmp_path / "both", rope_scaling={"type": "linear", "factor": 4.0})
    with pytest.raises(hp.CheckpointError, match=r"rope_type='default'.*rope_type='linear'"):
        hp.load(folder)


def test_load_takes_what_agrees(tmp_path: Path) -> None:
    keys = {"rope_parameters": V5, **V4, "max_position_embeddings": 4 * LENGTH}
    model = hp.load(edited(tmp_path / "both", **keys))
    expected = hp.YaRN(factor=4.0, rope_theta=5e5, original_max_position_embeddings=LENGTH, partial_rotary_factor=1.0)
    assert hp.scheme_of(model) == expected
    alone = hp.load(edited(tmp_path / "v5", rope_parameters=V5, max_position_embeddings=4 * LENGTH))
    tokens = torch.randint(64, (1, 3 * LENGTH))
    with torch.no_grad():
        assert torch.equal(model.eval()(tokens).logits, alone.eval()(tokens).logits)


def test_load_with_a_config_of_the_callers_does_not_read_the_file(tmp_path: Path) -> None:
    folder = edited(tmp_path / "both", rope_scaling={"type": "linear", "factor": 4.0})
    assert hp.scheme_of(hp.load(folder, config=tiny("llama").config)).name == "rope"


@pytest.mark.parametrize("command", ["inspect", "patch", "extend", "export"])
def test_commands_refuse_what_disagrees(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = edited(tmp_path / "both", rope_theta=5e5)
    out = [str(tmp_path / "out")] if command != "inspect" else []
    options = {"patch": ["--scheme", "alibi"], "extend": ["--max-length", "128"]}.get(command, [])
    assert main([command, str(folder), *out, *options]) == 2
    message = capsys.readouterr().err
    assert "rope_theta=10000.0" in message
    assert "500000.0" in message
    assert not (tmp_path / "out").exists()
