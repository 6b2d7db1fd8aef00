"""What a search refuses, with the model and the state as they were."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import VOCAB, tiny
from torch import nn
from transformers import BertPreTrainedModel

import hf_posswap as hp
from hf_posswap.search import search_longrope

LONGER = 48
TEXT = torch.arange(3, 3 + 50)


def model_of(model_type: str = "llama", **overrides: Any) -> Any:
    return tiny(model_type, max_position_embeddings=16, **overrides)


def search(model: Any, documents: Any = (TEXT,), max_length: Any = LONGER, **options: Any) -> Any:
    defaults = {"seconds": None, "evaluations": 12, "population": 8, "state": None, "progress": False}
    return search_longrope(model, documents, max_length, **{**defaults, **options})


def wrapped(model: Any) -> Any:
    return get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: wrapped(model_of()), hp.FamilyError, "patch it first"),
        (lambda: nn.Linear(2, 2), hp.FamilyError, "no transformers model"),
        (lambda: "gpt2", hp.FamilyError, "loaded model"),
        (lambda: tiny("gpt2"), hp.SchemeError, "has learned, and LongRoPE rescales RoPE"),
        (lambda: hp.patch(model_of(), hp.ALiBi()), hp.SchemeError, "has alibi"),
        (lambda: hp.patch(model_of(), hp.XPos()), hp.SchemeError, "has xpos"),
        (lambda: hp.patch(model_of(), hp.ProportionalRoPE()), hp.SchemeError, "has proportional"),
        (lambda: hp.patch(tiny("bert"), hp.RoPE()), hp.EvaluationError, "no causal language model"),
        (lambda: model_of(head="sequence"), hp.EvaluationError, "output embeddings"),
        (
            lambda: model_of(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}),
            hp.SchemeError,
            "pass original_max_position_embeddings=8",
        ),
    ],
)
def test_models(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    model = make()
    before = hp.scheme_of(model) if hasattr(model, "base_model") and not hasattr(model, "peft_config") else None
    with pytest.raises(error, match=message):
        search(model, max_length=80 if isinstance(model, BertPreTrainedModel) else LONGER)
    if before is not None:
        assert hp.scheme_of(model) == before


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"max_length": 16}, hp.SchemeError, "no extension of the 16 positions"),
        ({"max_length": 8}, hp.SchemeError, "no extension of the 16 positions"),
        ({"max_length": 48.0}, hp.EvaluationError, "max_length is a whole number"),
        ({"max_length": True}, hp.EvaluationError, "max_length is a whole number"),
        ({"max_length": 2**25}, hp.EvaluationError, "max_length is a whole number"),
        ({"original_max_position_embeddings": 48}, hp.SchemeError, "no extension of the 48 positions"),
        ({"original_max_position_embeddings": "8"}, hp.SchemeError, "number of positions before any extension"),
        ({"documents": []}, hp.EvaluationError, "None of the 0 documents has 48 tokens"),
        ({"documents": [TEXT[:47], TEXT[:5]]}, hp.EvaluationError, "None of the 2 documents has 48 .* longest has 47"),
        ({"documents": [TEXT[None]]}, hp.EvaluationError, "A document is a tensor of token ids"),
        ({"documents": [TEXT.float()]}, hp.EvaluationError, "A document is a tensor of token ids"),
        ({"documents": ["text"]}, hp.EvaluationError, "A document is a tensor of token ids"),
        ({"documents": "text"}, hp.EvaluationError, "A document is a tensor of token ids"),
        ({"documents": [TEXT + VOCAB]}, hp.EvaluationError, f"do not fit a vocabulary of {VOCAB}"),
        ({"documents": [TEXT - 9]}, hp.EvaluationError, f"do not fit a vocabulary of {VOCAB}"),
        ({"seconds": 0}, hp.EvaluationError, "seconds is a number above 0"),
        ({"seconds": -1.0}, hp.EvaluationError, "seconds is a number above 0"),
        ({"seconds": float("nan")}, hp.EvaluationError, "seconds is a number above 0"),
        ({"seconds": "60"}, hp.EvaluationError, "seconds is a number above 0"),
        ({"evaluations": 0}, hp.EvaluationError, "evaluations is a whole number from 7 up"),
        ({"evaluations": 6}, hp.EvaluationError, "evaluations is a whole number from 7 up"),
        ({"evaluations": 30.0}, hp.EvaluationError, "evaluations is a whole number from 7 up"),
        ({"evaluations": None}, hp.EvaluationError, "needs an end"),
        ({"population": 2}, hp.EvaluationError, "population is a whole number from 3"),
        ({"windows": 0}, hp.EvaluationError, "windows is a whole number from 1"),
        ({"tokens_per_batch": 0}, hp.EvaluationError, "tokens_per_batch is a whole number from 1"),
        ({"seed": 0.5}, hp.EvaluationError, "seed is a whole number"),
        ({"attention_factor": "none"}, hp.EvaluationError, "attention_factor is 'search', None or a number"),
        ({"attention_factor": 0.0}, hp.EvaluationError, "attention_factor is 'search', None or a number"),
        ({"attention_factor": float("nan")}, hp.EvaluationError, "attention_factor is 'search', None or a number"),
        ({"state": "no/such/folder.json"}, hp.EvaluationError, "cannot be written to no/such/folder.json"),
        ({"state": "."}, hp.EvaluationError, "cannot be written to"),
    ],
)
def test_arguments(
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = model_of()
    monkeypatch.setattr("hf_posswap.search.measuring.try_on", lambda *_: pytest.fail("the model was touched"))
    with pytest.raises(error, match=message):
        search(model, **{"state": "search.json", **arguments})
    assert not os.listdir(tmp_path)


def other_model() -> Any:
    model = model_of()
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.001)
    return model


def other_base() -> Any:
    return hp.patch(tiny("gpt2", n_positions=16), hp.RoPE(rope_theta=500.0))


@pytest.mark.parametrize(
    ("arguments", "different"),
    [
        ({"seed": 1}, "seed"),
        ({"population": 9}, "population"),
        ({"attention_factor": None}, "attention_factor"),
        ({"attention_factor": 1.0}, "attention_factor"),
        ({"documents": [TEXT.flip(0)]}, "text"),
        ({"documents": [TEXT, TEXT]}, "text"),
        ({"max_length": 40}, "text, max_length"),
        ({"original_max_position_embeddings": 12}, "original_max_position_embeddings"),
        ({"model": other_model}, "model"),
        ({"model": other_base}, "model, scheme"),
    ],
)
def test_state_of_another_search(arguments: dict[str, Any], different: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    search(model_of(), state=path)
    before = path.read_bytes()
    model = arguments.pop("model", model_of)()
    with pytest.raises(hp.EvaluationError, match=f"another search, with another {different}: name another file"):
        search(model, **arguments, state=path)
    assert path.read_bytes() == before


def test_state_is_taken_whatever_budget_and_batch(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    search(model_of(), state=path)
    before = json.loads(path.read_text())["evaluated"]
    search(model_of(), state=path, evaluations=14, tokens_per_batch=50, seconds=9.0)
    assert json.loads(path.read_text())["evaluated"][:12] == before


def drop(values: dict[str, Any]) -> None:
    del values["evaluated"][3]["nll"]


def negative(values: dict[str, Any]) -> None:
    values["evaluated"][3]["nll"] = -1.0


def future(values: dict[str, Any]) -> None:
    values["version"] = 2


def words(values: dict[str, Any]) -> None:
    values["seconds"] = "many"


@pytest.mark.parametrize("damage", [drop, negative, future, words])
def test_damaged_state(damage: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    search(model_of(), state=path)
    values = json.loads(path.read_text())
    damage(values)
    path.write_text(json.dumps(values))
    with pytest.raises(hp.EvaluationError, match="is no state of a search, or damaged"):
        search(model_of(), state=path)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"version": 1}', "\udcff"])
def test_what_is_no_state(content: str, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(hp.EvaluationError, match="is no state of a search, or damaged"):
        search(model_of(), state=path)
    assert path.read_text(errors="surrogateescape") == content
