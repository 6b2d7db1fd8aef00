"""Every registered scheme is drawn, or refused with the reason; and so are schemes that are nowhere registered."""

import copy
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from hf_posswap import SchemeError
from hf_posswap.report import plot_scheme
from hf_posswap.schemes import SCHEMES, Scheme
from hf_posswap.schemes.base import BiasEncoding, Encoding, InputEncoding, RotaryEncoding, ScoreEncoding

REFUSED = {"nope": "adds no positions", "learned": "is zero until a model or training fills it.*init='normal'"}


def numbers_in(figure: Figure) -> list[float]:
    """Everything that is drawn, lines and images."""
    found: list[float] = []
    for axes in figure.axes:
        for line in axes.get_lines():
            found += np.asarray(line.get_ydata(), dtype=float).ravel().tolist()
        for image in axes.get_images():
            found += np.asarray(image.get_array(), dtype=float).ravel().tolist()
    return found


@pytest.mark.parametrize("cls", SCHEMES, ids=lambda cls: cls.name)
def test_drawn_or_refused(cls, geometry, make) -> None:
    if cls.name in REFUSED:
        with pytest.raises(SchemeError, match=REFUSED[cls.name]):
            plot_scheme(make(cls), geometry())
        return
    figure = plot_scheme(make(cls), geometry())
    drawn = numbers_in(figure)
    assert len(drawn) > 50
    assert all(map(math.isfinite, drawn))
    title = figure.get_suptitle()
    assert title.startswith(f"{cls.name}(")
    assert len({*drawn}) > 10


@pytest.mark.parametrize("cls", SCHEMES, ids=lambda cls: cls.name)
def test_words_stay_inside_and_apart(cls, geometry, make) -> None:
    if cls.name in REFUSED:
        return
    figure = plot_scheme(make(cls), geometry())
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, page = canvas.get_renderer(), figure.bbox
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    names = [t for axes in panels for t in (axes._left_title, axes.xaxis.label, axes.yaxis.label)]
    boxes = [t.get_window_extent(renderer) for t in [figure._suptitle, *names] if t.get_text()]
    boxes += [axes.get_legend().get_window_extent(renderer) for axes in figure.axes if axes.get_legend()]
    for i, box in enumerate(boxes):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 <= box.y0 < box.y1 <= page.y1
        assert not any(box.overlaps(other) for other in boxes[:i])


@pytest.mark.parametrize("cls", SCHEMES, ids=lambda cls: cls.name)
def test_an_encoder_gets_its_picture_or_the_reason(cls, geometry, make) -> None:
    scheme = make(cls)
    if cls.name in REFUSED or scheme.causal_only:
        with pytest.raises(SchemeError, match=scheme.causal_only or REFUSED[cls.name]):
            plot_scheme(scheme, geometry(causal=False))
    else:
        assert all(map(math.isfinite, numbers_in(plot_scheme(scheme, geometry(causal=False)))))


def test_by_name(geometry) -> None:
    assert plot_scheme("alibi").get_suptitle().startswith("alibi()")
    with pytest.raises(SchemeError, match="There is no scheme 'bogus'; there are nope"):
        plot_scheme("bogus")
    with pytest.raises(SchemeError, match="yarn needs factor"):
        plot_scheme("yarn")


@pytest.mark.parametrize(
    ("facts", "max_length", "says"),
    [
        ({}, 15, "max_length from 16 to 16777216, not 15"),
        ({}, 0, "max_length from 16"),
        ({}, 2**24 + 1, "not 16777217"),
        ({"trained_length": 1}, None, "trained_length from 16"),
        ({"num_attention_heads": 0}, None, "num_attention_heads from 1 to 256, not 0"),
        ({"head_dim": 100_000}, None, "head_dim from 2 to 512, not 100000"),
        ({"hidden_size": -1}, None, "hidden_size from 2"),
        ({"head_dim": 15}, None, "rope turns pairs of dimensions and needs an even head_dim, not 15"),
    ],
)
def test_sizes_are_refused(facts, max_length, says, geometry) -> None:
    with pytest.raises(SchemeError, match=says):
        plot_scheme("rope", geometry(**facts), max_length=max_length)


def test_a_table_that_would_fill_the_memory_is_refused(geometry, make) -> None:
    scheme = make({c.name: c for c in SCHEMES}["learned"], init="normal", max_position_embeddings=2**24)
    with pytest.raises(SchemeError, match="16777216 x 512 is too large without a model"):
        plot_scheme(scheme, geometry(hidden_size=512))


# Schemes that nobody has registered


