"""Llama 3's rescaling against transformers and against Meta's reference code written out pair by pair."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posswap import Llama3RoPE, RoPE, SchemeError


def scaled(frequency, factor, low, high, original):
    """`apply_scaling` of Meta's reference code for one frequency."""
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


@pytest.fixture(scope="session")
def agrees(geometry, llama_config, assert_frequencies):
    """Checks one set of fields both ways, and returns how many pairs are kept, between, and divided."""

    def check(head_dim, original, theta, factor, low, high):
        facts = geometry(head_dim=head_dim, trained_length=original)
        fields = {"rope_theta": theta, "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
        scheme = Llama3RoPE(**fields).resolve(facts)
        native = {"rope_type": "llama3", **fields, "original_max_position_embeddings": original}
        assert scheme.rope_parameters(facts) == native
        assert Llama3RoPE.from_rope_parameters(native).resolve(facts) == scheme
        expected, scaling = ROPE_INIT_FUNCTIONS["llama3"](llama_config(head_dim, round(factor * original), native))
        # float32 turns are good to a few 1e-7, which a narrow band and a large factor multiply.
        steep = 1 + factor * high / (high - low)
        assert_frequencies(scheme.inv_freq(facts), expected, 4e-6 * steep)
        assert scheme.scaling(facts) == scaling == 1.0
        kept = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        scalars = [scaled(frequency, factor, low, high, original) for frequency in kept]
        assert_frequencies(scheme.inv_freq(facts), torch.tensor(scalars, dtype=torch.float64), 1e-13 * steep)
        turns = [original * frequency / (2 * math.pi) for frequency in kept]
        return sum(t > high for t in turns), sum(low <= t <= high for t in turns), sum(t < low for t in turns)

    return check


def test_llama_3_1(agrees) -> None:
    assert agrees(128, 8192, 5e5, 8.0, 1.0, 4.0) == (29, 6, 29)


def test_llama_3_2(agrees) -> None:
    assert agrees(64, 8192, 5e5, 32.0, 1.0, 4.0)[1] > 1


def test_an_empty_band(agrees) -> None:
    # Turns fall by a factor of 3.2 from pair to pair; none lies in so narrow a band.
    kept, between, divided = agrees(16, 4096, 1e4, 8.0, 3.0, 3.1)
    assert (between, kept > 0, divided > 0) == (0, True, True)


def test_a_band_that_holds_every_pair(agrees) -> None:
    assert agrees(64, 4096, 1e4, 8.0, 1e-3, 1e6) == (0, 32, 0)


@pytest.mark.parametrize(("low", "high", "counts"), [(1e-3, 2e-3, (32, 0, 0)), (1e5, 1e6, (0, 0, 32))])
def test_a_band_beside_all_pairs(low, high, counts, agrees) -> None:
    assert agrees(64, 4096, 1e4, 8.0, low, high) == counts


def test_factor_one_is_rope(geometry, assert_frequencies) -> None:
    facts = geometry(rope_theta=5e5)
    kept = RoPE().resolve(facts).inv_freq(facts)
    assert_frequencies(Llama3RoPE(factor=1.0).resolve(facts).inv_freq(facts), kept, 1e-15)


@given(
    half_dim=st.integers(1, 64),
    original=st.integers(1, 2**17),
    theta=st.floats(2.0, 1e7),
    factor=st.floats(1.0, 64.0),
    low=st.floats(1e-3, 100.0),
    ratio=st.floats(1.01, 100.0),
)
@settings(deadline=None, max_examples=80, derandomize=True)
def test_anything_in_between(half_dim, original, theta, factor, low, ratio, agrees) -> None:
    # One rounding decides whether a pair on the border of the band is in it; both sides of it are then the same.
    assume(low * ratio > low)
    assert sum(agrees(2 * half_dim, original, theta, factor, low, low * ratio)) == half_dim


@pytest.mark.parametrize(("low", "high"), [(4.0, 4.0), (4.0, 1.0), (1e6, 1e-3)])
def test_factors_in_the_wrong_order_are_refused(low, high) -> None:
    with pytest.raises(SchemeError, match=r"llama3: high_freq_factor=.* must be larger than low_freq_factor="):
        Llama3RoPE(low_freq_factor=low, high_freq_factor=high)


def test_the_cut_is_counted_in_the_models_own_length(geometry) -> None:
    scheme = Llama3RoPE().resolve(geometry(trained_length=8192))
    assert scheme.original == 8192
    assert scheme.max_length(geometry()) == 65536
