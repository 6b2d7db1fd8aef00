"""YaRN against transformers: frequencies, temperature and every corner of the ramp."""

import math

import pytest
import torch
from ramps import any_ramp
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posswap import RoPE, SchemeError, YaRN

LENGTHS, THETAS, TRUNCATE = (64, 4096, 131072), (1e4, 5e5), (True, False)


@pytest.fixture(scope="session")
def agrees(geometry, llama_config, assert_frequencies):
    """Checks one set of parameters, given to both sides, and that ours survives the way to transformers and back."""

    def check(head_dim, length, factor, **parameters):
        parameters["factor"] = factor
        facts = geometry(head_dim=head_dim, trained_length=length)
        scheme = YaRN(original_max_position_embeddings=length, **parameters).resolve(facts)
        native = {"rope_type": "yarn", "original_max_position_embeddings": length, **parameters}
        for said in (native, scheme.rope_parameters(facts)):
            expected, scaling = ROPE_INIT_FUNCTIONS["yarn"](llama_config(head_dim, scheme.max_length(facts), said))
            # Where the ramp nears 1 its float32 error stands beside a frequency that the factor has divided.
            assert_frequencies(scheme.inv_freq(facts), expected, 2e-7 * (4 + factor))
            assert abs(scheme.scaling(facts) - scaling) <= 1e-12
        assert YaRN.from_rope_parameters(scheme.rope_parameters(facts)).resolve(facts) == scheme

    return check


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("truncate", TRUNCATE)
@pytest.mark.parametrize(("head_dim", "factor"), [(8, 1.0), (64, 4.0), (128, 2.5), (128, 64.0)])
def test_frequencies(length, theta, truncate, head_dim, factor, agrees) -> None:
    agrees(head_dim, length, rope_theta=theta, factor=factor, truncate=truncate)


@pytest.mark.parametrize("truncate", TRUNCATE)
@pytest.mark.parametrize(("beta_fast", "beta_slow"), [(64.0, 0.5), (2.0, 1.0), (32.0, 31.0), (1000.0, 20.0)])
def test_betas(truncate, beta_fast, beta_slow, agrees) -> None:
    betas = {"beta_fast": beta_fast, "beta_slow": beta_slow, "truncate": truncate}
    for length in LENGTHS:
        agrees(96, length, rope_theta=1e4, factor=4.0, **betas)


def borders(head_dim, length, beta_fast=32.0, beta_slow=1.0, rope_theta=1e4):
    """The pairs between which the ramp runs, before any rounding or clamping."""
    turns = (length / (2 * math.pi * beta) for beta in (beta_fast, beta_slow))
    return [head_dim * math.log(turn) / (2 * math.log(rope_theta)) for turn in turns]


CLAMPED = {
    "below_zero": ((64, 64), {}, lambda low, high: low < 0 < high),
    "all_below_zero": ((64, 64), {"beta_slow": 20.0}, lambda low, high: high < -1),
    "beyond_the_last_dim": ((64, 131072), {"rope_theta": 100.0}, lambda low, high: low < 63 < high),
    "all_beyond_the_last_dim": ((64, 131072), {"rope_theta": 10.0}, lambda low, high: low > 63),
    "no_width_at_zero": ((64, 64), {"beta_slow": 10.3}, lambda low, high: low < -1 < high < 0),
    "no_width_at_the_last_dim": ((2, 131072), {"rope_theta": 100.0}, lambda low, high: 1 < low < high),
    "no_width_between": ((64, 4096), {"beta_slow": 31.99}, lambda low, high: 0 < low < high < low + 1e-2),
}


@pytest.mark.parametrize("truncate", TRUNCATE)
@pytest.mark.parametrize("name", CLAMPED)
def test_ramps_that_reach_their_clamps(name, truncate, agrees) -> None:
    (head_dim, length), fields, reached = CLAMPED[name]
    assert reached(*borders(head_dim, length, **fields))
    agrees(head_dim, length, factor=8.0, truncate=truncate, **{"rope_theta": 1e4, **fields})


