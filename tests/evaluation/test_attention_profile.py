"""attention_profile against the weights that models themselves return, and against heads made by hand."""

import math
from collections import defaultdict
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from allocations import elements_of
from pairs import LENGTH, build, pairs, patched
from tiny import VOCAB, redraw, tiny
from torch import Tensor

import hf_posswap as hp
from hf_posswap.evaluation import AttentionProfile, attention_profile
from hf_posswap.evaluation.attention_profile.sums import LayerSums

EVERY_DISTANCE = 10**4
"""Buckets so many that each has one distance."""
SMALL: dict[str, Any] = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


def documents(*lengths: int) -> list[Tensor]:
    return [torch.randint(4, VOCAB, (length,)) for length in lengths]


def other(model_type: str, **fields: Any) -> Any:
    config = transformers.AutoConfig.for_model(model_type, **fields, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return redraw(transformers.AutoModel.from_config(config)).eval()


def shown_blocks(model: Any, text: list[Tensor], length: int) -> tuple[AttentionProfile, list[list[tuple]]]:
    """The profile, and the blocks that each layer showed on the way to it, `(start, scores, weights)`."""
    shown: dict[int, list[tuple]] = defaultdict(list)
    show = LayerSums.show

    def watch(sums: LayerSums, start: int, scores: Tensor, weights: Tensor) -> None:
        shown[id(sums)].append((sums, start, scores, weights))
        show(sums, start, scores, weights)

    with mock.patch.object(LayerSums, "show", watch):
        profile = attention_profile(model, text, length, buckets=EVERY_DISTANCE)
    layers = [[block[1:] for block in blocks] for blocks in shown.values()]
    return profile, layers[-2:]  # those before are of the trial


def by_distance(values: Tensor, seen: Tensor) -> list[float]:
    """Mean of `values [B, Q, K]` over the pairs seen at each distance on either side, one number at a time; as far as
    any are seen."""
    found: dict[int, list[float]] = defaultdict(list)
    for row, visible in zip(values.tolist(), seen.tolist(), strict=True):
        for q, (numbers, flags) in enumerate(zip(row, visible, strict=True)):
            for k, (number, flag) in enumerate(zip(numbers, flags, strict=True)):
                if flag:
                    found[abs(q - k)].append(number)
    return [sum(found[d]) / len(found[d]) for d in range(len(found))]


def assert_profile(profile: AttentionProfile, attentions: Any, layers: list[list[tuple]]) -> None:
    """Against the weights `[B, H, L, L]` that the model gave for each layer, and the scores that were shown."""
    length = profile.length
    assert profile.distances == tuple(range(length))
    heads = iter(profile.heads)
    for number, (weights, blocks) in enumerate(zip(attentions, layers, strict=True)):
        scores = torch.full_like(weights, -torch.inf)
        for start, block, _ in blocks:
            scores[:, :, start : start + block.shape[2], : block.shape[3]] = block
        torch.testing.assert_close(scores.softmax(dim=-1), weights, rtol=1e-4, atol=1e-6)
        for index in range(weights.shape[1]):
            head, own, seen = next(heads), weights[:, index].double(), scores[:, index] > -1e30
            assert (head.layer, head.head) == (number, index)
            expected = by_distance(scores[:, index].double(), seen)
            reach = len(expected)
            assert head.score[:reach] == pytest.approx(expected, rel=1e-4, abs=1e-5)
            assert head.score[reach:] == (None,) * (length - reach)
            expected = by_distance(own, seen) + [0.0] * (length - reach)
            assert head.weight == pytest.approx(expected, rel=1e-4, abs=1e-6)
            distances = (torch.arange(length)[:, None] - torch.arange(length)).abs()
            assert head.mean_distance == pytest.approx(float((own * distances).sum(-1).mean()), rel=1e-4)
            diagonals = {0: head.diagonal, -1: head.previous}
            for offset, found in diagonals.items():
                assert found == pytest.approx(float(own.diagonal(offset, 1, 2).mean()), rel=1e-4, abs=1e-6)
            assert head.first == pytest.approx(float(own[..., 0].mean()), rel=1e-4, abs=1e-6)


@pairs(("gpt2", "llama", "bert", "mistral-window"))
@torch.no_grad()
def test_shows_what_the_model_attends_to(pair: Any) -> None:
    text = documents(LENGTH, LENGTH)
    model = patched(pair)
    profile, layers = shown_blocks(model, text, LENGTH)
    model.set_attn_implementation("eager")
    assert_profile(profile, model(torch.stack(text), output_attentions=True).attentions, layers)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert", "mistral-window", "qwen3", "smollm3", "phi3", "glm"])
@torch.no_grad()
def test_shows_what_stock_models_attend_to(kind: str) -> None:
    text = documents(LENGTH, LENGTH)
    profile, layers = shown_blocks(build(kind), text, LENGTH)
    stock = build(kind, attn_implementation="eager")
    assert_profile(profile, stock(torch.stack(text), output_attentions=True).attentions, layers)


@pytest.mark.parametrize("model_type", ["opt", "gpt_neox", "distilbert"])
@torch.no_grad()
def test_shows_what_models_of_no_known_family_attend_to(model_type: str) -> None:
    fields = {"distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}}.get(model_type, SMALL)
    model, text = other(model_type, **{"vocab_size": VOCAB, **fields}), documents(LENGTH)
    profile, layers = shown_blocks(model, text, LENGTH)
    assert profile.inv_freq == ()
    model.set_attn_implementation("eager")
    assert_profile(profile, model(torch.stack(text), output_attentions=True).attentions, layers)


@pytest.mark.parametrize("name", ["alibi", "dynamic", "xpos", "layered", None])
def test_blocks_of_queries_add_up(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    text, model = documents(LENGTH), tiny("llama")
    if name is not None:
        fields = {"dynamic": {"factor": 4.0}, "layered": {"schemes": (hp.RoPE(), hp.NoPE()), "pattern": "RN"}}
        hp.patch(model, name, **fields.get(name, {}))
    whole = attention_profile(model, text, LENGTH)
    monkeypatch.setattr("hf_posswap.attention.scores.BLOCK_ELEMENTS", 1)
    monkeypatch.setattr("hf_posswap.attention.scores.SMALLEST_BLOCK", 5)
    for found, expected in zip(attention_profile(model, text, LENGTH).heads, whole.heads, strict=True):
        assert found.weight == pytest.approx(expected.weight, rel=1e-5)
        assert found.score == pytest.approx(expected.score, rel=1e-4, abs=1e-6)


def test_a_head_that_attends_to_all_alike() -> None:
    """Its weights are known: query q gives 1 / (q + 1) to each key. Read in buckets, over several documents."""
    model, length = tiny("gpt2"), 50
    for block in model.transformer.h:
        torch.nn.init.zeros_(block.attn.c_attn.weight)
        torch.nn.init.zeros_(block.attn.c_attn.bias)
    profile = attention_profile(model, documents(50, 49, 120), length, buckets=6)
    assert (profile.documents, profile.skipped, profile.windows) == (2, (1,), 3)
    assert profile.distances == (0, 1, 2, 5, 10, 23)
    ends = (*profile.distances[1:], length)
    expected = []
    for start, stop in zip(profile.distances, ends, strict=True):
        weights = [1 / (q + 1) for q in range(length) for d in range(start, stop) if d <= q]
        expected.append(sum(weights) / len(weights))
    for head in profile.heads:
        assert head.score == pytest.approx([0.0] * 6)
        assert head.weight == pytest.approx(expected)
        assert head.mean_distance == pytest.approx((length - 1) / 4)
        assert head.diagonal == head.first == pytest.approx(sum(1 / q for q in range(1, length + 1)) / length)


def test_heads_made_by_hand_show() -> None:
    """A bias that is large at one distance: head h looks h tokens back, as soon as there are so many."""
    model, length = hp.patch(tiny("gpt2"), "t5"), 40
    with torch.no_grad():
        model.transformer.position_encoding.relative_attention_bias[:4].copy_(1000.0 * torch.eye(4))
    profile = attention_profile(model, documents(length), length)
    for head in profile.heads:
        assert head.weight[head.head] == pytest.approx(1.0, abs=1e-6)
        assert head.score[head.head] == pytest.approx(1000.0, rel=0.05)
    diagonal, previous = profile.heads[0], profile.heads[1]
    assert (diagonal.diagonal, diagonal.previous) == pytest.approx((1.0, 0.0), abs=1e-6)
    assert diagonal.mean_distance == pytest.approx(0.0, abs=1e-6)
    assert previous.previous == pytest.approx(1.0, abs=1e-6)
    assert previous.mean_distance == pytest.approx((length - 1) / length, abs=1e-6)


@pytest.mark.parametrize("model_type", ["llama", "glm"])
def test_frequencies_are_those_that_a_head_uses(model_type: str) -> None:
    """Query heads keep one pair each, in the pairing of the family; key heads keep all."""
    model = tiny(model_type)
    attention = model.model.layers[1].self_attn
    dim = attention.head_dim
    used = {0: 2, 1: 0, 3: 3}
    with torch.no_grad():
        for head in range(4):
            i = used.get(head)
            pair = [] if i is None else [i, i + dim // 2] if model_type == "llama" else [2 * i, 2 * i + 1]
            others = [head * dim + d for d in range(dim) if d not in pair]
            attention.q_proj.weight[others] = 0
            if attention.q_proj.bias is not None:
                attention.q_proj.bias[others] = 0
    profile = attention_profile(model, documents(30), 30)
    assert len(profile.inv_freq) == 4
    assert profile.inv_freq == tuple(hp.scheme_of(model).inv_freq(model_geometry(model)).tolist())
    for head in profile.heads[4:]:
        expected = [float(used.get(head.head) == i) for i in range(4)]
        assert head.frequencies == pytest.approx(expected, abs=1e-6)
    for head in profile.heads[:4]:
        assert min(head.frequencies) > 0
        assert sum(head.frequencies) == pytest.approx(1.0) if model_type == "llama" else sum(head.frequencies) < 0.9


def model_geometry(model: Any) -> Any:
    from hf_posswap.families import family_of

    return family_of(model.config).geometry(model.config)


def test_shares_are_products_of_mean_norms() -> None:
    """LLaMA's own projections, rotated by nobody: a rotation keeps norms."""
    model, (text,) = tiny("llama"), documents(20)
    profile = attention_profile(model, [text], 20)
    layer, seen = model.model.layers[0], []
    hook = layer.self_attn.register_forward_pre_hook(lambda m, a, k: seen.append(k["hidden_states"]), with_kwargs=True)
    with torch.no_grad():
        model(text[None])
    hook.remove()
    query, key = (
        p(seen[0])[0].view(20, -1, 2, 4).norm(dim=2).mean(0) for p in (layer.self_attn.q_proj, layer.self_attn.k_proj)
    )
    for head in profile.heads[:4]:
        sizes = query[head.head] * key[head.head // 2]
        assert head.frequencies == pytest.approx((sizes / sizes.sum()).tolist(), rel=1e-4)


@pytest.mark.parametrize(
    ("scheme", "pairs_known", "layers_rotated"),
    [
        (hp.YaRN(factor=2.0), 4, (True, True)),
        (hp.LogScaled(hp.RoPE()), 4, (True, True)),
        (hp.Layered(hp.NoPE(), hp.RoPE(), pattern="NR"), 4, (False, True)),
        (hp.Layered(hp.RoPE(), hp.ALiBi(), pattern="RA"), 4, (True, False)),
        (hp.Layered(hp.RoPE(), hp.RoPE(rope_theta=99.0), pattern="AB"), 0, (False, False)),
        (hp.RoPE(partial_rotary_factor=0.5), 2, (True, True)),
        (hp.DynamicNTKRoPE(factor=2.0), 0, (False, False)),
        (hp.DynamicNTKRoPE(factor=2.0, mode="call"), 0, (False, False)),
        (hp.DynamicNTKRoPE(factor=2.0, mode="static"), 4, (True, True)),
        (hp.XPos(), 0, (False, False)),
        (hp.ALiBi(), 0, (False, False)),
        (hp.NoPE(), 0, (False, False)),
    ],
    ids=str,
)
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_frequencies_are_given_where_there_are_such(
    model_type: str, scheme: Any, pairs_known: int, layers_rotated: tuple[bool, ...]
) -> None:
    profile = attention_profile(hp.patch(tiny(model_type), scheme), documents(20), 20)
    assert len(profile.inv_freq) == pairs_known
    for head in profile.heads:
        assert len(head.frequencies) == pairs_known
        assert (sum(head.frequencies) > 0.2) == (pairs_known > 0 and layers_rotated[head.layer])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", [None, "alibi"])
def test_other_dtypes(name: str | None, dtype: torch.dtype) -> None:
    text, model = documents(40), tiny("llama")
    if name is not None:
        hp.patch(model, name)
    exact = attention_profile(model, text, 40)
    found = attention_profile(model.to(dtype), text, 40)
    for one, other_one in zip(found.heads, exact.heads, strict=True):
        assert one.weight == pytest.approx(other_one.weight, rel=0.15 if dtype == torch.bfloat16 else 1e-5)


def test_batches_and_resumed_runs_change_nothing(tmp_path: Any) -> None:
    model, text = tiny("llama"), documents(30, 64, 30)
    options = {"tokens_per_batch": 30, "state": tmp_path / "state.jsonl"}
    first = attention_profile(model, text, 30, **options)
    with mock.patch.object(LayerSums, "values", side_effect=AssertionError("measured again")):
        again = attention_profile(model, text, 30, **options)
    assert again.heads == first.heads
    together = attention_profile(model, text, 30)
    for found, expected in zip(together.heads, first.heads, strict=True):
        assert found.weight == pytest.approx(expected.weight, rel=1e-5)
        assert found.mean_distance == pytest.approx(expected.mean_distance, rel=1e-5)


@pytest.mark.parametrize("name", [None, "alibi", "dynamic", "t5"])
def test_no_square_tensor_is_made(name: str | None) -> None:
    length = 1024
    model = tiny("llama", max_position_embeddings=length, num_hidden_layers=1)
    if name is not None:
        hp.patch(model, name, **({"factor": 2.0} if name == "dynamic" else {}))
    text = documents(length)
    largest, _ = elements_of(lambda: attention_profile(model, text, length), block_elements=2**14)
    assert largest < length * length / 4


@pytest.mark.parametrize("name", [None, "alibi", "layered"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_leaves_the_model_as_it_was(name: str | None, attention: str) -> None:
    model = tiny("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, attn_implementation=attention)
    if name is not None:
        fields = {"layered": {"schemes": (hp.RoPE(), hp.ALiBi()), "pattern": "RA"}}
        hp.patch(model, name, **fields.get(name, {}))
    model.train()
    model.transformer.h[0].eval()
    text = documents(40)
    before = [(id(m), m.training, id(getattr(m, "config", None)), len(m._forward_pre_hooks)) for m in model.modules()]
    config = model.config.to_dict() | {"attention": model.config._attn_implementation}
    first = attention_profile(model, text, 40)
    assert attention_profile(model, text, 40).heads == first.heads  # no dropout

    def fail(*args: Any) -> None:
        raise KeyboardInterrupt

    hook = model.transformer.h[1].attn.c_proj.register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        attention_profile(model, text, 40)
    hook.remove()
    after = [(id(m), m.training, id(getattr(m, "config", None)), len(m._forward_pre_hooks)) for m in model.modules()]
    assert after == before
    assert model.config.to_dict() | {"attention": model.config._attn_implementation} == config
    assert first.subject.attention == config["attention"]


def test_survives_json() -> None:
    profile = attention_profile(build("mistral-window"), documents(30, 5), 30)
    assert profile.heads[0].score[-1] is None  # beyond the window of 8
    assert profile.heads[0].weight[-1] == 0.0
    assert AttentionProfile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: other("bloom", vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4), "attention interface"),
        (lambda: other("gemma2", **SMALL, num_key_value_heads=2, head_dim=8, intermediate_size=32), "softcap"),
        (
            lambda: other("t5", vocab_size=VOCAB, d_model=32, d_ff=32, num_layers=1, num_heads=2),
            "encoder and a decoder",
        ),
    ],
)
def test_refuses_models_whose_attention_is_another(model: Any, message: str) -> None:
    with pytest.raises(hp.EvaluationError, match=message):
        attention_profile(model(), documents(20), 20)


def test_refuses_attention_that_does_more() -> None:
    """What is shown would not be what the model attends to, and nothing but its outputs says so."""

    class Louder(transformers.LlamaModel):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            if self.config._attn_implementation == "sdpa":
                output.last_hidden_state = output.last_hidden_state * 1.01
            return output

    with pytest.raises(hp.EvaluationError, match=r"does more in its attention .* off by 9.9e-03"):
        attention_profile(Louder(tiny("llama").config), documents(20), 20)


def test_refuses_what_cannot_be_measured() -> None:
    model = tiny("gpt2")
    for arguments, message in [
        ({"length": 1}, "length is a whole number of tokens from 2 up"),
        ({"length": 20.0}, "length is a whole number"),
        ({"length": 20, "buckets": 1}, "buckets is a whole number from 2 up"),
        ({"length": 20, "tokens_per_batch": 0}, "tokens_per_batch is"),
        ({"length": 40}, "None of the 1 documents has 40 tokens"),
        ({"length": 65}, "more than the 64 positions"),
    ]:
        with pytest.raises(hp.EvaluationError, match=message):
            attention_profile(model, documents(30), **arguments)
    with pytest.raises(hp.EvaluationError, match="vocabulary of 64"):
        attention_profile(model, [torch.full((30,), VOCAB)], 20)
    torch.nn.init.constant_(model.transformer.h[1].attn.c_attn.weight, math.nan)
    with pytest.raises(hp.EvaluationError, match="not finite"):
        attention_profile(model, documents(30), 20)
