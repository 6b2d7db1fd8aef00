"""Property 3 where it is hard: frequencies that depend on a length, in every mode, across the trained length."""

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from pairs import CAUSAL, LENGTH, VOCAB, build, close, tokens
from test_cache import assert_cached_equals_uncached, cache_for, step_by_step
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import hf_posswap as hp
from hf_posswap.patching.forward import ROTATED_KEYS

TRAINED = 8
LISTS = {"long_factor": (1.0, 2.0, 3.0, 4.0), "short_factor": (1.0, 1.1, 1.2, 1.3)}
KINDS = ("gpt2", "llama", "mistral-window", "bert-decoder", "phi3", "glm")


def scheme(name: str, mode: str) -> Any:
    fields: dict[str, Any] = {"factor": 3.0, "mode": mode, "original_max_position_embeddings": TRAINED}
    classes: dict[str, Any] = {"dynamic": hp.DynamicNTKRoPE, "longrope": hp.LongRoPE, "yarn": hp.YaRN}
    return classes[name](**fields, **(LISTS if name == "longrope" else {}))


every_scheme = pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn"])


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("mode", ["segment", "static"])
@pytest.mark.parametrize("kind", KINDS)
@every_scheme
@torch.no_grad()
def test_cached_equals_uncached_across_the_trained_length(name: str, kind: str, mode: str, cache: str) -> None:
    model, ids = hp.patch(build(kind), scheme(name, mode)), tokens()
    close(step_by_step(model, ids, cache_for(model, cache)), model(ids, use_cache=False).logits, 1e-5)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    assert_cached_equals_uncached(model, ids, cache, mask, positions)


STOCK = [("dynamic", {}), ("longrope", {k: list(v) for k, v in LISTS.items()})]


@pytest.mark.parametrize(("rope_type", "fields"), STOCK)
@torch.no_grad()
def test_stock_transformers_fails_the_same_check(rope_type: str, fields: dict[str, Any]) -> None:
    """What this package is for: should it ever pass, mode="call" and our refusals can go."""
    parameters = {"rope_type": rope_type, "rope_theta": 1e4, "factor": 3.0, **fields}
    if rope_type == "longrope":
        parameters["original_max_position_embeddings"] = TRAINED
    stock = build("llama", rope_parameters=parameters, max_position_embeddings=TRAINED)
    ids = tokens()
    whole = stock(ids, use_cache=False).logits
    stock = build("llama", rope_parameters=parameters, max_position_embeddings=TRAINED)
    cache = DynamicCache(config=stock.config)
    parts = [stock(ids[:, :5], past_key_values=cache).logits]
    parts += [stock(ids[:, i : i + 1], past_key_values=cache).logits for i in range(5, LENGTH)]
    assert (torch.cat(parts, dim=1) - whole).abs().max() > 0.5 * whole.std()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "phi3", "bert"])
@every_scheme
@torch.no_grad()
def test_call_is_the_published_function(name: str, kind: str) -> None:
    """A call of n tokens has the frequencies of length n: those that "static" has for a scheme made for that length."""
    model = hp.patch(build(kind), scheme(name, "call"))
    for length in (5, TRAINED, TRAINED + 1, 20):
        ids = tokens(length=length)
        found = model(ids).logits if kind == "bert" else model(ids, use_cache=False).logits
        close(found, hp.patch(build(kind), of_length(name, length))(ids).logits, 1e-5)


def of_length(name: str, length: int) -> Any:
    """The scheme whose frequencies, for all positions, are those that `scheme(name, ...)` has at `length`."""
    if name == "longrope":
        static = scheme(name, "static")
        factors = static.long_factor if length > TRAINED else static.short_factor
        return hp.LongRoPE(long_factor=factors, factor=3.0, mode="static", original_max_position_embeddings=TRAINED)
    if name == "yarn":
        factor = min(max(1.0, length / TRAINED), 3.0)
        return hp.YaRN(factor=factor, original_max_position_embeddings=TRAINED)
    stretch = 3.0 * max(length, TRAINED) / TRAINED - 2.0
    # The smallest factor is 1; the theta of dynamic NTK is that of a plain RoPE.
    return hp.RoPE(rope_theta=1e4 * stretch ** (8 / 6))


