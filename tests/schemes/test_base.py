"""The registry, schemes as dictionaries, and what every encoding inherits: precision above all."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hf_posswap
from hf_posswap import SchemeError
from hf_posswap.attention.rotary import rotate
from hf_posswap.schemes import BY_NAME, SCHEMES, LinearRoPE, RoPE, YaRN
from hf_posswap.schemes.base import (
    DistanceBias,
    InputEncoding,
    NoInput,
    NoRotation,
    RotaryEncoding,
    float64_angles,
    make_scheme,
    scheme_from_dict,
)

Cast = Callable[[nn.Module], nn.Module]


class Square(DistanceBias):
    """A bias that tells heads, directions and distances apart."""

    def bias(self, distances: Tensor, heads: Tensor) -> Tensor:
        return (distances * distances.abs() + 1000 * heads).to(self.exact_dtype)


def test_names_are_unique_and_what_schemes_lists() -> None:
    assert list(hf_posswap.schemes()) == [scheme.name for scheme in SCHEMES]
    assert len({scheme.name for scheme in SCHEMES}) == len(SCHEMES)
    assert all(scheme.name == scheme.name.lower() and scheme.source and scheme.__doc__ for scheme in SCHEMES)
    assert {scheme.kind for scheme in SCHEMES} <= {"input", "rotary", "bias", "score"}


def test_what_schemes_returns_is_a_copy() -> None:
    hf_posswap.schemes().clear()
    assert hf_posswap.schemes() == BY_NAME


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(SchemeError, match="'ropee'") as error:
        make_scheme("ropee", {}, BY_NAME)
    assert all(name in str(error.value) for name in BY_NAME)


def test_an_unknown_field_lists_the_fields() -> None:
    with pytest.raises(SchemeError, match="'beta_quick'") as error:
        make_scheme("yarn", {"beta_quick": 3, "factor": 4}, BY_NAME)
    assert all(declared.name in str(error.value) for declared in dataclasses.fields(YaRN))
    with pytest.raises(SchemeError, match="nope has no field 'factor'; its fields are: none"):
        make_scheme("nope", {"factor": 4}, BY_NAME)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(SchemeError, match="linear needs factor"):
        make_scheme("linear", {}, BY_NAME)
    assert make_scheme("linear", {"factor": 4}, BY_NAME) == LinearRoPE(factor=4.0)


@pytest.mark.parametrize("block", [None, "rope", [], 3, {}, {"rope_theta": 1e4}, {"name": 3}, {"name": None}])
def test_a_block_that_is_no_scheme_is_refused(block: object) -> None:
    with pytest.raises(SchemeError, match="mapping with a 'name'"):
        scheme_from_dict(block, BY_NAME)


def test_a_block_with_a_bad_field_is_refused() -> None:
    with pytest.raises(SchemeError, match="rope_theta"):
        scheme_from_dict({"name": "rope", "rope_theta": "10000"}, BY_NAME)
    with pytest.raises(SchemeError, match="its fields are"):
        scheme_from_dict({"name": "rope", "theta": 10000}, BY_NAME)


def test_defaults_fill_only_what_is_none() -> None:
    assert RoPE().with_defaults(rope_theta=7.0) == RoPE(rope_theta=7.0)
    assert RoPE(rope_theta=9.0).with_defaults(rope_theta=7.0) == RoPE(rope_theta=9.0)


def million_positions() -> Tensor:
    return 1_000_000 + torch.randint(-1000, 1000, (2, 23))


def scalar_angles(positions: Tensor, inv_freq: Tensor) -> Tensor:
    angle = [[[p * f for f in inv_freq.tolist()] * 2 for p in row] for row in positions.tolist()]
    return torch.tensor(angle, dtype=torch.float64)


def random_rotary(scaling: float) -> RotaryEncoding:
    return RotaryEncoding(torch.rand(16, dtype=torch.float64), scaling)


def test_cos_and_sin_at_a_million_whatever_the_cast(cast: Cast) -> None:
    encoding, positions = random_rotary(scaling=1.0), million_positions()
    angles = scalar_angles(positions, encoding.inv_freq)
    for actual, expected in zip(cast(encoding)(torch.empty(1), positions), (angles.cos(), angles.sin()), strict=True):
        assert actual.dtype == torch.float32
        assert ((actual - expected).abs() <= 2e-7).all()


@pytest.mark.parametrize(("dtype", "digits"), [(torch.bfloat16, 8), (torch.float16, 11)])
def test_cos_and_sin_are_rounded_once(dtype: torch.dtype, digits: int, cast: Cast) -> None:
    encoding, positions = random_rotary(scaling=1.25), million_positions()
    angles = scalar_angles(positions, encoding.inv_freq)
    exact = (angles.cos() * 1.25, angles.sin() * 1.25)
    for actual, expected in zip(cast(encoding)(torch.empty(1, dtype=dtype), positions), exact, strict=True):
        assert actual.dtype == dtype
        half_ulp = 2.0 ** (expected.abs().frexp().exponent - digits - 1).clamp(min=-25)
        # torch narrows float64 by way of float32, which can add 2^-24 of the value.
        assert ((actual.double() - expected).abs() <= half_ulp + expected.abs() * 2.0**-24).all()


def test_float64_models_keep_float64() -> None:
    encoding, positions = random_rotary(scaling=0.75).double(), torch.randint(0, 100, (2, 9))
    angles = scalar_angles(positions, encoding.inv_freq)
    cos, sin = encoding(torch.empty(1, dtype=torch.float64), positions)
    assert ((cos - 0.75 * angles.cos()).abs() <= 1e-12).all()
    assert ((sin - 0.75 * angles.sin()).abs() <= 1e-12).all()


def test_constants_are_built_on_the_cpu_under_a_meta_device() -> None:
    frequencies = torch.rand(4, dtype=torch.float64)
    with torch.device("meta"):
        encoding = RotaryEncoding(frequencies, 1.0)
    assert float64_angles(torch.arange(3)[None], encoding.inv_freq).device.type == "cpu"
    assert encoding.anchor.is_meta


def test_the_anchor_is_not_saved() -> None:
    assert InputEncoding().state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_distance_bias_is_the_pointwise_function_of_every_pair(dtype: torch.dtype) -> None:
    encoding = Square(num_heads=3).to(dtype)
    queries, keys = torch.randint(0, 50, (2, 5)), torch.randint(0, 50, (2, 7))
    bias = encoding(encoding.tables(queries), encoding.tables(keys))
    assert bias.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, head, i, j in torch.cartesian_prod(*map(torch.arange, (2, 3, 5, 7))).tolist():
        distance = int(queries[row, i] - keys[row, j])
        assert bias[row, head, i, j] == math.copysign(distance**2, distance) + 1000 * head


def test_positions_shared_by_all_rows_broadcast() -> None:
    encoding, queries, keys = Square(num_heads=2), torch.randint(0, 50, (1, 5)), torch.randint(0, 50, (3, 7))
    assert torch.equal(encoding((queries,), (keys,)), encoding((queries.expand(3, -1),), (keys,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rotation_and_no_input_change_nothing(dtype: torch.dtype) -> None:
    x, positions = torch.randn(2, 3, 5, 8).to(dtype), torch.randint(0, 50, (2, 5))
    cos, sin = NoRotation(8)(x, positions)
    assert cos.shape == sin.shape == (1, 5, 8)
    assert torch.equal(rotate(x, cos, sin), x)
    added = x + NoInput()(positions)
    assert torch.equal(added, x)
    assert added.dtype == dtype
