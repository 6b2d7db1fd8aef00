"""Position interpolation against transformers' "linear" and against its definition."""

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posswap import LinearRoPE, RoPE, SchemeError

FLOAT32 = 1e-6


@pytest.mark.parametrize("length", [64, 4096, 131072])
@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize(("head_dim", "factor"), [(6, 1.0), (64, 2.5), (64, 8.0), (128, 64.0)])
def test_frequencies(length, theta, head_dim, factor, geometry, llama_config, assert_frequencies) -> None:
    facts = geometry(head_dim=head_dim, trained_length=length)
    scheme = LinearRoPE(factor=factor, rope_theta=theta).resolve(facts)
    parameters = {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    expected, scaling = ROPE_INIT_FUNCTIONS["linear"](llama_config(head_dim, length, parameters))
    assert_frequencies(scheme.inv_freq(facts), expected, FLOAT32)
    assert scheme.scaling(facts) == scaling == 1.0
    scalars = [theta ** (-2 * i / head_dim) / factor for i in range(head_dim // 2)]
    assert_frequencies(scheme.inv_freq(facts), torch.tensor(scalars, dtype=torch.float64), 1e-12)


def test_positions_are_squeezed_into_the_trained_length(geometry, assert_close) -> None:
    facts, positions = geometry(), torch.randint(0, 1000, (2, 13))
    squeezed = LinearRoPE(factor=4.0).resolve(facts).build(facts).rotation(4 * positions, torch.float64)
    plain = RoPE().resolve(facts).build(facts).rotation(positions, torch.float64)
    for actual, expected in zip(squeezed, plain, strict=True):
        assert_close(actual, expected, 1e-12)


def test_length_and_rope_parameters(geometry, llama_config, assert_frequencies) -> None:
    scheme = LinearRoPE(factor=2.5).resolve(geometry(rope_theta=5e5))
    resolved = {"rope_theta": 5e5, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 4096}
    assert scheme == LinearRoPE(factor=2.5, **resolved)
    assert scheme.max_length(geometry()) == 10240
    native = scheme.rope_parameters(geometry())
    expected, _ = ROPE_INIT_FUNCTIONS["linear"](llama_config(64, 10240, dict(native)))
    assert_frequencies(scheme.inv_freq(geometry()), expected, FLOAT32)
    assert LinearRoPE.from_rope_parameters(native) == LinearRoPE(factor=2.5, rope_theta=5e5)


def test_an_odd_head_dim_is_refused(geometry) -> None:
    with pytest.raises(SchemeError, match="linear turns pairs"):
        LinearRoPE(factor=2.0).resolve(geometry(head_dim=9))
