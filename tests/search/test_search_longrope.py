"""search_longrope on tiny models: what it measures, that it is repeatable, and that the model comes back."""

import copy
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from model_facts import facts
from tiny import VOCAB, redraw, tiny, tiny_config
from transformers import LlamaForCausalLM

import hf_posswap as hp
from hf_posswap.search import SearchResult, search_longrope

TRAINED, LONGER = 16, 48


def model_of(model_type: str = "llama", **overrides: Any) -> Any:
    return tiny(model_type, max_position_embeddings=TRAINED, **overrides)


def text(documents: int = 3, length: int = 100) -> list[torch.Tensor]:
    return [torch.randint(3, VOCAB, (length,)) for _ in range(documents)]


def search(model: Any, documents: list[torch.Tensor], **options: Any) -> SearchResult:
    defaults = {"seconds": None, "evaluations": 30, "population": 8, "state": None, "progress": False}
    return search_longrope(model, documents, LONGER, **{**defaults, **options})


def comparable(result: SearchResult) -> dict[str, Any]:
    return {name: value for name, value in result.to_dict().items() if name != "seconds"}


# What is measured


def stock_perplexity(model: Any, windows: torch.Tensor, **parameters: Any) -> float:
    """By a stock LLaMA with these rope_parameters and the loss that transformers computes."""
    config = copy.deepcopy(model.config)
    config.rope_parameters = {"rope_theta": 10000.0, "original_max_position_embeddings": TRAINED, **parameters}
    config.max_position_embeddings = LONGER
    stock = LlamaForCausalLM(config).eval()
    stock.load_state_dict(model.state_dict())
    with torch.no_grad():
        losses = [stock(input_ids=window[None], labels=window[None]).loss.item() for window in windows]
    return math.exp(sum(losses) / len(losses))


@pytest.mark.parametrize("attention_factor", ["search", None, 1.0])
def test_perplexities_are_those_of_stock_transformers(attention_factor: Any) -> None:
    model, documents = model_of(), text(2, 2 * LONGER)
    windows = torch.cat([document.view(2, LONGER) for document in documents])
    result = search(model, documents, windows=100, attention_factor=attention_factor, tokens_per_batch=100)
    assert result.windows == 4
    factor = LONGER / TRAINED
    parameters = result.scheme.rope_parameters(hp.schemes.Geometry(4, 2, 8, 32, 2, TRAINED, True))
    assert parameters is not None
    found = stock_perplexity(model, windows, **parameters)
    assert result.perplexity == pytest.approx(found, rel=1e-5)
    expected = {
        "rope": stock_perplexity(model, windows, rope_type="default"),
        "linear": stock_perplexity(model, windows, rope_type="linear", factor=factor),
        "ntk": stock_perplexity(model, windows, rope_type="default", rope_theta=10000 * factor ** (8 / 6)),
        "yarn": stock_perplexity(model, windows, rope_type="yarn", factor=factor),
    }
    assert result.baselines == pytest.approx(expected, rel=1e-5)
    assert len({round(value, 3) for value in expected.values()}) == 4
    if attention_factor == "search":
        assert result.perplexity <= min(expected[name] for name in ("linear", "ntk", "yarn")) * (1 + 1e-6)
    assert result.scheme.original_max_position_embeddings == TRAINED
    assert (result.scheme.factor, result.scheme.short_factor) == (factor, None)


def test_windows_are_spread_over_all_documents() -> None:
    model, documents = model_of(), text(4, 3 * LONGER + 5)
    result = search(model, [*documents, text(1, 10)[0]], windows=4, evaluations=8)
    windows = torch.stack([document[:LONGER] for document in documents])
    assert result.windows == 4
    assert result.baselines["rope"] == pytest.approx(stock_perplexity(model, windows, rope_type="default"), rel=1e-5)


