"""Sinusoids against a scalar loop and what every textbook says of them."""

import math

import pytest
import torch

from hf_posswap import SchemeError, Sinusoidal


def scalar_table(positions, size, base=1e4, layout="interleaved", scale=1.0):
    rows = []
    for p in positions:
        angles = [p / base ** (2 * k / size) for k in range(size // 2)]
        pairs = [(scale * math.sin(a), scale * math.cos(a)) for a in angles]
        sines, cosines = zip(*pairs, strict=True)
        rows.append([x for pair in pairs for x in pair] if layout == "interleaved" else [*sines, *cosines])
    return torch.tensor(rows, dtype=torch.float64)


def encoding(geometry, size, **fields):
    return Sinusoidal(**fields).build(geometry(hidden_size=size))


def table(geometry, size, length, **fields):
    return encoding(geometry, size, **fields).double()(torch.arange(length)[None])[0]


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
@pytest.mark.parametrize(("size", "base", "scale"), [(2, 1e4, 1.0), (34, 1e4, 0.25), (64, 5e5, 3.0), (512, 2.0, 1.0)])
def test_float64_against_scalars(size, base, scale, layout, geometry, assert_close) -> None:
    fields = {"base": base, "layout": layout, "scale": scale}
    positions = torch.randint(0, 1000, (3, 11))
    actual = encoding(geometry, size, **fields).double()(positions)
    expected = scalar_table(positions.flatten().tolist(), size, **fields)
    assert_close(actual, expected.view(3, 11, size), 1e-12)


def test_textbook_rows(geometry) -> None:
    expected = [[0, 1, 0, 1], [0.84147, 0.54030, 0.01000, 0.99995], [0.90930, -0.41615, 0.02000, 0.99980]]
    actual = table(geometry, 4, 3)
    assert ((actual - torch.tensor(expected, dtype=torch.float64)).abs() <= 5.01e-6).all()


def test_every_row_has_the_same_norm(geometry, assert_close) -> None:
    assert_close(table(geometry, 8, 500).norm(dim=-1), 2 * torch.ones(500), 1e-12)


@pytest.mark.parametrize("shift", [1, 13, 400])
def test_one_rotation_moves_every_row(shift, geometry, assert_close) -> None:
    rows = table(geometry, 16, 600)
    blocks = []
    for k in range(8):
        angle = shift * 1e4 ** (-2 * k / 16)
        cos, sin = math.cos(angle), math.sin(angle)
        blocks.append(torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64))
    moved = rows[:-shift] @ torch.block_diag(*blocks).T
    assert_close(moved, rows[shift:], 1e-12)


def test_a_million_whatever_the_cast(cast, geometry) -> None:
    positions = 1_000_000 + torch.randint(-1000, 1000, (2, 9))
    actual = cast(encoding(geometry, 64))(positions)
    expected = scalar_table(positions.flatten().tolist(), 64).view(2, 9, 64)
    # Rounded once, by way of float32 as torch narrows float64; half precision has subnormals below 2^-14.
    half_ulp = torch.finfo(actual.dtype).eps / 2 * expected.abs() + 2.0**-24
    assert ((actual.double() - expected).abs() <= half_ulp).all()


def test_constants_keep_their_digits_through_a_cast(cast, geometry) -> None:
    positions = 1_000_000 + torch.randint(-1000, 1000, (2, 9))
    actual = cast(encoding(geometry, 64)).float()(positions)
    expected = scalar_table(positions.flatten().tolist(), 64).view(2, 9, 64)
    assert ((actual - expected).abs() <= 2e-7).all()


def test_a_checkpoint_gets_a_table_only_when_asked_to(geometry) -> None:
    module = encoding(geometry, 16)
    assert module.state_dict() == {}
    module.table_length = 40
    saved = module.state_dict()
    assert torch.equal(saved["weight"], module(torch.arange(40)[None])[0])
    saved["weight"] = torch.randn(40, 16)
    positions = torch.randint(0, 1000, (2, 9))
    before = module(positions)
    module.load_state_dict(saved)
    assert torch.equal(module(positions), before)


def test_an_odd_hidden_size_is_refused(geometry) -> None:
    with pytest.raises(SchemeError, match="even hidden size, not 33"):
        Sinusoidal().resolve(geometry(hidden_size=33))
    assert Sinusoidal().resolve(geometry(hidden_size=34)) == Sinusoidal()
