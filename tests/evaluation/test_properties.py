"""`properties` against what is known of each scheme, and on schemes that nobody has registered."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import hf_posswap as hp
from hf_posswap.evaluation import Properties, properties
from hf_posswap.schemes import SCHEMES, Geometry, Scheme
from hf_posswap.schemes.base import DistanceBias, InputEncoding, RotaryEncoding

GEOMETRY = Geometry(
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=32,
    hidden_size=32,
    num_hidden_layers=4,
    trained_length=256,
    causal=True,
)
ENCODER = replace(GEOMETRY, causal=False)
NAMES = (
    "unique positions",
    "relative distance only",
    "bounded",
    "long-term decay, equal vectors",
    "long-term decay, any vectors",
    "extensible",
    "deterministic",
)
LONG = [1.0 + i / 4 for i in range(16)]
ROTATION = (True, True, True, True, False, True, True)
BY_LENGTH = (True, False, True, True, False, True, True)

DECODER: dict[str, tuple[Scheme, tuple[bool | None, ...]]] = {
    "nope": (hp.NoPE(), (False, None, None, None, None, True, True)),
    "learned": (hp.Learned(), (True, False, True, False, None, False, True)),
    "sinusoidal": (hp.Sinusoidal(), (True, True, True, True, None, True, True)),
    "rope": (hp.RoPE(), ROTATION),
    "linear": (hp.LinearRoPE(factor=4.0), ROTATION),
    "ntk": (hp.NTKRoPE(factor=4.0), ROTATION),
    "dynamic": (hp.DynamicNTKRoPE(factor=4.0), BY_LENGTH),
    "yarn": (hp.YaRN(factor=4.0), ROTATION),
    "ntk_by_parts": (hp.NTKByPartsRoPE(factor=4.0), ROTATION),
    "longrope": (hp.LongRoPE(factor=4.0, long_factor=LONG), BY_LENGTH),
    "llama3": (hp.Llama3RoPE(factor=4.0), ROTATION),
    "proportional": (hp.ProportionalRoPE(), ROTATION),
    "xpos": (hp.XPos(scale_base=64.0), (True, True, True, True, True, True, True)),
    "alibi": (hp.ALiBi(), (True, True, False, True, True, True, True)),
    "t5": (hp.T5Bias(), (False, True, True, False, False, True, True)),
    "layered": (hp.Layered(hp.RoPE(), hp.NoPE()), ROTATION),
    "log_scaled": (hp.LogScaled(hp.RoPE()), (True, False, False, True, False, True, True)),
}


def holds(found: Properties) -> tuple[bool | None, ...]:
    assert tuple(each.name for each in found.properties) == NAMES
    assert all(each.measured for each in found.properties)
    return tuple(each.holds for each in found.properties)


def measured(found: Properties, name: str) -> str:
    return found.properties[NAMES.index(name)].measured


def test_every_scheme_has_its_truth_here() -> None:
    assert DECODER.keys() == {cls.name for cls in SCHEMES}


@pytest.mark.parametrize("name", DECODER)
def test_decoder(name) -> None:
    scheme, truth = DECODER[name]
    assert holds(properties(scheme, GEOMETRY)) == truth


@pytest.mark.parametrize("name", DECODER)
def test_shift_invariance_is_what_the_scheme_states(name) -> None:
    scheme = DECODER[name][0]
    found = holds(properties(scheme, GEOMETRY))[1]
    if scheme.kind != "input":
        assert found == scheme.relative


@pytest.mark.parametrize(
    ("scheme", "truth"),
    [
        # The same penalty on both sides: the key before the query and the one after it look alike.
        (hp.ALiBi(), (False, True, False, True, True, True, True)),
        (hp.RoPE(), ROTATION),
        (hp.T5Bias(), (False, True, True, False, False, True, True)),
        # Of the number of tokens of the row, and not of the position.
        (hp.LogScaled(hp.ALiBi()), (False, True, False, True, True, True, True)),
    ],
    ids=lambda value: value.name if isinstance(value, Scheme) else "",
)
def test_encoder(scheme, truth) -> None:
    assert holds(properties(scheme, ENCODER)) == truth


@pytest.mark.parametrize(("mode", "relative"), [("static", True), ("segment", False), ("call", False)])
def test_frequencies_by_length(mode, relative) -> None:
    assert holds(properties(hp.YaRN(factor=8.0, mode=mode), GEOMETRY))[1] is relative


def test_the_numbers_behind_the_answers() -> None:
    alibi = properties("alibi", GEOMETRY)
    # The flattest head has 2^-8, the steepest 2^-2: 0.25 * 1023 and 256 times as many tokens.
    assert measured(alibi, "bounded") == "largest 256 in 1,024 tokens, 65,536 in 262,144"
    mean = sum(2.0**-k for k in (2, 4, 6, 8)) / 4
    assert measured(alibi, "long-term decay, equal vectors").startswith(f"-{mean:.3g} at distance 1, ")
    t5 = properties("t5", GEOMETRY)
    assert measured(t5, "unique positions").endswith(": 0 of the mean difference")
    assert t5.drawn
    assert not alibi.drawn
    learned = properties(hp.Learned(max_position_embeddings=100), GEOMETRY)
    assert learned.length == 100
    assert measured(learned, "extensible") == "Position 1599 is beyond the learned table of 100"
    assert measured(learned, "deterministic").endswith("; 3,200 learned parameters")
    assert measured(properties("nope", GEOMETRY), "unique positions") == "nothing is encoded"


def test_one_layer_that_tells_positions_apart_is_enough() -> None:
    found = properties(hp.Layered(hp.RoPE(), hp.T5Bias(), pattern="RT"), GEOMETRY)
    assert holds(found) == (True, True, True, False, False, True, True)
    assert "rope (inner product): " in measured(found, "bounded")
    assert "; t5 (bias): " in measured(found, "bounded")


# Schemes that nobody has registered


def unregistered(kind_of: Any, built: Any) -> Scheme:
    @dataclass(frozen=True, kw_only=True)
    class Unknown(Scheme):
        name: ClassVar[str] = "unknown"
        kind: ClassVar = kind_of
        source: ClassVar[str] = "-"

        def build(self, geometry: Geometry) -> nn.Module:
            return built()

    return Unknown()


class Index(InputEncoding):
    """The first idea of a beginner."""

    def forward(self, position_ids):
        return position_ids[..., None].to(self.anchor.dtype).expand(-1, -1, 32)


class Chance(InputEncoding):
    """Other numbers in every build."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.randn(2**20, 4, dtype=torch.float64)

    def forward(self, position_ids):
        return self.weight[position_ids]


