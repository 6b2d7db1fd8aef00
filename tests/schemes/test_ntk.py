"""NTK-aware scaling. transformers has it only inside "dynamic", as what that computes for one length."""

import math

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hf_posswap import NTKRoPE, RoPE, SchemeError

FLOAT32 = 1e-6


@pytest.mark.parametrize("length", [64, 4096, 131072])
@pytest.mark.parametrize("theta", [1e4, 5e5])
@pytest.mark.parametrize(("head_dim", "factor"), [(6, 4.0), (64, 1.0), (64, 2.5), (128, 64.0)])
def test_frequencies(length, theta, head_dim, factor, geometry, llama_config, assert_frequencies) -> None:
    facts = geometry(head_dim=head_dim, trained_length=length)
    scheme = NTKRoPE(factor=factor, rope_theta=theta).resolve(facts)
    # At factor 1 dynamic scales the base by (l / L)^(d/(d-2)): at l = factor * L this is our scheme.
    parameters = {"rope_type": "dynamic", "rope_theta": theta, "factor": 1.0}
    config = llama_config(head_dim, length, parameters)
    expected, scaling = ROPE_INIT_FUNCTIONS["dynamic"](config, seq_len=round(factor * length))
    assert_frequencies(scheme.inv_freq(facts), expected, FLOAT32)
    assert scheme.scaling(facts) == scaling == 1.0


@pytest.mark.parametrize(("head_dim", "factor", "theta"), [(4, 3.0, 1e4), (64, 8.0, 1e4), (128, 2.5, 5e5)])
def test_frequencies_against_scalars(head_dim, factor, theta, geometry, assert_frequencies) -> None:
    base = theta * math.pow(factor, head_dim / (head_dim - 2))
    scalars = [math.pow(base, -2 * i / head_dim) for i in range(head_dim // 2)]
    facts = geometry(head_dim=head_dim)
    actual = NTKRoPE(factor=factor, rope_theta=theta).resolve(facts).inv_freq(facts)
    assert_frequencies(actual, torch.tensor(scalars, dtype=torch.float64), 1e-12)


def test_the_fastest_pair_is_kept_and_the_slowest_interpolated(geometry) -> None:
    facts = geometry(head_dim=64)
    ratio = RoPE().resolve(facts).inv_freq(facts) / NTKRoPE(factor=6.0).resolve(facts).inv_freq(facts)
    assert ratio[0] == 1
    assert abs(ratio[-1] - 6) <= 1e-12
    assert (ratio.diff() > 0).all()


def test_length_and_rope_parameters(geometry, llama_config, assert_frequencies) -> None:
    scheme = NTKRoPE(factor=4).resolve(geometry(trained_length=512))
    resolved = {"rope_theta": 1e4, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 512}
    assert scheme == NTKRoPE(factor=4, **resolved)
    assert scheme.max_length(geometry()) == 2048
    config = llama_config(64, 2048, scheme.rope_parameters(geometry()))
    expected, _ = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    assert_frequencies(scheme.inv_freq(geometry()), expected, FLOAT32)


@pytest.mark.parametrize(
    ("head_dim", "part", "reason"),
    [(2, 1.0, "more than 2 dimensions that turn, not 2"), (5, 1.0, "head_dim, not 5"), (8, 0.25, "that turn, not 2")],
)
def test_a_head_dim_without_a_formula_is_refused(head_dim, part, reason, geometry) -> None:
    with pytest.raises(SchemeError, match=reason):
        NTKRoPE(factor=2.0, partial_rotary_factor=part).resolve(geometry(head_dim=head_dim))
