"""Which dimensions of a head turn together: against LLaMA, GLM and Phi-3, and in complex and matrix form."""

import pytest
import torch
from torch import Tensor
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as glm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as phi3

from hf_posswap.schemes.base import RotaryEncoding, cos_and_sin, rotated

DIM = 16
STOCK = {"llama": (llama, "half", DIM), "phi3": (phi3, "half", 12), "glm": (glm, "interleaved", 8)}
STOCK |= {"glm_whole": (glm, "interleaved", DIM)}


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("still", [0, 2])
@pytest.mark.parametrize("name", STOCK)
def test_rotated_and_its_gradient_are_those_of_stock_attention(name, still, assert_close) -> None:
    apply, pairing, width = STOCK[name]
    x, upstream, positions = leaf(2, 3, 9, DIM), torch.randn(2, 3, 9, DIM), torch.randint(0, 10**6, (2, 9))
    inv_freq = torch.rand(width // 2 - still, dtype=torch.float64)
    ours = rotated(x, *cos_and_sin(positions, inv_freq, 1.25, still), pairing)
    whole = RotaryEncoding(inv_freq, 1.25, still).rotation(positions, torch.float64)
    stock = apply(x, x, *whole)[0]
    assert_close(ours, stock, 1e-14)
    gradients = [torch.autograd.grad((turned * upstream).sum(), x)[0] for turned in (ours, stock)]
    assert_close(*gradients, 1e-14)


def pairs(width: int, pairing: str) -> list[tuple[int, int]]:
    half = width // 2
    return [(i, i + half) if pairing == "half" else (2 * i, 2 * i + 1) for i in range(half)]


def complex_form(x: Tensor, angles: Tensor, which: list[tuple[int, int]]) -> Tensor:
    out = x.clone()
    first, second = (list(side) for side in zip(*which, strict=True))
    turned = torch.complex(x[..., first], x[..., second]) * torch.exp(1j * angles[:, None])
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def matrix_form(x: Tensor, angles: Tensor, which: list[tuple[int, int]]) -> Tensor:
    matrices = torch.eye(x.shape[-1], dtype=torch.float64).repeat(*angles.shape[:2], 1, 1)
    for pair, (i, j) in enumerate(which):
        angle = angles[..., pair]
        matrices[..., i, i] = matrices[..., j, j] = angle.cos()
        matrices[..., j, i], matrices[..., i, j] = angle.sin(), -angle.sin()
    return torch.einsum("blde,bhle->bhld", matrices, x)


@pytest.mark.parametrize("form", [complex_form, matrix_form])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("width", [DIM, 6])
def test_complex_matrix_and_elementwise_form_are_one_function(form, pairing, width, assert_close) -> None:
    x, upstream, positions = leaf(2, 3, 9, DIM), torch.randn(2, 3, 9, DIM), torch.randint(0, 1000, (2, 9))
    inv_freq = torch.rand(width // 2, dtype=torch.float64)
    ours = rotated(x, *cos_and_sin(positions, inv_freq), pairing)
    written_out = form(x, positions[..., None] * inv_freq, pairs(width, pairing))
    assert_close(ours, written_out, 1e-13)
    assert torch.equal(ours[..., width:], x[..., width:])
    gradients = [torch.autograd.grad((turned * upstream).sum(), x)[0] for turned in (ours, written_out)]
    assert_close(*gradients, 1e-13)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_scores_depend_on_the_distance_alone(pairing, assert_close) -> None:
    query, key, inv_freq = leaf(2, 2, 7, DIM), leaf(2, 2, 7, DIM), torch.rand(DIM // 2, dtype=torch.float64)
    queries, keys = torch.randint(0, 500, (2, 2, 7))
    scores = [
        rotated(query, *cos_and_sin(queries + shift, inv_freq), pairing)
        @ rotated(key, *cos_and_sin(keys + shift, inv_freq), pairing).transpose(-1, -2)
        for shift in (0, 1000)
    ]
    assert_close(scores[1], scores[0], 1e-11)


def test_every_position_may_have_frequencies_and_scaling_of_its_own(assert_close) -> None:
    positions, inv_freq = torch.randint(0, 1000, (2, 5)), torch.rand(2, 5, 3, dtype=torch.float64)
    scaling = torch.rand(2, 5, 1, dtype=torch.float64)
    cos, sin = cos_and_sin(positions, inv_freq, scaling, still=1)
    assert cos.shape == sin.shape == (2, 5, 4)
    for row, i in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        angles = positions[row, i] * inv_freq[row, i]
        assert_close(cos[row, i], torch.cat((angles.cos() * scaling[row, i], torch.ones(1))), 1e-12)
        assert_close(sin[row, i], torch.cat((angles.sin() * scaling[row, i], torch.zeros(1))), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rotated_keeps_the_dtype(dtype, assert_close) -> None:
    x, positions = torch.randn(2, 3, 9, DIM).to(dtype), torch.randint(0, 10**6, (2, 9))
    tables = cos_and_sin(positions, torch.rand(DIM // 2, dtype=torch.float64))
    ours = rotated(x, *tables, "half")
    assert ours.dtype == dtype
    assert_close(ours, rotated(x.double(), *tables, "half"), 4 * torch.finfo(dtype).eps)
