"""position_probe: the regression against least squares, and what models with and without positions know of them."""

import importlib
import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from tiny import HIDDEN, LENGTH, VOCAB, redraw, tiny
from torch import Tensor

import hf_posswap as hp
from hf_posswap.evaluation import PositionProbe, position_probe
from hf_posswap.evaluation.position_probe.layer_outputs import layer_outputs
from hf_posswap.evaluation.position_probe.ridge import RidgeSums

MEASURING = importlib.import_module("hf_posswap.evaluation.position_probe.measuring")
RIDGE = importlib.import_module("hf_posswap.evaluation.position_probe.ridge")


def documents(count: int, length: int = LENGTH) -> list[Tensor]:
    """As texts are: the first token is always the same."""
    found = torch.randint(4, VOCAB, (count, length))
    found[:, 0] = 1
    return list(found)


def errors(result: PositionProbe) -> list[float]:
    assert [layer.layer for layer in result.layers] == list(range(len(result.layers)))
    return [layer.error for layer in result.layers]


@pytest.mark.parametrize("ridge", [1e-6, 1e-2, 3.0])
def test_ridge_is_least_squares_with_a_penalty(ridge: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against numpy's solver, which takes the penalty as more examples; of features far from 0 and of other scales."""
    features = torch.randn(300, 7) * torch.logspace(-3, 3, 7) + torch.randn(7) * 50
    targets = torch.randn(300, dtype=torch.float64) + features[:, 2] * 0.01 + 4.0
    monkeypatch.setattr(RIDGE, "EXAMPLES", 64)
    sums = RidgeSums()
    sums.add(features[:200], targets[:200])
    sums.add(features[200:], targets[200:])
    probe = sums.fit(ridge)

    exact = features.double().numpy()
    mean, scale = exact.mean(0), exact.std(0)
    above = np.concatenate([(exact - mean) / scale, np.sqrt(300 * ridge) * np.eye(7)])
    right = np.concatenate([targets.numpy() - targets.numpy().mean(), np.zeros(7)])
    weight = np.linalg.lstsq(above, right, rcond=None)[0]
    tried = torch.randn(5, 3, 7)
    expected = (tried.double().numpy() - mean) / scale @ weight + targets.numpy().mean()
    np.testing.assert_allclose(probe(tried).numpy(), expected, rtol=1e-8)


def test_ridge_leaves_out_what_does_not_vary() -> None:
    features = torch.cat([torch.randn(50, 2), torch.full((50, 1), 1e6), torch.zeros(50, 1)], dim=1)
    sums = RidgeSums()
    sums.add(features, features[:, 0].double() * 3 + 1)
    probe = sums.fit(1e-12)
    assert probe.weight.tolist() == pytest.approx([3.0, 0.0, 0.0, 0.0], abs=1e-6)
    assert float(probe.intercept) == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(hp.EvaluationError, match="not finite"):
        RidgeSums().fit(1.0)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "llama-sinusoidal", "gpt2-rope"])
@torch.no_grad()
def test_layers_are_those_that_the_model_itself_shows(kind: str) -> None:
    model = tiny(kind.split("-")[0])
    if "-" in kind:
        hp.patch(model, kind.split("-")[1])
    ids = torch.stack(documents(2))
    found: dict[int, Tensor] = {}
    with layer_outputs(model, range(3), found.__setitem__):
        expected = model.base_model(ids, output_hidden_states=True).hidden_states
    assert list(found) == [0, 1, 2]
    torch.testing.assert_close(found[1], expected[1])
    last = {"gpt2": "ln_f", "llama": "norm"}.get(kind.split("-")[0])  # transformers shows it behind the last norm
    norm = torch.nn.Identity() if last is None else getattr(model.base_model, last)
    torch.testing.assert_close(norm(found[2]), expected[2])
    first = expected[0]
    if kind == "llama-sinusoidal":  # added on the way into the first layer
        first = model.model.embed_tokens(ids) + model.model.position_input(torch.arange(LENGTH)[None])
    torch.testing.assert_close(found[0], first)


def test_positions_that_are_there_are_found() -> None:
    """A table that is p in a dimension that tokens leave alone: a linear probe reads it exactly."""
    model = tiny("gpt2")
    with torch.no_grad():
        model.transformer.wte.weight[:, 5] = 0
        model.transformer.wpe.weight.zero_()
        model.transformer.wpe.weight[:, 5] = torch.arange(LENGTH) / LENGTH
    result = position_probe(model, documents(24), LENGTH, ridge=1e-9)
    assert errors(result)[0] < 1e-4
    assert result.layers[0].interval is not None
    assert result.layers[0].interval.high < 1e-4


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "bert"])
def test_sinusoidal_tables_are_read_at_layer_0(model_type: str) -> None:
    result = position_probe(hp.patch(tiny(model_type), "sinusoidal"), documents(60), LENGTH)
    assert errors(result)[0] < result.control / 4


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_decoders_without_positions_learn_them_with_depth(model_type: str) -> None:
    """Nothing at layer 0, and less error with each of the first layers: what the causal mask gives away."""
    texts = [torch.randint(4, VOCAB, (LENGTH,)) for _ in range(100)]
    result = position_probe(hp.patch(tiny(model_type), "nope"), texts, LENGTH)
    at_start, *deeper = result.layers
    assert at_start.error == pytest.approx(result.control, rel=0.03)
    assert all(layer.interval.high < at_start.interval.low for layer in deeper)
    assert deeper[1].error < deeper[0].error


def test_an_encoder_without_positions_never_learns_them() -> None:
    """A bag of words: the control of the control."""
    texts = [torch.randint(4, VOCAB, (LENGTH,)) for _ in range(100)]
    result = position_probe(hp.patch(tiny("bert"), "nope", allow_unordered=True), texts, LENGTH)
    assert errors(result) == pytest.approx([result.control] * 3, rel=0.02)
    assert result.control == pytest.approx(result.guess, rel=0.02)