def scalar_frequency(pair, low, high, head_dim, theta, factor):
    share = min(max((pair - low) / (high - low), 0.0), 1.0)
    kept = theta ** (-2 * pair / head_dim)
    return share * kept / factor + (1 - share) * kept


@pytest.mark.parametrize(("head_dim", "length", "theta", "factor"), [(64, 64, 1e4, 4.0), (128, 131072, 5e5, 32.0)])
def test_frequencies_against_scalars(head_dim, length, theta, factor, geometry, assert_frequencies) -> None:
    low, high = borders(head_dim, length, rope_theta=theta)
    inside = (max(low, 0), min(high, head_dim - 1))
    expected = [scalar_frequency(pair, *inside, head_dim, theta, factor) for pair in range(head_dim // 2)]
    facts = geometry(head_dim=head_dim, trained_length=length)
    actual = YaRN(factor=factor, rope_theta=theta, truncate=False).resolve(facts).inv_freq(facts)
    assert_frequencies(actual, torch.tensor(expected, dtype=torch.float64), 1e-12)


@any_ramp
def test_anything_in_between(head_dim, length, fields, agrees) -> None:
    agrees(head_dim, length, **fields)


@pytest.mark.parametrize("factor", [1.0, 1.5, 40.0])
@pytest.mark.parametrize(
    "temperature",
    [
        {},
        {"attention_factor": 0.7},
        {"attention_factor": 1.3, "mscale": 2.0, "mscale_all_dim": 0.5},
        {"mscale": 1.0, "mscale_all_dim": 1.0},
        {"mscale": 0.707, "mscale_all_dim": 1.2},
        {"mscale": 0.707},
        {"mscale_all_dim": 0.707},
        {"mscale": 0.0, "mscale_all_dim": 1.0},
    ],
    ids=lambda fields: "-".join(f"{name}={value}" for name, value in fields.items()) or "default",
)
def test_temperature(factor, temperature, agrees) -> None:
    agrees(64, 4096, rope_theta=1e4, factor=factor, **temperature)


def test_the_temperature_is_on_cos_and_sin(geometry, assert_close) -> None:
    scheme = YaRN(factor=4.0).resolve(geometry())
    positions = torch.randint(0, 16384, (2, 7))
    cos, sin = scheme.build(geometry()).rotation(positions, torch.float64)
    expected = (0.1 * math.log(4) + 1) * torch.ones_like(cos)
    assert_close((cos**2 + sin**2).sqrt(), expected, 1e-12)


def test_fast_pairs_are_kept_and_slow_ones_interpolated(geometry) -> None:
    facts = geometry(head_dim=128)
    kept = RoPE().resolve(facts).inv_freq(facts)
    scheme = YaRN(factor=8.0, truncate=False).resolve(facts)
    ratio, turns = kept / scheme.inv_freq(facts), 4096 * kept / (2 * math.pi)
    assert (ratio[turns > 32] == 1).all()
    assert ((ratio[turns < 1] - 8).abs() <= 1e-12).all()
    between = ratio[(turns <= 32) & (turns >= 1)]
    assert ((between > 1) & (between < 8)).all()
    assert len(between) > 10


def test_the_scheme_is_filled_in_from_the_model(geometry) -> None:
    scheme = YaRN(factor=2.5).resolve(geometry(rope_theta=5e5, trained_length=100))
    resolved = {"rope_theta": 5e5, "partial_rotary_factor": 1.0, "original_max_position_embeddings": 100}
    assert scheme == YaRN(factor=2.5, **resolved)
    assert scheme.max_length(geometry()) == 250


@pytest.mark.parametrize(("fast", "slow"), [(1.0, 1.0), (1.0, 32.0), (1e-3, 1e-3), (32.0, 1e6)])
def test_betas_in_the_wrong_order_are_refused(fast, slow) -> None:
    with pytest.raises(SchemeError, match=r"beta_fast=.* must be larger than beta_slow="):
        YaRN(factor=2.0, beta_fast=fast, beta_slow=slow)