def test_finds_the_best_of_a_space_that_can_be_searched_whole() -> None:
    """Two pairs that turn, and so two factors: as good as any on a grid of 0.25, by the model's own loss."""
    model = redraw(LlamaForCausalLM(tiny_config("llama", max_position_embeddings=TRAINED)), std=0.6).eval()
    (document,) = text(1, LONGER)
    hp.patch(model, hp.RoPE(partial_rotary_factor=0.5))
    result = search(model, [document], evaluations=400, population=32, attention_factor=1.0)
    losses = {}
    for first in range(100, 376, 25):
        for second in range(first, 376, 25):
            factors = (first / 100, second / 100)
            scheme = replace(result.scheme, long_factor=factors)
            with torch.no_grad():
                losses[factors] = hp.patch(model, scheme)(document[None], labels=document[None]).loss.item()
    assert math.log(result.perplexity) <= min(losses.values()) + 1e-6


def test_history_goes_down_to_what_is_returned() -> None:
    result = search(model_of(), text(), evaluations=41)
    assert [generation.number for generation in result.history] == list(range(len(result.history)))
    assert [generation.evaluations for generation in result.history] == [12, *range(16, 41, 4), 41][
        : len(result.history)
    ]
    perplexities = [generation.perplexity for generation in result.history]
    assert perplexities == sorted(perplexities, reverse=True)
    assert perplexities[-1] == result.perplexity < perplexities[0]
    assert (result.evaluations, result.stopped) == (41, "evaluations")
    assert json.loads(json.dumps(result.to_dict())) == result.to_dict()


# The same again


def test_same_seed_same_result_and_the_global_random_state_is_left_alone() -> None:
    model, documents = model_of(), text()
    random_state = torch.get_rng_state()
    first, again, other = (search(model, documents, seed=seed) for seed in (3, 3, 4))
    assert comparable(first) == comparable(again)
    assert first.scheme != other.scheme
    assert torch.equal(torch.get_rng_state(), random_state)


def test_seconds_only_stop_it() -> None:
    model, documents = model_of(), text()
    timed = search(model, documents, seconds=1.0, evaluations=None)
    assert timed.stopped == "seconds"
    assert timed.evaluations > 8
    counted = search(model, documents, evaluations=timed.evaluations)
    assert {**comparable(counted), "stopped": "seconds"} == comparable(timed)


def test_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    model, documents, path = model_of(), text(), tmp_path / "state.json"
    whole = search(model, documents, evaluations=50)
    parts = [search(model, documents, evaluations=n, state=path) for n in (8, 23, 24, 50, 50)]
    assert comparable(parts[-1]) == comparable(parts[-2]) == comparable(whole)
    assert parts[-1].seconds == parts[-2].seconds > parts[0].seconds
    assert comparable(search(model, documents, evaluations=24, state=path)) == comparable(parts[2])
    assert [p.name for p in tmp_path.iterdir()] == ["state.json"]


SCRIPT = """
import sys, torch
sys.path[:0] = {path!r}
from test_search_longrope import model_of, search
documents = torch.load(sys.argv[1])
search(model_of(), documents, evaluations=100000, state=sys.argv[2])
"""