@every_scheme
def test_call_refuses_a_cache_and_names_the_way_out(name: str) -> None:
    model, ids = hp.patch(build("llama"), scheme(name, "call")), tokens(1, 5)
    with pytest.raises(hp.SchemeError, match=r"takes no cache.*use_cache=False.*mode='segment'"):
        model(ids, past_key_values=DynamicCache(config=model.config))
    with pytest.raises(hp.SchemeError, match="takes no cache"):
        model.generate(ids, max_new_tokens=2)
    cache = model(ids).past_key_values
    with pytest.raises(hp.SchemeError, match="takes no cache"):
        model(ids, past_key_values=cache)
    out = model.generate(ids, max_new_tokens=8, use_cache=False, do_sample=False, eos_token_id=None)
    assert out.shape == (1, 13)


@torch.no_grad()
def test_rows_of_a_call_do_not_change_each_other() -> None:
    model, ids = hp.patch(build("llama"), scheme("dynamic", "call")), tokens(2, 20)
    positions = torch.stack((torch.arange(20), (torch.arange(20) - 13).clamp(min=0)))
    mask = torch.ones_like(ids)
    mask[1, :13] = 0
    padded = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[1, 13:]
    close(padded, model(ids[1:, 13:], use_cache=False).logits[0], 1e-5)


@torch.no_grad()
def test_which_keys_are_rotated_at_a_step() -> None:
    """Only the new one within a segment, all of them at its border."""
    model = hp.patch(build("llama"), scheme("dynamic", "segment"))
    encoding, turned = model.model.position_encoding, []
    original = encoding.turned
    encoding.turned = lambda x, angles: (turned.append(x.shape[1:3]), original(x, angles))[1]
    cache = DynamicCache(config=model.config)
    model(tokens(2, 9), past_key_values=cache)
    model(tokens(2, 1), past_key_values=cache)
    turned.clear()
    model(tokens(2, 1), past_key_values=cache)
    layers = model.config.num_hidden_layers
    assert [tuple(t) for t in turned] == [(2, 1), (4, 1)] * layers
    for _ in range(4):
        model(tokens(2, 1), past_key_values=cache)
    assert cache.get_seq_length() == 15
    turned.clear()
    model(tokens(2, 1), past_key_values=cache)  # position 15, the last of the second segment
    assert max(t[1] for t in turned) == 1
    model(tokens(2, 1), past_key_values=cache)
    assert max(t[1] for t in turned) == 17


@torch.no_grad()
def test_rotated_keys_are_dropped_when_the_cache_was_touched() -> None:
    model = hp.patch(build("llama"), scheme("dynamic", "segment"))
    ids = tokens(2, LENGTH)
    whole = model(ids, use_cache=False).logits

    def filled(length: int) -> Any:
        cache = DynamicCache(config=model.config)
        for start in range(0, length, 3):
            model(ids[:, start : start + 3], past_key_values=cache)
        return cache

    cache = filled(15)
    cache.crop(-4)
    close(model(ids[:, 11:12], past_key_values=cache).logits, whole[:, 11:12], 1e-5)
    cache.crop(-7)  # back over a border
    close(model(ids[:, 5:6], past_key_values=cache).logits, whole[:, 5:6], 1e-5)
    cache = filled(12)
    cache.reorder_cache(torch.tensor([1, 0]))
    close(model(ids[[1, 0], 12:13], past_key_values=cache).logits, whole[[1, 0], 12:13], 1e-5)
    cache = filled(12)
    for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert not vars(twin)[ROTATED_KEYS].layers
        close(model(ids[:, 12:13], past_key_values=twin).logits, whole[:, 12:13], 1e-5)
    with torch.inference_mode():
        close(model(ids[:, 12:13], past_key_values=cache).logits, whole[:, 12:13], 1e-5)
    in_place = filled(12)
    for layer in in_place.layers:
        layer.keys.mul_(0.5)
    halved = model(ids[:, 12:13], past_key_values=in_place).logits
    assert (halved - whole[:, 12:13]).abs().max() > 1e-3


@torch.no_grad()
def test_a_static_cache_in_inference_mode_is_reset_without_a_trace() -> None:
    model, ids = hp.patch(build("llama"), scheme("longrope", "segment")), tokens()
    whole = model(ids, use_cache=False).logits
    with torch.inference_mode():
        cache = cache_for(model, "static")
        step_by_step(model, tokens(), cache)
        cache.reset()
        close(step_by_step(model, ids, cache), whole, 1e-5)