class OneTurn(RotaryEncoding):
    """All pairs turn once in 64 tokens, and so do not tell the first from the 65th."""

    def __init__(self) -> None:
        super().__init__(torch.full((16,), 2 * torch.pi / 64, dtype=torch.float64), 1.0)


class Favour(DistanceBias):
    """The farther the better, up to 100."""

    def __init__(self) -> None:
        super().__init__(4)

    def bias(self, distances, heads):
        return distances.clamp(max=100) / 100 + 0.0 * heads


@pytest.mark.parametrize(
    ("scheme", "truth"),
    [
        (unregistered("input", Index), (True, False, False, False, None, True, True)),
        (unregistered("input", Chance), (True, False, True, False, None, False, False)),
        (unregistered("rotary", OneTurn), (False, True, True, False, False, True, True)),
        (unregistered("bias", Favour), (False, True, True, False, False, True, True)),
    ],
    ids=["index", "chance", "one turn", "favour"],
)
def test_unregistered(scheme, truth) -> None:
    # `Chance` ends at 2^20 positions.
    length = 2**17 if truth[5] is False else 1024
    geometry = replace(GEOMETRY, trained_length=length // 4)
    assert holds(properties(scheme, geometry, length=length)) == truth


def test_the_random_state_and_json() -> None:
    before = torch.get_rng_state()
    found = properties("t5", GEOMETRY)
    assert torch.equal(torch.get_rng_state(), before)
    assert properties("t5", GEOMETRY) == found == Properties.from_json(found.to_json())


def test_refusals() -> None:
    with pytest.raises(hp.SchemeError, match="beyond the learned table of 256"):
        properties("learned", GEOMETRY, length=257)
    with pytest.raises(hp.SchemeError, match="length from 16 to 16777216, not 0"):
        properties("rope", GEOMETRY, length=0)
    with pytest.raises(hp.SchemeError, match="xpos does not work on an encoder"):
        properties("xpos", ENCODER)
