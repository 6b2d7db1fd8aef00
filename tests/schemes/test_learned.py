"""A learned table against torch's own embedding, and how it begins."""

import pytest
import torch
from torch import nn

from hf_posswap import Learned, SchemeError


def build(geometry, rows=20, **fields):
    return Learned(max_position_embeddings=rows, **fields).build(geometry(hidden_size=12, initializer_range=0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_and_gradient_are_those_of_an_embedding(dtype, geometry, assert_close) -> None:
    rows, positions = torch.randn(20, 12).to(dtype), torch.randint(0, 20, (2, 30))
    ours, stock = build(geometry), nn.Embedding.from_pretrained(rows.clone(), freeze=False)
    ours.take(rows)
    upstream = torch.randn(2, 30, 12).to(dtype)
    assert torch.equal(ours(positions), stock(positions))
    (ours(positions) * upstream).sum().backward()
    (stock(positions) * upstream).sum().backward()
    assert_close(ours.weight.grad, stock.weight.grad, 1e-6)
    assert ours.weight.grad.dtype == dtype


def test_what_is_taken_is_a_copy(geometry) -> None:
    rows = nn.Parameter(torch.randn(20, 12))
    kept, ours = rows.detach().clone(), build(geometry)
    ours.take(rows)
    ours.weight.data.add_(1)
    assert torch.equal(rows, kept)
    assert ours.weight.is_leaf
    assert ours.weight.requires_grad


@pytest.mark.parametrize("position", [20, 21, 5000])
def test_a_position_beyond_the_table_is_refused(position, geometry) -> None:
    positions = torch.randint(0, 20, (2, 9))
    positions[1, 3] = position
    with pytest.raises(SchemeError, match=rf"Position {position} is beyond .* of 20.*extend\(model, {position + 1}\)"):
        build(geometry)(positions)
    positions[1, 3] = 19
    assert build(geometry)(positions).shape == (2, 9, 12)
    assert build(geometry)(positions[:, :0]).shape == (2, 0, 12)


def test_normal_rows_come_from_the_seed_alone(geometry) -> None:
    before = torch.get_rng_state()
    drawn = [build(geometry, rows=500, init="normal", seed=seed).weight for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert abs(drawn[0].std() / 0.3 - 1) < 0.05
    assert abs(drawn[0].mean()) < 0.02


@pytest.mark.parametrize("init", ["original", "zeros"])
def test_other_rows_begin_at_zero(init, geometry) -> None:
    weight = build(geometry, init=init).weight
    assert weight.shape == (20, 12)
    assert (weight == 0).all()
    assert weight.requires_grad


@pytest.mark.parametrize("init", ["original", "zeros", "normal"])
def test_on_the_meta_device_nothing_is_drawn(init, geometry) -> None:
    with torch.device("meta"):
        assert build(geometry, init=init).weight.is_meta


def test_the_length_is_the_models_or_its_own(geometry) -> None:
    resolved = Learned().resolve(geometry(trained_length=77))
    assert resolved.max_position_embeddings == resolved.limit() == resolved.max_length(geometry()) == 77
    assert Learned(max_position_embeddings=9).resolve(geometry()).limit() == 9
