"""LongRoPE against transformers and against its definition, on LLaMA and on Phi-3, where it comes from."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from hf_posswap import LinearRoPE, LongRoPE, RoPE, SchemeError

SHORT, LONG = (1.0, 1.05, 1.25, 1.5), (1.0, 1.5, 4.75, 32.0)


def float64(value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def scalar_frequencies(factors, theta):
    return float64([theta ** (-i / len(factors)) / factor for i, factor in enumerate(factors)])


factors = st.floats(1e-3, 1e6)


@given(
    lists=st.integers(1, 48).flatmap(lambda n: st.tuples(*[st.lists(factors, min_size=n, max_size=n)] * 2)),
    original=st.integers(2, 2**17),
    length=st.integers(1, 2**20),
    theta=st.floats(10.0, 1e7),
    factor=st.floats(1.0, 128.0),
    attention_factor=st.none() | st.floats(0.1, 10.0),
)
@settings(deadline=None, max_examples=80, derandomize=True)
def test_frequencies(
    lists, original, length, theta, factor, attention_factor, geometry, llama_config, assert_frequencies
) -> None:
    short, long = lists
    facts = geometry(head_dim=2 * len(long), trained_length=original)
    fields = {"factor": factor, "attention_factor": attention_factor}
    scheme = LongRoPE(long_factor=long, short_factor=short, rope_theta=theta, mode="call", **fields).resolve(facts)
    parameters = {"rope_type": "longrope", "rope_theta": theta, "short_factor": short, "long_factor": long}
    parameters |= {"original_max_position_embeddings": original, **fields}
    for said in (parameters, scheme.rope_parameters(facts)):
        config = llama_config(2 * len(long), round(factor * original), said)
        stock, stock_scaling = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)
        actual, scaling = scheme.frequencies(float64(length), facts)
        assert_frequencies(actual, stock, 4e-6)
        assert abs(float(scaling) - stock_scaling) <= 1e-12
    assert_frequencies(actual, scalar_frequencies(long if length > original else short, theta), 1e-12)
    read = {**scheme.rope_parameters(facts), "max_position_embeddings": round(factor * original)}
    again = LongRoPE.from_rope_parameters(read).resolve(facts)
    assert (again.long_factor, again.short_factor) == (scheme.long_factor, scheme.short_factor)
    assert again.frequencies(float64(length), facts)[0].equal(actual)
    assert again.frequencies(float64(length), facts)[1].equal(scaling)


def test_the_lists_change_right_after_the_trained_length(geometry, assert_frequencies) -> None:
    facts = geometry(head_dim=8, trained_length=100)
    scheme = LongRoPE(long_factor=LONG, short_factor=SHORT, factor=4.0).resolve(facts)
    found, scaling = scheme.frequencies(float64([1.0, 99.0, 100.0, 101.0, 1e6]), facts)
    for row, factors in zip(found, (SHORT, SHORT, SHORT, LONG, LONG), strict=True):
        assert_frequencies(row, scalar_frequencies(factors, 1e4), 1e-14)
    # The factor on cos and sin is the same at every length, or cached keys could never serve.
    assert (scaling == math.sqrt(1 + math.log(4) / math.log(100))).all()
    assert scheme.segment_lengths() == [100, 400]


def test_no_short_list_is_plain_rope_within_the_trained_length(geometry) -> None:
    facts = geometry(head_dim=8, trained_length=100)
    scheme = LongRoPE(long_factor=LONG, factor=1.0).resolve(facts)
    inv_freq, scaling = scheme.frequencies(float64(100.0), facts)
    assert torch.equal(inv_freq, RoPE().resolve(facts).inv_freq(facts))
    assert scaling == 1


def test_equal_factors_are_position_interpolation(geometry, assert_frequencies) -> None:
    facts = geometry(head_dim=8)
    scheme = LongRoPE(long_factor=(3.5,) * 4, factor=3.5, mode="static").resolve(facts)
    assert_frequencies(scheme.inv_freq(facts), LinearRoPE(factor=3.5).resolve(facts).inv_freq(facts), 1e-14)


@pytest.mark.parametrize(("factor", "original", "expected"), [(1.0, 64, 1.0), (1.0, 1, 1.0), (2.0, 1, 1.0)])
def test_attention_factor_where_the_formula_ends(factor, original, expected, geometry) -> None:
    facts = geometry(head_dim=8, trained_length=original)
    assert LongRoPE(long_factor=LONG, factor=factor, mode="static").resolve(facts).scaling(facts) == expected
    given = LongRoPE(long_factor=LONG, factor=factor, attention_factor=1.5, mode="static").resolve(facts)
    assert given.scaling(facts) == 1.5


def native_outputs(config, kind, length):
    return kind(config)(torch.empty(1), torch.arange(length)[None])


@pytest.mark.parametrize("length", [1, 31, 32, 33, 200])
def test_static_is_said_with_both_lists_long(length, geometry, llama_config, assert_rotation) -> None:
    facts = geometry(head_dim=8, trained_length=32)
    scheme = LongRoPE(long_factor=LONG, short_factor=SHORT, factor=8.0, mode="static").resolve(facts)
    native = scheme.rope_parameters(facts)
    assert native["short_factor"] == native["long_factor"] == list(LONG)
    stock = native_outputs(llama_config(8, 256, native), LlamaRotaryEmbedding, length)
    ours = scheme.build(facts)(torch.empty(1), torch.arange(length)[None])
    again = LongRoPE.from_rope_parameters({**native, "max_position_embeddings": 256}).resolve(facts)
    assert_rotation(ours, stock)
    assert_rotation(again.build(facts)(torch.empty(1), torch.arange(length)[None]), stock)


@pytest.mark.parametrize("short", [SHORT, None])
def test_call_is_the_published_form_row_by_row(short, geometry, llama_config, assert_rotation) -> None:
    facts = geometry(head_dim=8, trained_length=32)
    scheme = LongRoPE(long_factor=LONG, short_factor=short, factor=4.0, mode="call").resolve(facts)
    native = scheme.rope_parameters(facts)
    lengths = [1, 31, 32, 33, 100]
    positions = torch.stack([torch.arange(100).clamp(max=length - 1) for length in lengths])
    ours = scheme.build(facts)(torch.empty(1), positions)
    for row in range(len(lengths)):
        stock = LlamaRotaryEmbedding(llama_config(8, 128, dict(native)))(torch.empty(1), positions[row : row + 1])
        assert_rotation([x[row : row + 1] for x in ours], stock)
    assert "cache" in scheme.refuses_cache


@pytest.mark.parametrize("length", [20, 32, 33, 90])
@pytest.mark.parametrize("part", [1.0, 0.75])
def test_a_phi3_config_is_read_as_phi3_reads_it(length, part, geometry, assert_rotation) -> None:
    pairs = int(16 * part) // 2
    short, long = (torch.rand(2, pairs) * 3 + 1).tolist()
    parameters = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "rope_theta": 1e4}
    config = Phi3Config(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        rope_parameters={**parameters, "partial_rotary_factor": part},
    )
    facts = geometry(head_dim=16, trained_length=32, rotates_prefix=True, partial_rotary_factor=part)
    read = LongRoPE.from_rope_parameters({**config.rope_parameters, "max_position_embeddings": 128}).resolve(facts)
    assert read.factor == 4.0
    ours = read.build(facts)(torch.empty(1), torch.arange(length)[None])
    assert_rotation(ours, native_outputs(config, Phi3RotaryEmbedding, length))
    config.rope_parameters = read.rope_parameters(facts)
    assert_rotation(ours, native_outputs(config, Phi3RotaryEmbedding, length))


@pytest.mark.parametrize("name", ["long_factor", "short_factor"])
def test_a_list_of_another_length_is_refused(name, geometry) -> None:
    with pytest.raises(SchemeError, match=f"longrope: {name} has 3 numbers, and 4 pairs of dimensions turn"):
        LongRoPE(**{"factor": 2.0, "long_factor": LONG, name: (1.0, 2.0, 3.0)}).resolve(geometry(head_dim=8))
    with pytest.raises(SchemeError, match="long_factor has 4 numbers, and 2 pairs"):
        LongRoPE(factor=2.0, long_factor=LONG, partial_rotary_factor=0.5).resolve(geometry(head_dim=8))


def test_segments_cannot_be_said_natively(geometry) -> None:
    facts = geometry(head_dim=8)
    assert LongRoPE(long_factor=LONG, factor=2.0).resolve(facts).rope_parameters(facts) is None
