"""What the pictures of input and bias encodings and of compositions show, against transformers and scalar loops."""

import math

import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

import hf_posswap as hp
from hf_posswap.report import plot_scheme


def image(axes) -> np.ndarray:
    return np.asarray(axes.get_images()[0].get_array())


def sinusoid(position: int, dim: int, size: int, base: float, layout: str) -> float:
    pair, cosine = (dim // 2, dim % 2) if layout == "interleaved" else (dim % (size // 2), dim // (size // 2))
    angle = position * base ** (-2 * pair / size)
    return math.cos(angle) if cosine else math.sin(angle)


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_sinusoids(layout, geometry) -> None:
    base = float(torch.randint(100, 100_000, ()))
    left, right = plot_scheme(hp.Sinusoidal(layout=layout, base=base, scale=0.5), geometry(), max_length=40).axes[:2]
    expected = np.array([[sinusoid(p, k, 32, base, layout) / 2 for k in range(32)] for p in range(40)])
    assert np.abs(image(left) - expected).max() <= 1e-12
    # sin a sin b + cos a cos b = cos(a - b)
    waves = [base ** (-2 * k / 32) for k in range(16)]
    similarity = [[sum(math.cos((p - q) * w) for w in waves) / 16 for q in range(40)] for p in range(40)]
    assert np.abs(image(right) - np.array(similarity)).max() <= 1e-12


def test_similarity_by_distance_is_the_mean_of_all_pairs(geometry) -> None:
    drawn = plot_scheme(hp.Learned(init="normal", seed=3, max_position_embeddings=60), geometry()).axes[2]
    table = torch.randn(60, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float32).double()
    unit = table / table.norm(dim=1, keepdim=True)
    line = drawn.get_lines()[0]
    assert list(line.get_xdata()) == list(range(1, 60))
    expected = [sum(float(unit[p] @ unit[p + r]) for p in range(60 - r)) / (60 - r) for r in range(1, 60)]
    assert list(line.get_ydata()) == pytest.approx(expected, abs=1e-6)
    low, high = drawn.get_ylim()
    assert low <= min(expected)
    assert high >= 1


def test_similarity_shows_the_trained_length(geometry, lines) -> None:
    axes = plot_scheme("sinusoidal", geometry()).axes[2]
    assert list(lines(axes)["trained length"][0]) == [128, 128]
    assert axes.get_lines()[0].get_xdata()[-1] == 4 * 128 - 1
    wide = plot_scheme("sinusoidal", geometry(hidden_size=65536)).axes[2]
    assert wide.get_title(loc="left") == "Similarity by distance, in 256 positions"


@pytest.mark.parametrize(("size", "step"), [(256, 1), (512, 3), (768, 3), (1024, 5), (2048, 9)])
def test_wide_models_show_sines_and_cosines(size, step, geometry) -> None:
    left = plot_scheme("sinusoidal", geometry(hidden_size=size), max_length=30).axes[0]
    dims = range(0, size, step)
    expected = [[sinusoid(p, k, size, 1e4, "interleaved") for k in dims] for p in range(30)]
    assert np.abs(image(left) - np.array(expected)).max() <= 1e-12
    assert len(dims) <= 256
    assert left.get_images()[0].get_extent()[:2] == [-0.5, size - 0.5]
    assert left.get_xlabel() == ("dimension" if step == 1 else f"dimension (one in {step} is drawn)")


def test_a_learned_table_is_drawn_as_it_starts(geometry) -> None:
    figure = plot_scheme(hp.Learned(init="normal", seed=7), geometry(initializer_range=0.3))
    drawn = torch.randn(128, 32, generator=torch.Generator().manual_seed(7)) * 0.3
    assert np.abs(image(figure.axes[0]) - drawn.double().numpy()).max() <= 1e-7
    assert "learned, drawn as it starts" in figure.get_suptitle()


def test_no_position_beyond_a_table(geometry) -> None:
    scheme = hp.Learned(init="normal", max_position_embeddings=50)
    assert image(plot_scheme(scheme, geometry()).axes[0]).shape == (50, 32)
    with pytest.raises(hp.SchemeError, match="beyond the learned table of 50"):
        plot_scheme(scheme, geometry(), max_length=51)


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_alibi(heads, geometry) -> None:
    decoder, encoder = plot_scheme("alibi", geometry(num_attention_heads=heads)).axes[:2]
    stock = build_alibi_tensor(torch.ones(1, 128), heads, torch.float64).view(heads, 128)
    for axes, first in ((decoder, 0), (encoder, -127)):
        drawn = axes.get_lines()
        assert len(drawn) == heads
        for line, slopes in zip(drawn, stock, strict=True):
            distances = list(line.get_xdata())
            assert distances == list(range(first, 128))
            # BLOOM adds slope * key position, which softmax cannot tell from -slope * distance.
            expected = [-float(slopes[abs(r)]) for r in distances]
            assert list(line.get_ydata()) == pytest.approx(expected, rel=2e-6)


def test_long_biases_keep_zero_and_their_ends(geometry) -> None:
    decoder, encoder = plot_scheme("alibi", geometry(trained_length=10_000)).axes[:2]
    for axes, first in ((decoder, 0), (encoder, -9999)):
        distances = axes.get_lines()[0].get_xdata()
        assert {first, 0, 1, 2, 9999} <= {*distances}
        assert "(cut at -20)" in axes.get_ylabel()
        assert axes.get_ylim()[0] == -20


@pytest.mark.parametrize(("buckets", "far"), [(32, 128), (16, 100)])
def test_t5_buckets(buckets, far, geometry) -> None:
    figure = plot_scheme(hp.T5Bias(num_buckets=buckets, max_distance=far), geometry())
    for axes, both in zip(figure.axes, (False, True), strict=True):
        line = axes.get_lines()[0]
        distances = torch.tensor(line.get_xdata())
        assert distances.tolist() == list(range(1 - 2 * far if both else 0, 2 * far))
        # T5 counts from key to query.
        expected = T5Attention._relative_position_bucket(-distances, both, buckets, far)
        assert list(line.get_ydata()) == expected.tolist()


def test_t5_without_an_encoder_form_says_so(geometry) -> None:
    figure = plot_scheme(hp.T5Bias(num_buckets=5), geometry())
    assert len(figure.axes) == 1
    assert "there is no form for encoders" in figure.get_suptitle()


@pytest.mark.parametrize("causal", [True, False])
def test_the_scale_of_log_scaled_queries(causal, geometry) -> None:
    scheme = hp.LogScaled(hp.ALiBi(), original_max_position_embeddings=50)
    line = plot_scheme(scheme, geometry(causal=causal)).axes[0].get_lines()[0]
    read = [x + causal for x in line.get_xdata()]
    assert (min(read), max(read)) == (1, 512)
    expected = [max(1.0, math.log(tokens) / math.log(50)) for tokens in read]
    assert list(line.get_ydata()) == pytest.approx(expected, abs=1e-12)


def test_layers_show_their_members(geometry, lines) -> None:
    inner = hp.LogScaled(hp.RoPE(rope_theta=500.0))
    scheme = hp.Layered(hp.RoPE(), hp.NoPE(), hp.ALiBi(), inner, pattern="ABCDA")
    figure = plot_scheme(scheme, geometry())
    assert "pattern ABCDA over 8 layers: 3 rope, 2 nope, 2 alibi, 1 log_scaled" in figure.get_suptitle()
    rope, nope, alibi, scaled = figure.axes
    for axes, theta in ((rope, 1e4), (scaled, 500.0)):
        distances, values = lines(axes)["rope"]
        expected = [sum(math.cos(r * theta ** (-2 * i / 16)) for i in range(8)) / 8 for r in distances]
        assert values == pytest.approx(expected, abs=1e-12)
    assert [text.get_text() for text in nope.texts] == ["no positions"]
    assert len(alibi.get_lines()) == 4
    assert scaled.get_title(loc="left").startswith("log_scaled: rope")
