"""NTK-by-parts is YaRN with attention_factor 1: against transformers, and against the paper pair by pair."""

import math

import pytest
import torch
from ramps import any_ramp
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posswap import NTKByPartsRoPE, RoPE, SchemeError, YaRN


@pytest.fixture(scope="session")
def agrees(geometry, llama_config, assert_frequencies):
    def check(head_dim, length, **fields):
        facts = geometry(head_dim=head_dim, trained_length=length)
        scheme = NTKByPartsRoPE(**fields).resolve(facts)
        said = {"rope_type": "yarn", "original_max_position_embeddings": length, "attention_factor": 1.0, **fields}
        for parameters in (said, scheme.rope_parameters(facts)):
            expected, scaling = ROPE_INIT_FUNCTIONS["yarn"](
                llama_config(head_dim, scheme.max_length(facts), parameters)
            )
            # Where the ramp nears 1 its float32 error stands beside a frequency that the factor has divided.
            assert_frequencies(scheme.inv_freq(facts), expected, 2e-7 * (4 + fields["factor"]))
            assert scheme.scaling(facts) == scaling == 1.0
        read = YaRN.from_rope_parameters(scheme.rope_parameters(facts)).resolve(facts)
        assert_frequencies(read.inv_freq(facts), scheme.inv_freq(facts), 1e-14)
        assert read.scaling(facts) == 1.0

    return check


@any_ramp
def test_frequencies(head_dim, length, fields, agrees) -> None:
    agrees(head_dim, length, **fields)


@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("head_dim", "length", "fields"),
    [
        (64, 64, {}),  # the ramp starts below the first pair
        (64, 64, {"beta_slow": 20.0}),  # and ends there
        (64, 131072, {"rope_theta": 100.0}),  # it ends beyond the last dimension
        (64, 131072, {"rope_theta": 10.0}),  # and starts there
        (64, 4096, {"beta_slow": 31.99}),  # it has no width
    ],
)
def test_ramps_that_reach_their_clamps(head_dim, length, fields, truncate, agrees) -> None:
    agrees(head_dim, length, **{"rope_theta": 1e4, **fields}, factor=8.0, truncate=truncate)


def test_frequencies_against_scalars(geometry, assert_frequencies) -> None:
    facts = geometry(head_dim=128, trained_length=4096)
    # Equation 18's r of 1 and 32 turns, by the (fractional) pair that makes them.
    low, high = (128 * math.log(4096 / (2 * math.pi * beta)) / (2 * math.log(1e4)) for beta in (32, 1))
    expected = []
    for pair in range(64):
        gamma = 1 - min(max((pair - low) / (high - low), 0.0), 1.0)
        theta = 1e4 ** (-2 * pair / 128)
        expected.append((1 - gamma) * theta / 6.5 + gamma * theta)
    scheme = NTKByPartsRoPE(factor=6.5, truncate=False).resolve(facts)
    assert_frequencies(scheme.inv_freq(facts), torch.tensor(expected, dtype=torch.float64), 1e-12)


def test_factor_one_is_rope(geometry, assert_frequencies) -> None:
    facts = geometry(rope_theta=5e5)
    kept = RoPE().resolve(facts).inv_freq(facts)
    assert_frequencies(NTKByPartsRoPE(factor=1.0).resolve(facts).inv_freq(facts), kept, 1e-15)


def test_cos_and_sin_come_as_they_are(geometry, stock_rotary, assert_close, assert_rotation) -> None:
    facts = geometry(head_dim=16)
    scheme, positions = NTKByPartsRoPE(factor=4.0).resolve(facts), torch.randint(0, 200, (2, 7))
    ours = scheme.build(facts)(torch.empty(1), positions)
    stock = stock_rotary(16, 16384, scheme.rope_parameters(facts))(torch.empty(1), positions)
    assert_rotation(ours, stock)
    assert_close(ours[0] ** 2 + ours[1] ** 2, torch.ones_like(ours[0]), 1e-6)


def test_betas_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(SchemeError, match=r"ntk_by_parts: beta_fast=.* must be larger than beta_slow="):
        NTKByPartsRoPE(factor=2.0, beta_fast=1.0, beta_slow=2.0)