def scheme_class(scheme_kind: str, built: type[nn.Module]) -> type[Scheme]:
    @dataclass(frozen=True, kw_only=True)
    class Unknown(Scheme):
        name: ClassVar[str] = "unknown"
        kind: ClassVar = scheme_kind
        source: ClassVar[str] = "-"

        def build(self, geometry):
            return built()

    return Unknown


class Ramp(InputEncoding):
    def forward(self, position_ids):
        return position_ids[..., None] * torch.arange(1, 7, dtype=self.anchor.dtype)


class Constant(RotaryEncoding):
    def __init__(self) -> None:
        super().__init__(torch.full((8,), 0.1, dtype=torch.float64), 1.0)


class Ratio(BiasEncoding):
    """Depends on both positions, not on distance alone."""

    def forward(self, query_tables, key_tables):
        query, key = query_tables[0][:, None, :, None], key_tables[0][:, None, None, :]
        return (-(query - key) / query.clamp(min=1)).to(self.exact_dtype).expand(-1, 4, -1, -1)


class Flat(BiasEncoding):
    def forward(self, query_tables, key_tables):
        return torch.zeros(1, 4, query_tables[0].shape[1], key_tables[0].shape[1])


class LearnedSlope(BiasEncoding):
    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(4))

    def forward(self, query_tables, key_tables):
        return self.slope[:, None, None] * (query_tables[0][:, None, :, None] - key_tables[0][:, None, None, :])


class Negated(ScoreEncoding):
    def forward(self, query, key, query_tables, key_tables, own):
        assert key_tables[0][0, own].equal(query_tables[0][0])
        distance = query_tables[0][:, None, :, None] - key_tables[0][:, None, None, :]
        return -distance * (query @ key.transpose(-1, -2))


def test_an_unknown_input_encoding(geometry) -> None:
    left, right = plot_scheme(scheme_class("input", Ramp)(), geometry(), max_length=20).axes[:2]
    expected = [[p * k for k in range(1, 7)] for p in range(20)]
    assert left.get_images()[0].get_array().tolist() == expected
    similarity = right.get_images()[0].get_array()
    assert np.allclose(similarity[1:, 1:], 1, atol=1e-12)
    assert (similarity[0] == 0).all()


def test_an_unknown_rotary_encoding(geometry, lines) -> None:
    figure = plot_scheme(scheme_class("rotary", Constant)(), geometry())
    assert lines(figure.axes[0])["unknown"][1] == [0.1] * 8
    distances, values = lines(figure.axes[4])["unknown"]
    assert values == pytest.approx([math.cos(0.1 * r) for r in distances], abs=1e-12)


def test_an_unknown_bias_of_both_positions(geometry) -> None:
    decoder, encoder = plot_scheme(scheme_class("bias", Ratio)(), geometry()).axes[:2]
    for axes, query in ((decoder, 127), (encoder, 127)):
        for line in axes.get_lines()[:4]:
            assert list(line.get_ydata()) == pytest.approx([-r / query for r in line.get_xdata()])
    assert min(encoder.get_lines()[0].get_xdata()) == -127


def test_an_unknown_bias_that_starts_at_zero_is_an_example_and_says_so(geometry) -> None:
    figure = plot_scheme(scheme_class("bias", LearnedSlope)(), geometry())
    assert "starts at zero: an example with parameters from N(0, 1)" in figure.get_suptitle().replace("\n", " ")
    slopes = torch.randn(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    for line, slope in zip(figure.axes[0].get_lines(), slopes, strict=True):
        assert list(line.get_ydata()) == pytest.approx([slope * r for r in line.get_xdata()])


def test_nothing_is_not_drawn_as_something(geometry) -> None:
    with pytest.raises(SchemeError, match="unknown adds nothing to the scores with these fields"):
        plot_scheme(scheme_class("bias", Flat)(), geometry())
    with pytest.raises(SchemeError, match="no picture for unknown, whose encoding is a Encoding"):
        plot_scheme(scheme_class("bias", Encoding)(), geometry())


def test_an_unknown_score_encoding(geometry, lines) -> None:
    left = plot_scheme(scheme_class("score", Negated)(), geometry()).axes[0]
    distances, values = lines(left)["unknown"]
    assert values == pytest.approx([-r for r in distances])
    assert distances[0] == 1
    assert distances[-1] == 512


def test_drawing_leaves_the_scheme_and_random_state_alone(geometry, make) -> None:
    state = torch.get_rng_state()
    for cls in SCHEMES:
        if cls.name in REFUSED:
            continue
        scheme = make(cls)
        before = copy.deepcopy(scheme)
        plot_scheme(scheme, geometry())
        assert scheme == before
    assert torch.equal(torch.get_rng_state(), state)
