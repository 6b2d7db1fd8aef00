"""What the formula tests share: a geometry, a comparison that no NaN passes, the casts a model may go through."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from hf_posswap.schemes import Geometry


def _geometry(**overrides: Any) -> Geometry:
    facts = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "hidden_size": 512}
    facts |= {"num_hidden_layers": 2, "trained_length": 4096, "causal": True}
    return Geometry(**{**facts, **overrides})


def _assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """The norm of the error relative to that of `expected`; written so that a NaN fails."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    assert error <= tolerance, f"relative error {error:.3e} is not below {tolerance:.0e}"


def _assert_frequencies(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """The largest relative error: slow pairs are as small as 1e-7 and would drown in a norm."""
    assert actual.shape == expected.shape
    assert actual.dtype == torch.float64
    error = (actual / expected.double() - 1).abs().max()
    assert error <= tolerance, f"relative error {error:.3e} is not below {tolerance:.0e}"


def _llama_config(head_dim: int, length: int, rope_parameters: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=length,
        rope_parameters=rope_parameters,
    )


@pytest.fixture(scope="session")
def geometry() -> Callable[..., Geometry]:
    """`geometry(head_dim=128)`: 8 heads of 64, trained at 4096, with some facts changed."""
    return _geometry


@pytest.fixture(scope="session")
def assert_close() -> Callable[[Tensor, Tensor, float], None]:
    return _assert_close


def _assert_rotation(actual: tuple[Tensor, Tensor], stock: tuple[Tensor, Tensor]) -> None:
    """cos and sin of the same dtype and values; float32 angles of up to 200 radians are good to 1e-5."""
    assert [x.dtype for x in actual] == [x.dtype for x in stock]
    _assert_close(torch.cat(actual, dim=-1), torch.cat(stock, dim=-1), 1e-5)


@pytest.fixture(scope="session")
def assert_rotation() -> Callable[..., None]:
    return _assert_rotation


@pytest.fixture(scope="session")
def assert_frequencies() -> Callable[[Tensor, Tensor, float], None]:
    return _assert_frequencies


@pytest.fixture(scope="session")
def llama_config() -> Callable[..., LlamaConfig]:
    """`llama_config(head_dim, length, rope_parameters)`: what transformers' own RoPE functions read."""
    return _llama_config


@pytest.fixture(scope="session")
def stock_rotary() -> Callable[..., nn.Module]:
    """`stock_rotary(head_dim, length, rope_parameters)`: a fresh rotary module of stock LLaMA."""
    return lambda *facts: LlamaRotaryEmbedding(_llama_config(*facts))


def _saved_whole(module: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "as_built": lambda module: module,
    "bfloat16": lambda module: module.to(torch.bfloat16),
    "half": lambda module: module.half(),
    "bfloat16_and_back": lambda module: module.to(torch.bfloat16).float(),
    "deepcopy": lambda module: copy.deepcopy(module.to(torch.bfloat16)),
    "pickle": lambda module: pickle.loads(pickle.dumps(module.half())),
    "torch_save": lambda module: _saved_whole(module.to(torch.bfloat16)),
    "to_empty": lambda module: module.to("meta").to_empty(device="cpu"),
}


@pytest.fixture(params=CASTS)
def cast(request: pytest.FixtureRequest) -> Callable[[nn.Module], nn.Module]:
    """Everything that may happen to a model's modules and must not cost a constant its digits."""
    return CASTS[request.param]
