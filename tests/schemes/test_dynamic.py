"""Dynamic NTK against transformers' "dynamic", length by length, and against its definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hf_posswap import DynamicNTKRoPE, NTKRoPE, RoPE, SchemeError


def float64(value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def scalar_frequencies(length, head_dim, theta, factor, original):
    stretch = factor * max(length, original) / original - (factor - 1)
    base = theta * stretch ** (head_dim / (head_dim - 2))
    return float64([base ** (-2 * i / head_dim) for i in range(head_dim // 2)])


@given(
    half_dim=st.integers(2, 64),
    original=st.integers(1, 2**17),
    length=st.integers(1, 2**22),
    theta=st.floats(10.0, 1e7),
    factor=st.floats(1.0, 64.0),
)
@settings(deadline=None, max_examples=80, derandomize=True)
def test_frequencies(half_dim, original, length, theta, factor, geometry, llama_config, assert_frequencies) -> None:
    # d = 4 squares the stretch, and float32 has no base beyond 1e38.
    length = min(length, 10**6 * original)
    facts = geometry(head_dim=2 * half_dim, trained_length=original)
    scheme = DynamicNTKRoPE(factor=factor, rope_theta=theta).resolve(facts)
    actual, scaling = scheme.frequencies(float64(length), facts)
    parameters = {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    stock, _ = ROPE_INIT_FUNCTIONS["dynamic"](llama_config(2 * half_dim, original, parameters), seq_len=length)
    # The exponents of float32 are good to 6e-8, which the logarithm of the base multiplies.
    assert_frequencies(actual, stock, 2e-7 * (1 + float(scheme.scaled_theta(float64(length), facts).log())))
    assert_frequencies(actual, scalar_frequencies(length, 2 * half_dim, theta, factor, original), 1e-10)
    assert scaling == 1


@pytest.mark.parametrize("factor", [1.0, 2.3, 7.7])
def test_it_is_rope_to_the_last_bit_within_the_trained_length(factor, geometry) -> None:
    facts = geometry(rope_theta=5e5, trained_length=100)
    scheme = DynamicNTKRoPE(factor=factor).resolve(facts)
    lengths = torch.arange(1.0, 101.0, dtype=torch.float64)
    kept = RoPE().resolve(facts).inv_freq(facts)
    assert torch.equal(scheme.frequencies(lengths, facts)[0], kept.expand(100, -1))
    assert not torch.equal(scheme.frequencies(float64(101), facts)[0], kept)


@pytest.mark.parametrize("length", [130, 200, 5000])
def test_factor_one_is_ntk_aware_scaling_to_the_length(length, geometry, assert_frequencies) -> None:
    facts = geometry(trained_length=100)
    actual, _ = DynamicNTKRoPE(factor=1.0).resolve(facts).frequencies(float64(length), facts)
    assert_frequencies(actual, NTKRoPE(factor=length / 100).resolve(facts).inv_freq(facts), 1e-12)


@pytest.mark.parametrize(
    ("head_dim", "factor", "theta"), [(4, 2.0, 1e4), (64, 1.0, 1e4), (64, 2.5, 5e5), (128, 8.0, 1e4)]
)
def test_static_is_rope_with_a_larger_base(
    head_dim, factor, theta, geometry, llama_config, stock_rotary, assert_frequencies
) -> None:
    facts = geometry(head_dim=head_dim, trained_length=64, rope_theta=theta)
    scheme = DynamicNTKRoPE(factor=factor, mode="static").resolve(facts)
    assert scheme.kind == "rotary"
    assert scheme.refuses_cache is None
    actual = scheme.build(facts).inv_freq
    native = scheme.rope_parameters(facts)
    assert native["rope_type"] == "default"
    as_rope = RoPE.from_rope_parameters(native).resolve(facts)
    assert_frequencies(actual, as_rope.inv_freq(facts), 1e-12)
    assert_frequencies(actual, stock_rotary(head_dim, 64, native).inv_freq, 4e-6)
    parameters = {"rope_type": "dynamic", "rope_theta": theta, "factor": factor}
    config = llama_config(head_dim, 64, parameters)
    assert_frequencies(actual, ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=round(64 * factor))[0], 4e-6)
    assert scheme.max_length(facts) == 64 * factor


def test_call_is_the_published_form_row_by_row(geometry, llama_config, assert_close, assert_rotation) -> None:
    facts = geometry(trained_length=32)
    scheme = DynamicNTKRoPE(factor=3.0, rope_theta=5e4, mode="call").resolve(facts)
    native = scheme.rope_parameters(facts)
    encoding = scheme.build(facts)
    lengths = [1, 17, 31, 32, 33, 34, 63, 64, 65, 150]
    positions = torch.stack([torch.arange(150).clamp(max=length - 1) for length in lengths])
    ours = encoding(torch.empty(1), positions)
    for row, length in enumerate(lengths):
        stock = LlamaRotaryEmbedding(llama_config(64, 32, dict(native)))
        assert_rotation([x[row : row + 1] for x in ours], stock(torch.empty(1), positions[row : row + 1]))
        angles = torch.arange(length)[:, None] * scalar_frequencies(length, 64, 5e4, 3.0, 32).repeat(2)
        assert_close(ours[0][row, :length], angles.cos(), 1e-6)


def test_call_goes_to_transformers_and_back(geometry) -> None:
    facts = geometry(trained_length=512, rope_theta=5e5)
    scheme = DynamicNTKRoPE(factor=2.5, mode="call").resolve(facts)
    native = scheme.rope_parameters(facts)
    assert native == {"rope_type": "dynamic", "rope_theta": 5e5, "factor": 2.5}
    # Stock takes the config's length for the trained one, whatever else stands beside it.
    read = {**native, "max_position_embeddings": 512, "original_max_position_embeddings": 7}
    assert DynamicNTKRoPE.from_rope_parameters(read).resolve(facts) == scheme
    assert scheme.stock_length() == 512
    assert "cache" in scheme.refuses_cache


def test_segments_are_doublings_without_end(geometry) -> None:
    facts = geometry(trained_length=3000)
    scheme = DynamicNTKRoPE(factor=2.0).resolve(facts)
    lengths = scheme.segment_lengths()
    assert lengths[:4] == [3000, 6000, 12000, 24000]
    assert lengths[-1] == 2**24
    assert scheme.rope_parameters(facts) is None
    assert scheme.kind == "score"
    assert scheme.refuses_cache is None


@pytest.mark.parametrize(("head_dim", "part"), [(2, 1.0), (16, 0.125)])
def test_two_dimensions_are_refused(head_dim, part, geometry) -> None:
    with pytest.raises(SchemeError, match="dynamic divides by d - 2 and needs more than 2 dimensions that turn, not 2"):
        DynamicNTKRoPE(factor=2.0, partial_rotary_factor=part).resolve(geometry(head_dim=head_dim))
