"""RoPE against transformers, against itself in complex and matrix form, and its textbook properties."""

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from hf_posswap import RoPE, SchemeError
from hf_posswap.attention.rotary import rotate
from hf_posswap.schemes.rope import inverse_frequencies

FLOAT32 = 1e-6
"""transformers computes frequencies in float32: a few roundings."""


def rotation(head_dim, positions, dtype, geometry) -> tuple[Tensor, Tensor]:
    facts = geometry(head_dim=head_dim)
    return RoPE().resolve(facts).build(facts).rotation(positions, dtype)


@pytest.mark.parametrize("head_dim", [2, 6, 64, 128])
@pytest.mark.parametrize("theta", [1e4, 5e5, 1e7])
def test_frequencies(head_dim, theta, geometry, llama_config, assert_frequencies) -> None:
    facts = geometry(head_dim=head_dim)
    scheme = RoPE(rope_theta=theta).resolve(facts)
    actual = scheme.inv_freq(facts)
    parameters = {"rope_type": "default", "rope_theta": theta}
    stock, scaling = LlamaRotaryEmbedding.compute_default_rope_parameters(llama_config(head_dim, 4096, parameters))
    assert_frequencies(actual, stock, FLOAT32)
    assert scheme.scaling(facts) == scaling == 1.0
    scalars = torch.tensor([theta ** (-2 * i / head_dim) for i in range(head_dim // 2)], dtype=torch.float64)
    assert_frequencies(actual, scalars, 1e-12)


def test_cos_and_sin_are_those_of_llama(geometry, llama_config, assert_close) -> None:
    x, positions = torch.randn(2, 17, 8), torch.randint(0, 200, (2, 17))
    parameters = {"rope_type": "default", "rope_theta": 5e5}
    stock = LlamaRotaryEmbedding(llama_config(64, 4096, parameters))(x, positions)
    ours = RoPE(rope_theta=5e5).resolve(geometry()).build(geometry())(x, positions)
    for actual, expected in zip(ours, stock, strict=True):
        assert actual.dtype == expected.dtype
        # float32 angles of up to 200 radians are good to 1e-5.
        assert_close(actual, expected, 1e-5)


def test_rotate_and_its_gradient_are_those_of_llama(geometry, assert_close) -> None:
    positions, upstream = torch.randint(0, 10**6, (2, 9)), torch.randn(2, 3, 9, 32, dtype=torch.float64)
    cos, sin = rotation(32, positions, torch.float64, geometry)
    ours = torch.randn(2, 3, 9, 32, dtype=torch.float64, requires_grad=True)
    stock = ours.detach().clone().requires_grad_()
    rotated, expected = rotate(ours, cos, sin), apply_rotary_pos_emb(stock, stock, cos, sin)[0]
    assert_close(rotated, expected, 1e-12)
    (rotated * upstream).sum().backward()
    (expected * upstream).sum().backward()
    assert_close(ours.grad, stock.grad, 1e-12)


def complex_form(x: Tensor, positions: Tensor, base: float) -> Tensor:
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.exp(1j * positions[:, None, :, None] * frequencies)
    return torch.cat((turned.real, turned.imag), dim=-1)


def matrix_form(x: Tensor, positions: Tensor, base: float) -> Tensor:
    dim = x.shape[-1]
    matrices = torch.zeros(*positions.shape, dim, dim, dtype=torch.float64)
    for i in range(dim // 2):
        angle, j = positions * base ** (-2 * i / dim), i + dim // 2
        matrices[..., i, i] = matrices[..., j, j] = angle.cos()
        matrices[..., j, i] = angle.sin()
        matrices[..., i, j] = -angle.sin()
    return torch.einsum("blde,bhle->bhld", matrices, x)


@pytest.mark.parametrize("form", [complex_form, matrix_form])
def test_the_three_forms_are_one_function(form, geometry, assert_close) -> None:
    x, positions = torch.randn(2, 3, 11, 16, dtype=torch.float64), torch.randint(0, 1000, (2, 11))
    ours = rotate(x, *rotation(16, positions, torch.float64, geometry))
    assert_close(ours, form(x, positions.double(), 1e4), 1e-12)


@pytest.mark.parametrize("shift", [1, 77, 100_000])
def test_scores_depend_on_the_distance_alone(shift, geometry, assert_close) -> None:
    query, key = torch.randn(2, 1, 2, 9, 64, dtype=torch.float64)
    queries, keys = torch.randint(0, 500, (2, 1, 9))
    scores = [
        rotate(query, *rotation(64, queries + moved, torch.float64, geometry))
        @ rotate(key, *rotation(64, keys + moved, torch.float64, geometry)).transpose(-1, -2)
        for moved in (0, shift)
    ]
    # Angles grow with the position, and their last digit with them.
    assert_close(scores[1], scores[0], 1e-10)


def test_norms_are_kept_and_position_zero_turns_nothing(geometry, assert_close) -> None:
    x, positions = torch.randn(2, 3, 9, 64, dtype=torch.float64), torch.randint(0, 10**6, (2, 9))
    cos, sin = rotation(64, positions, torch.float64, geometry)
    assert_close(rotate(x, cos, sin).norm(dim=-1), x.norm(dim=-1), 1e-12)
    cos, sin = rotation(64, torch.zeros_like(positions), torch.float64, geometry)
    assert torch.equal(rotate(x, cos, sin), x)


def test_the_base_comes_from_the_model_or_is_ten_thousand(geometry) -> None:
    assert RoPE().resolve(geometry()).rope_theta == 1e4
    assert RoPE().resolve(geometry(rope_theta=5e5)).rope_theta == 5e5
    assert RoPE(rope_theta=3.0).resolve(geometry(rope_theta=5e5)).rope_theta == 3.0
    facts = geometry(head_dim=16, rope_theta=5e5)
    assert torch.equal(RoPE().resolve(facts).inv_freq(facts), inverse_frequencies(16, 5e5))


def test_an_odd_head_dim_is_refused(geometry) -> None:
    with pytest.raises(SchemeError, match="even head_dim, not 7"):
        RoPE().resolve(geometry(head_dim=7))
