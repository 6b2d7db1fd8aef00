"""`decay` against scalar loops from the papers, for every kind of encoding."""

import math
from dataclasses import replace

import pytest
import torch

import hf_posswap as hp
from hf_posswap.evaluation import Decay, decay
from hf_posswap.evaluation.results import read_result
from hf_posswap.schemes import Geometry

DIM, LENGTH, HEADS = 16, 64, 4
GEOMETRY = Geometry(
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    head_dim=DIM,
    hidden_size=8,
    num_hidden_layers=8,
    trained_length=LENGTH,
    causal=True,
)
ENCODER = replace(GEOMETRY, causal=False)


def frequencies(theta: float = 1e4) -> list[float]:
    return [theta ** (-2 * i / DIM) for i in range(DIM // 2)]


def turned(waves: list[float], distance: int) -> float:
    """The inner product of ones with ones, a distance apart, over head_dim."""
    return sum(math.cos(distance * w) for w in waves) / len(waves)


@pytest.mark.parametrize("geometry", [GEOMETRY, ENCODER], ids=["decoder", "encoder"])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope(geometry, pairing) -> None:
    theta = float(torch.randint(100, 100_000, ()))
    found = decay(hp.RoPE(rope_theta=theta), replace(geometry, pairing=pairing))
    assert (found.what, found.labels, len(found.heads)) == ("inner product", ("rope",), 1)
    first = 0 if geometry.causal else 1 - 4 * LENGTH
    assert found.distances == tuple(range(first, 4 * LENGTH))
    expected = [turned(frequencies(theta), r) for r in found.distances]
    assert found.heads[0] == pytest.approx(expected, abs=1e-12)


def test_the_temperature_counts() -> None:
    found = decay(hp.YaRN(factor=4.0), GEOMETRY)
    assert found.heads[0][0] == pytest.approx((0.1 * math.log(4) + 1) ** 2)


@pytest.mark.parametrize("mode", ["segment", "static", "call"])
def test_lengths_are_those_of_the_last_position(mode) -> None:
    # A factor of 4 at 4 times the length: base * (4 * 4 - 3)^(d/(d-2)), in every mode.
    found = decay(hp.DynamicNTKRoPE(factor=4.0, mode=mode), GEOMETRY)
    waves = frequencies(1e4 * 13 ** (DIM / (DIM - 2)))
    assert found.distances[-1] == 4 * LENGTH - 1
    assert found.heads[0] == pytest.approx([turned(waves, r) for r in found.distances], abs=1e-9)


def test_longrope_within_and_beyond_its_trained_length() -> None:
    long = [1.0 + i for i in range(8)]
    scheme = hp.LongRoPE(factor=2.0, long_factor=long, attention_factor=1.0)
    for length, divisors in ((LENGTH, [1.0] * 8), (2 * LENGTH, long)):
        found = decay(scheme, GEOMETRY, max_length=length)
        waves = [w / d for w, d in zip(frequencies(), divisors, strict=True)]
        assert found.distances == tuple(range(length))
        assert found.heads[0] == pytest.approx([turned(waves, r) for r in found.distances], abs=1e-9)


def test_xpos() -> None:
    found = decay(hp.XPos(scale_base=32.0, gamma=0.3), GEOMETRY)
    zeta = [(2 * i / DIM + 0.3) / 1.3 for i in range(DIM // 2)]
    pairs = list(zip(zeta, frequencies(), strict=True))
    expected = [sum(z ** (r / 32) * math.cos(r * w) for z, w in pairs) / 8 for r in found.distances]
    assert found.heads[0] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("geometry", [GEOMETRY, ENCODER], ids=["decoder", "encoder"])
def test_alibi(geometry) -> None:
    found = decay("alibi", geometry, max_length=40)
    assert (found.what, found.causal) == ("bias", geometry.causal)
    assert found.labels == tuple(f"alibi, head {h}" for h in (1, 2, 3, 4))
    assert found.distances == tuple(range(0 if geometry.causal else -39, 40))
    for h, row in enumerate(found.heads, start=1):
        assert row == tuple(-(2 ** (-8 * h / HEADS)) * abs(r) for r in found.distances)


def test_input_encodings_are_alike_by_distance() -> None:
    found = decay("sinusoidal", GEOMETRY, max_length=50)
    assert found.what == "similarity"
    waves = [1e4 ** (-2 * k / 8) for k in range(4)]
    assert found.heads[0] == pytest.approx([turned(waves, r) for r in range(50)], abs=1e-12)


def test_a_table_ends_and_is_not_shown_where_it_is_empty() -> None:
    assert decay(hp.Learned(init="normal"), GEOMETRY).distances == tuple(range(LENGTH))
    with pytest.raises(hp.SchemeError, match="beyond the learned table of 64"):
        decay(hp.Learned(init="normal"), GEOMETRY, max_length=LENGTH + 1)
    with pytest.raises(hp.SchemeError, match="is zero until a model or training fills it"):
        decay("learned", GEOMETRY)


def test_a_bias_that_is_learned_is_zero_at_the_start() -> None:
    found = decay("t5", GEOMETRY)
    assert (found.what, found.labels, {*found.heads[0]}) == ("bias", ("t5",), {0.0})


def test_nothing_is_a_flat_line() -> None:
    found = decay("nope", GEOMETRY)
    assert (found.what, found.labels, {*found.heads[0]}) == ("inner product", ("nope",), {1.0})


def test_layers_have_rows_of_their_own() -> None:
    found = decay(hp.Layered(hp.RoPE(), hp.NoPE(), pattern="RRRN"), GEOMETRY)
    assert found.labels == ("rope (6 of 8 layers)", "nope (2 of 8 layers)")
    assert found.heads[0] == decay("rope", GEOMETRY).heads[0]
    assert {*found.heads[1]} == {1.0}
    biased = decay(hp.Layered(hp.ALiBi(), hp.NoPE(), pattern="AN"), GEOMETRY)
    assert biased.labels[0] == "alibi (4 of 8 layers), head 1"
    assert {*biased.heads[-1]} == {0.0}
    with pytest.raises(hp.SchemeError, match="has bias and inner product: ask for the decay of each"):
        decay(hp.Layered(hp.RoPE(), hp.ALiBi(), pattern="RA"), GEOMETRY)


def test_a_factor_on_queries_counts() -> None:
    scheme = hp.LogScaled(hp.RoPE(), original_max_position_embeddings=50)
    scale = math.log(4 * LENGTH) / math.log(50)
    plain = decay("rope", GEOMETRY).heads[0]
    assert decay(scheme, GEOMETRY).heads[0] == pytest.approx([scale * value for value in plain])


def test_json_and_a_long_context() -> None:
    found = decay("xpos", GEOMETRY, max_length=131_072)
    assert len(found.distances) < 600
    assert {0, 1, 2, 131_071} <= {*found.distances}
    assert Decay.from_json(found.to_json()) == found == read_result(found.to_dict())


def test_refusals() -> None:
    with pytest.raises(hp.SchemeError, match="xpos does not work on an encoder"):
        decay("xpos", ENCODER)
    with pytest.raises(hp.SchemeError, match="max_length from 16 to 16777216, not 3"):
        decay("rope", GEOMETRY, max_length=3)
    with pytest.raises(hp.SchemeError, match="There is no scheme 'bogus'"):
        decay("bogus", GEOMETRY)
    with pytest.raises(hp.SchemeError, match="too large without a model"):
        decay("sinusoidal", replace(GEOMETRY, hidden_size=65536), max_length=4096)