@pytest.mark.parametrize("kind", [k for k in CAUSAL if k in ("gpt2", "llama", "bert-decoder")])
@torch.no_grad()
def test_positions_that_jump_about_are_right_too(kind: str) -> None:
    """More changes of segment than runs are made of: scores of all segments at once."""
    model = hp.patch(build(kind, vocab_size=VOCAB), scheme("dynamic", "segment"))
    ids = tokens(1, 600)
    positions = torch.arange(600)[None] % 30 + 3
    mask = torch.ones_like(ids)
    assert len(model.base_model.position_encoding.segments(positions).unique()) > 1
    found = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    model.set_attn_implementation("eager")
    jumping = (torch.arange(600) * 7 % 60)[None]
    eager = model(ids, attention_mask=mask, position_ids=jumping, use_cache=False).logits
    model.set_attn_implementation("sdpa")
    close(model(ids, attention_mask=mask, position_ids=jumping, use_cache=False).logits, eager, 1e-5)
    assert found.isfinite().all()


@torch.no_grad()
def test_jumping_positions_equal_a_loop_over_queries() -> None:
    model, ids = hp.patch(build("llama"), scheme("dynamic", "segment")), tokens(1, 300)
    jumping = (torch.arange(300) * 7 % 60)[None]
    mask = torch.ones_like(ids)
    whole = model(ids, attention_mask=mask, position_ids=jumping, use_cache=False).logits
    cache, parts = DynamicCache(config=model.config), []
    for start in range(0, 300, 20):  # few enough changes for runs
        call = {"position_ids": jumping[:, start : start + 20], "attention_mask": mask[:, : start + 20]}
        parts.append(model(ids[:, start : start + 20], past_key_values=cache, **call).logits)
    close(torch.cat(parts, dim=1), whole, 1e-5)


@torch.no_grad()
def test_saving_a_plain_checkpoint_that_stock_runs_otherwise_says_so(tmp_path: Any) -> None:
    model, ids = hp.patch(build("llama"), scheme("dynamic", "call")), tokens(1, 20)
    logits = model(ids, use_cache=False).logits
    with pytest.warns(UserWarning, match="plain checkpoint.*decoding is another function"):
        hp.save(model, tmp_path / "m")
    plain = LlamaForCausalLM.from_pretrained(tmp_path / "m")
    assert type(plain.config) is LlamaConfig
    assert plain.config.max_position_embeddings == TRAINED, "stock dynamic reads the trained length there"
    close(plain(ids, use_cache=False).logits, logits, 1e-4)
    loaded = hp.load(tmp_path / "m")
    assert hp.scheme_of(loaded) == hp.scheme_of(model)
    assert loaded.config.max_position_embeddings == model.config.max_position_embeddings == 24
    assert torch.equal(loaded(ids, use_cache=False).logits, logits)


@torch.no_grad()
def test_a_traced_model_takes_other_positions() -> None:
    model, ids = hp.patch(build("llama"), scheme("dynamic", "segment")), tokens(2, 24)
    ones, positions = torch.ones_like(ids), torch.arange(24)[None].expand(2, -1)

    class Call(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.model(ids, position_ids=positions, attention_mask=mask, use_cache=False).logits

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about transformers
        traced = torch.jit.trace(Call().eval(), (ids, positions, ones), check_trace=False)
    further = 2 * positions + 20
    close(traced(ids, further, ones), Call()(ids, further, ones), 1e-5)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("put_on", [scheme("dynamic", "segment"), hp.ALiBi()], ids=["dynamic", "alibi"])
def test_a_cache_that_inference_mode_continued(put_on: Any, cache: str) -> None:
    model, ids = hp.patch(build("llama"), put_on), tokens()
    filled = cache_for(model, cache)
    parts = []
    for start, stop, mode in ((0, 9, torch.no_grad), (9, 12, torch.inference_mode), (12, 24, torch.no_grad)):
        with mode():
            parts.append(model(ids[:, start:stop], past_key_values=filled).logits.clone())
    with torch.no_grad():
        close(torch.cat(parts, dim=1), model(ids, use_cache=False).logits, 1e-5)


@torch.no_grad()
def test_a_model_that_is_cast_between_steps() -> None:
    model, ids = hp.patch(build("llama"), scheme("dynamic", "segment")), tokens()
    cache = DynamicCache(config=model.config)
    model(ids[:, :12], past_key_values=cache)
    model(ids[:, 12:13], past_key_values=cache)
    found = model.double()(ids[:, 13:14], past_key_values=cache).logits
    assert found.dtype == torch.float64
    close(found, model(ids, use_cache=False).logits[:, 13:14], 1e-5)


def test_a_length_that_nothing_could_load_is_refused() -> None:
    model = build("llama")
    with pytest.raises(hp.SchemeError, match="makes 67108864 positions of it; at most 16777216"):
        hp.patch(model, hp.YaRN(factor=65536.0, original_max_position_embeddings=1024))
    assert hp.scheme_of(model).name == "rope"