def test_the_control_has_no_more_to_fit_than_the_probe() -> None:
    """With as many dimensions as tokens both learn by heart, and the control says so."""
    result = position_probe(tiny("gpt2"), documents(2, 40), 40)
    assert result.fitted_tokens == 40
    assert result.control > 1.5 * result.guess
    assert result.guess == 10.0


def test_reads_all_whole_windows_of_long_documents() -> None:
    model, texts = tiny("gpt2"), [torch.randint(4, VOCAB, (n,)) for n in (50, 19, 101, 20, 20, 20)]
    result = position_probe(model, texts, 20, test_share=0.4, seed=3)
    assert (result.skipped, result.fitted_documents, result.tested_documents) == ((1,), 3, 2)
    cut = [text[start : start + 20] for text in texts for start in range(0, len(text) - 19, 20)]
    assert len(cut) == 2 + 5 + 3
    assert result.fitted_tokens in {20 * n for n in (3, 4, 7, 8)}
    assert position_probe(model, texts, 20, test_share=0.4, seed=3).layers == result.layers
    others = [position_probe(model, texts, 20, test_share=0.4, seed=seed) for seed in range(4)]
    assert len({each.control for each in others}) == 4


def test_neither_batches_nor_passes_nor_resuming_change_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = tiny("llama"), documents(20)
    expected = position_probe(model, texts, LENGTH)
    options = {"tokens_per_batch": 1, "state": tmp_path / "state.jsonl"}
    monkeypatch.setattr(MEASURING, "MOST_NUMBERS", (HIDDEN + 2) ** 2)  # every layer in a pass of its own
    one_by_one = position_probe(model, texts, LENGTH, **options)
    assert errors(one_by_one) == pytest.approx(errors(expected), rel=1e-4)
    assert one_by_one.control == pytest.approx(expected.control, rel=0.1)  # other random numbers
    with mock.patch.object(MEASURING, "last_hidden_states", side_effect=AssertionError("measured again")):
        again = position_probe(model, texts, LENGTH, **options)
    assert (again.layers, again.control) == (one_by_one.layers, one_by_one.control)


def test_layers_are_shared_out_over_processes() -> None:
    """However many there are, all layers are probed once, and the control."""
    model = tiny("gpt2", n_layer=7)
    for processes in (1, 2, 3, 100):
        shared = MEASURING._together(model, processes)
        assert [layer for part in shared for layer in part] == list(range(-1, 8))
        assert max(map(len, shared)) == math.ceil(8 / processes)
    assert MEASURING._together(model, 1) == [[-1], [0, 1, 2, 3, 4, 5, 6, 7]]


def test_sums_of_wide_models_stay_within_memory() -> None:
    """Of 33 layers of width 4096 no more at a time than a GiB."""
    with torch.device("meta"):
        config = transformers.LlamaConfig(hidden_size=4096, num_hidden_layers=32, intermediate_size=8, vocab_size=8)
        model = transformers.LlamaForCausalLM(config)
    parts = MEASURING._together(model, 1)
    assert max(map(len, parts)) * 4098**2 * 8 <= 2**30
    assert [layer for part in parts for layer in part] == list(range(-1, 33))


def test_leaves_the_model_as_it_was() -> None:
    model = tiny("gpt2", resid_pdrop=0.5).train()
    model.transformer.h[1].eval()
    before = [(id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    texts = documents(6)
    first = position_probe(model, texts, LENGTH)
    assert position_probe(model, texts, LENGTH).layers == first.layers  # no dropout
    torch.nn.init.constant_(model.transformer.h[0].ln_1.weight, torch.nan)
    with pytest.raises(hp.EvaluationError, match="hidden states are not finite"):
        position_probe(model, documents(6), LENGTH)
    after = [(id(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    assert after == before


def test_survives_json() -> None:
    result = position_probe(tiny("bert"), [*documents(4), torch.ones(3, dtype=torch.long)], LENGTH)
    assert result.layers[0].interval is None  # of one document
    assert result.skipped == (4,)
    assert PositionProbe.from_json(result.to_json()) == result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype) -> None:
    model, texts = hp.patch(tiny("gpt2"), "sinusoidal"), documents(40)
    exact = position_probe(model, texts, LENGTH)
    found = position_probe(model.to(dtype), texts, LENGTH)
    assert errors(found) == pytest.approx(errors(exact), rel=0.05 if dtype == torch.bfloat16 else 1e-4)


def test_refuses_what_cannot_be_measured() -> None:
    model, texts = tiny("gpt2"), documents(4, 30)
    for arguments, message in [
        ({"length": 0}, "length is a whole number"),
        ({"length": 30, "test_share": 1.0}, "test_share is a share between 0 and 1"),
        ({"length": 30, "test_share": 0}, "test_share is a share"),
        ({"length": 30, "ridge": 0.0}, "ridge is a number above 0"),
        ({"length": 30, "ridge": float("nan")}, "ridge is a number above 0"),
        ({"length": 30, "tokens_per_batch": 0}, "tokens_per_batch is"),
        ({"length": 40}, "None of the 4 documents has 40 tokens"),
        ({"length": 65}, "more than the 64 positions"),
    ]:
        with pytest.raises(hp.EvaluationError, match=message):
            position_probe(model, texts, **arguments)
    with pytest.raises(hp.EvaluationError, match="at least 2 are needed"):
        position_probe(model, [*documents(1, 30), *documents(3, 8)], 30)
    albert = transformers.AlbertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(hp.EvaluationError, match="no list of 2 layers"):
        position_probe(redraw(transformers.AlbertModel(albert)), texts, 30)
