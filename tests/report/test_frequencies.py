"""What the rotary pictures show, against transformers' RoPE functions and scalar loops."""

import math
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import hf_posswap as hp
from hf_posswap.report import plot_scheme

FLOAT32 = 1e-5
"""transformers computes in float32, and its ramps end where the factor has divided what they are added to."""
DIM, LENGTH = 16, 128


def stock(rope_type: str, length: int = LENGTH, config_length: int = LENGTH, **said: Any) -> list[float]:
    """transformers' inverse frequencies."""
    said = {"rope_theta": 1e4, **said, "rope_type": rope_type}
    shape = {"hidden_size": 2 * DIM, "num_attention_heads": 2, "head_dim": DIM}
    config = LlamaConfig(max_position_embeddings=config_length, rope_parameters=said, **shape)
    return ROPE_INIT_FUNCTIONS[rope_type](config, seq_len=length)[0].tolist()


def rope(theta: float, dim: int = DIM) -> list[float]:
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


def example_factors(factor: float) -> list[float]:
    return [1 + (factor - 1) * (i / (DIM // 2 - 1)) ** 2 for i in range(DIM // 2)]


def expected_variants(theta: float, factor: float) -> dict[str, list[float]]:
    original = {"original_max_position_embeddings": LENGTH}
    common = {"rope_theta": theta, "factor": factor}
    extended = {"config_length": round(factor * LENGTH), **common, **original}
    series = {"long_factor": example_factors(factor), "short_factor": example_factors(factor)}
    yarn = stock("yarn", **extended)
    return {
        "linear": stock("linear", **common),
        "ntk": rope(theta * factor ** (DIM / (DIM - 2))),
        "dynamic": stock("dynamic", length=round(factor * LENGTH), **common),
        "yarn": yarn,
        "ntk_by_parts": yarn,
        "longrope, example factors": stock("longrope", **extended, **series),
        "llama3": stock("llama3", **extended, low_freq_factor=1.0, high_freq_factor=4.0),
        "proportional (6 of 8 pairs turn)": stock("proportional", rope_theta=theta, partial_rotary_factor=0.75)[:6],
        "rope, base 10,000": rope(1e4),
        "rope, base 500,000": rope(5e5),
    }


@pytest.mark.parametrize(("theta", "factor"), [(1e4, 4.0), (25e3, 8.0)])
def test_every_variant_beside_rope(theta, factor, geometry, lines) -> None:
    facts = geometry(rope_theta=theta, trained_length=LENGTH)
    figure = plot_scheme(hp.RoPE(), facts, max_length=round(factor * LENGTH))
    expected = {**expected_variants(theta, factor), "rope": rope(theta)}
    if theta == 1e4:
        del expected["rope, base 10,000"]  # the one that is drawn
    frequencies, wavelengths, ratios = (lines(axes) for axes in figure.axes[:3])
    wavelengths.pop("trained length, 128: one turn")
    assert frequencies.keys() == wavelengths.keys() == ratios.keys() == expected.keys()
    for name, stated in expected.items():
        assert list(frequencies[name][1]) == pytest.approx(stated, rel=FLOAT32), name
        assert list(wavelengths[name][1]) == pytest.approx([2 * math.pi / w for w in stated], rel=FLOAT32), name
        slower = [kept / w for kept, w in zip(rope(theta), stated, strict=False)]
        assert list(ratios[name][1]) == pytest.approx(slower, rel=FLOAT32), name


def test_the_asked_for_scheme_takes_its_own_line_and_stands_out(geometry, lines) -> None:
    scheme = hp.YaRN(factor=8.0, beta_fast=8.0, truncate=False, rope_theta=5e5)
    axes = plot_scheme(scheme, geometry()).axes[0]
    said = {"original_max_position_embeddings": LENGTH, "beta_fast": 8.0, "truncate": False, "rope_theta": 5e5}
    expected = stock("yarn", config_length=8 * LENGTH, factor=8.0, **said)
    assert list(lines(axes)["yarn"][1]) == pytest.approx(expected, rel=FLOAT32)
    assert list(lines(axes)["linear"][1]) == pytest.approx([w / 8 for w in rope(5e5)])
    widths = {line.get_label(): line.get_linewidth() for line in axes.get_lines()}
    assert [name for name, width in widths.items() if width > 2] == ["yarn"]


def test_the_trained_length_is_marked(geometry, lines) -> None:
    figure = plot_scheme(hp.RoPE(), geometry(trained_length=100))
    wavelengths, turns = figure.axes[1], figure.axes[6]
    assert list(lines(wavelengths)["trained length, 100: one turn"][1]) == [100, 100]
    # Where a wavelength is drawn, the other axis says how many of them the trained length has.
    for wavelength, count in ((100, 1.0), (10, 10.0), (400, 0.25)):
        height = wavelengths.transData.transform((0, wavelength))[1]
        assert turns.transData.inverted().transform((0, height))[1] == pytest.approx(count)
    assert turns.get_ylabel() == "full turns in the trained length"
    turning = sum(2 * math.pi / w <= 100 for w in rope(1e4))
    assert f": {turning} of 8 pairs make a full turn" in wavelengths.get_title(loc="left")
    for axes in figure.axes[4:6]:
        assert list(lines(axes)["trained length"][0]) == [100, 100]


def test_a_part_of_the_head(geometry, lines) -> None:
    figure = plot_scheme(hp.RoPE(partial_rotary_factor=0.5), geometry())
    frequencies = lines(figure.axes[0])
    assert list(frequencies["rope (4 of 8 pairs turn)"][1]) == pytest.approx(rope(1e4, 8))
    assert list(frequencies["linear (4 of 8 pairs turn)"][1]) == pytest.approx([w / 4 for w in rope(1e4, 8)])
    distances, values = lines(figure.axes[4])["rope (4 of 8 pairs turn)"]
    expected = [(4 + sum(math.cos(r * w) for w in rope(1e4, 8))) / 8 for r in distances]
    assert values == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mode", ["segment", "call"])
def test_dynamic_at_every_length(mode, geometry, lines) -> None:
    figure = plot_scheme(hp.DynamicNTKRoPE(factor=2.0, mode=mode), geometry(), max_length=4 * LENGTH)
    names = {
        "segment": ["dynamic, from 0", "dynamic, from 128", "dynamic, from 256"],
        "call": ["dynamic, call of 128", "dynamic, call of 256", "dynamic, call of 512"],
    }[mode]
    for name, length in zip(names, (LENGTH, 2 * LENGTH, 4 * LENGTH), strict=True):
        expected = stock("dynamic", length=length, factor=2.0)
        assert list(lines(figure.axes[0])[name][1]) == pytest.approx(expected, rel=FLOAT32)
        distances, values = lines(figure.axes[4])[name]
        assert max(distances) == length - 1
        # float32 frequencies are off by 1e-7 of angles as large as the length.
        assert values == pytest.approx([sum(math.cos(r * w) for w in expected) / 8 for r in distances], abs=1e-4)


def test_longrope_has_its_short_and_its_long_factors(geometry, lines) -> None:
    long, short = [1.0 + i for i in range(8)], [1.0 + i / 10 for i in range(8)]
    axes = plot_scheme(hp.LongRoPE(factor=4.0, long_factor=long, short_factor=short), geometry()).axes[0]
    said = {"factor": 4.0, "original_max_position_embeddings": LENGTH, "long_factor": long, "short_factor": short}
    for name, length in (("longrope, from 0", LENGTH), ("longrope, from 128", LENGTH + 1)):
        expected = stock("longrope", length=length, config_length=4 * LENGTH, **said)
        assert list(lines(axes)[name][1]) == pytest.approx(expected, rel=FLOAT32)
    assert "longrope, example factors" not in lines(axes)


def test_more_segments_than_can_be_told_apart(geometry, lines) -> None:
    axes = plot_scheme(hp.DynamicNTKRoPE(factor=2.0), geometry(), max_length=2**20).axes[0]
    drawn = [name for name in lines(axes) if name.startswith("dynamic")]
    assert len(drawn) == 6
    assert (drawn[0], drawn[-1]) == ("dynamic, from 0", "dynamic, from 524,288")


# Inner products by distance


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_equal_vectors(pairing, geometry, lines) -> None:
    theta = float(torch.randint(100, 100_000, ()))
    axes = plot_scheme(hp.RoPE(rope_theta=theta), geometry(pairing=pairing)).axes[4]
    distances, values = lines(axes)["rope"]
    assert distances[:60] == list(range(1, 61))
    assert distances[-1] == 4 * LENGTH
    expected = [sum(math.cos(r * w) for w in rope(theta)) / 8 for r in distances]
    assert values == pytest.approx(expected, abs=1e-12)


def test_equal_vectors_have_the_temperature(geometry, lines) -> None:
    axes = plot_scheme(hp.YaRN(factor=4.0), geometry()).axes[4]
    config = {"config_length": 4 * LENGTH, "original_max_position_embeddings": LENGTH, "factor": 4.0}
    frequencies, squared = stock("yarn", **config), (0.1 * math.log(4) + 1) ** 2
    distances, values = lines(axes)["yarn"]
    expected = [squared * sum(math.cos(r * w) for w in frequencies) / 8 for r in distances]
    assert values == pytest.approx(expected, abs=1e-3)
    plain = lines(axes)["rope, base 10,000"][1]
    assert plain == pytest.approx([sum(math.cos(r * w) for w in rope(1e4)) / 8 for r in distances], abs=1e-12)


def test_xpos_decays(geometry, lines) -> None:
    axes = plot_scheme(hp.XPos(scale_base=64.0, gamma=0.3), geometry()).axes[0]
    distances, values = lines(axes)["xpos"]
    zeta = [(2 * i / DIM + 0.3) / 1.3 for i in range(DIM // 2)]
    expected = [
        sum(z ** (r / 64) * math.cos(r * w) for z, w in zip(zeta, rope(1e4), strict=True)) / 8 for r in distances
    ]
    assert values == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_random_vectors_are_shown_as_they_are(pairing, geometry, lines) -> None:
    axes = plot_scheme(hp.RoPE(), geometry(pairing=pairing)).axes[5]
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(96, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    first, second = (slice(0, 8), slice(8, 16)) if pairing == "half" else (slice(0, 16, 2), slice(1, 16, 2))
    # As complex numbers, Su et al. equation 12.
    product = torch.complex(query[:, first], query[:, second]) * torch.complex(key[:, first], key[:, second]).conj()
    distances, median = lines(axes)["median"]
    turns = torch.exp(1j * torch.tensor(distances)[:, None] * torch.tensor(rope(1e4), dtype=torch.float64))
    scores = torch.einsum("np,rp->nr", product, turns).real / DIM**0.5
    assert list(median) == pytest.approx(scores.quantile(0.5, dim=0).tolist(), abs=1e-9)
    drawn = [line for line in axes.get_lines() if line.get_linewidth() < 0.65]
    for line, row in zip(drawn, scores[:3], strict=True):
        assert list(line.get_ydata()) == pytest.approx(row.tolist(), abs=1e-9)
    band = torch.from_numpy(axes.collections[0].get_paths()[0].vertices)
    assert float(band[:, 1].max()) == pytest.approx(float(scores.quantile(0.95, dim=0).max()), abs=1e-9)
    assert float(band[:, 1].min()) == pytest.approx(float(scores.quantile(0.05, dim=0).min()), abs=1e-9)
    # What the picture is there to say: it neither decays nor favours near keys.
    near, far = scores[:, :50].std(), scores[:, -50:].std()
    assert float(far) > 0.8 * float(near)


def test_random_vectors_of_a_score_encoding(geometry, lines) -> None:
    axes = plot_scheme(hp.XPos(), geometry()).axes[1]
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(24, 4, 1, DIM, generator=generator, dtype=torch.float64) for _ in range(2))
    query, key = query.reshape(96, DIM), key.reshape(96, DIM)
    product = torch.complex(query[:, :8], query[:, 8:]) * torch.complex(key[:, :8], key[:, 8:]).conj()
    distances, median = lines(axes)["median"]
    at = torch.tensor(distances, dtype=torch.float64)[:, None]
    zeta = (torch.arange(0, DIM, 2, dtype=torch.float64) / DIM + 0.4) / 1.4
    turns = zeta ** (at / 512) * torch.exp(1j * at * torch.tensor(rope(1e4), dtype=torch.float64))
    scores = torch.einsum("np,rp->nr", product, turns).real / DIM**0.5
    assert list(median) == pytest.approx(scores.quantile(0.5, dim=0).tolist(), abs=1e-9)