@pytest.mark.parametrize("killed_by", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_resumed_is_the_same(killed_by: signal.Signals, tmp_path: Path) -> None:
    documents, path, given = text(), tmp_path / "state.json", tmp_path / "documents.pt"
    torch.save(documents, given)
    tests = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    command = [sys.executable, "-c", SCRIPT.format(path=tests), str(given), str(path)]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(killed_by)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0
    assert path.exists(), error
    kept = len(json.loads(path.read_text())["evaluated"])
    assert kept > 8
    model = model_of()
    resumed = search(model, documents, evaluations=kept + 20, state=path)
    assert comparable(resumed) == comparable(search(model, documents, evaluations=kept + 20))


# The model comes back


def trained_elsewhere() -> Any:
    """Patched, extended to a length that no scheme says, frozen in part and in a mixed mode."""
    model = hp.extend(model_of(), 24, "theta", rope_theta=20000.0)
    model.model.layers[0].train()
    model.model.norm.weight.requires_grad = False
    model.config.use_cache = False
    return model


def reloaded(tmp_path: Path) -> Any:
    hp.save(hp.patch(model_of("gpt2", n_positions=TRAINED), hp.YaRN(factor=2.0)), tmp_path / "saved")
    return hp.load(tmp_path / "saved")


MODELS = {
    "stock": lambda folder: model_of(),
    "patched": lambda folder: trained_elsewhere(),
    "by segments": lambda folder: hp.patch(
        model_of(), hp.LongRoPE(long_factor=(1.0, 1.5, 2.0, 2.5), factor=2.0, mode="segment")
    ),
    "gpt2": lambda folder: hp.patch(tiny("gpt2", n_positions=TRAINED), hp.RoPE(rope_theta=500.0)),
    "reloaded": reloaded,
}


@pytest.mark.parametrize("name", MODELS)
def test_model_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    model, documents = MODELS[name](tmp_path), text()
    ids = torch.randint(3, VOCAB, (2, 20))
    before, logits = facts(model), model(ids).logits
    result = search(model, documents, evaluations=12)
    assert facts(model) == before
    assert torch.equal(model(ids).logits, logits)
    hp.patch(model, result.scheme)
    long = torch.stack([document[:LONGER] for document in documents])
    assert model(long, labels=long).loss.isfinite()


@pytest.mark.parametrize("name", ["stock", "patched"])
def test_model_comes_back_when_interrupted_at_any_time(name: str, tmp_path: Path) -> None:
    model, documents, path = MODELS[name](tmp_path), text(), tmp_path / "state.json"
    ids = torch.randint(3, VOCAB, (2, 20))
    before, logits = facts(model), model(ids).logits
    for _ in range(12):
        delay = 0.03 + 0.4 * torch.rand(()).item()
        interrupt = threading.Timer(delay, signal.raise_signal, [signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            search(model, documents, evaluations=None, seconds=60.0, state=path)
        interrupt.join()
        assert facts(model) == before
        assert torch.equal(model(ids).logits, logits)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    kept = len(json.loads(path.read_text())["evaluated"])
    resumed = search(model, documents, evaluations=kept + 8, state=path)
    assert comparable(resumed) == comparable(search(model, documents, evaluations=kept + 8))


def test_model_comes_back_when_it_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, documents, path = model_of(), text(), tmp_path / "state.json"
    before = facts(model)
    monkeypatch.setattr("hf_posswap.search.measuring.SAVED_EVERY", -1.0)
    calls = iter(range(100))

    def fails(model: Any, ids: torch.Tensor) -> torch.Tensor:
        if next(calls) == 10:
            raise RuntimeError("out of memory")
        return torch.rand(len(ids), ids.shape[1] - 1)

    monkeypatch.setattr("hf_posswap.search.measuring.token_nll", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        search(model, documents, state=path)
    assert facts(model) == before
    assert len(json.loads(path.read_text())["evaluated"]) == 10


def test_works_in_a_thread_where_no_signal_can_be_handled() -> None:
    results: list[Any] = []
    model, documents = model_of(), text()
    thread = threading.Thread(target=lambda: results.append(search(model, documents)))
    thread.start()
    thread.join()
    assert comparable(results[0]) == comparable(search(model, documents))


# Likelihoods that are not finite


def test_what_is_not_finite_is_never_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def overflows(model: Any, ids: torch.Tensor) -> torch.Tensor:
        scheme = hp.scheme_of(model)
        bad = isinstance(scheme, hp.LongRoPE) and abs(scheme.long_factor[-1] - 3.0) > 1e-6
        return torch.full((len(ids), ids.shape[1] - 1), math.nan if bad else 1.0)

    monkeypatch.setattr("hf_posswap.search.measuring.token_nll", overflows)
    model, documents, path = model_of(), text(1), tmp_path / "state.json"
    results = [search(model, documents, evaluations=n, state=path) for n in (20, 40)]
    assert results[1].scheme.long_factor[-1] == pytest.approx(3.0)
    assert results[1].perplexity == pytest.approx(math.e)
    assert any(entry["nll"] is None for entry in json.loads(path.read_text())["evaluated"])


def test_a_model_that_gives_no_numbers_is_refused() -> None:
    model = model_of()
    with torch.no_grad():
        model.model.norm.weight[0] = math.nan
    with pytest.raises(hp.EvaluationError, match="not finite with rope"):
        search(model, text())
    assert hp.scheme_of(model).name == "rope"
