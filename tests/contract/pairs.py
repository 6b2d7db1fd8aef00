"""Every scheme on every kind of model, from the registries: what is registered later is covered without an edit."""

from dataclasses import MISSING, fields
from typing import Any

import pytest
import torch
from tiny import tiny

import hf_posswap as hp
from hf_posswap.families import MODEL_TYPES
from hf_posswap.schemes import SCHEMES, Scheme

LENGTH = 24
VOCAB = 64

VARIANTS: dict[str, dict[str, Any]] = {
    "bert-decoder": {"model_type": "bert", "is_decoder": True},
    "mistral-window": {"model_type": "mistral", "sliding_window": 8},
    "qwen2-mixed": {
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention"],
    },
}
KINDS = (*MODEL_TYPES, *VARIANTS)


def build(kind: str, **overrides: Any) -> Any:
    """A tiny stock model with weights large enough that positions matter."""
    options = {"model_type": kind, **VARIANTS.get(kind, {}), **overrides}
    return tiny(options.pop("model_type"), **options)


def example(scheme: type[Scheme]) -> Scheme:
    """An instance: required fields get 4, within every range so far."""
    required = {f.name: 4.0 for f in fields(scheme) if f.default is MISSING}
    return scheme(**required)


def is_causal(kind: str) -> bool:
    return kind != "bert"


def is_carried(kind: str, scheme: type[Scheme]) -> bool:
    return is_causal(kind) or (scheme.causal_only is None and scheme.has_order)


def pair_id(pair: Any) -> str:
    return f"{pair[0]}-{pair[1].name}"


def pairs(kinds: tuple[str, ...] = KINDS, **wanted: Any) -> Any:
    """A parametrisation over carried pairs; `kind="bias"` and the like select by class attributes."""
    chosen = [
        (kind, scheme)
        for kind in kinds
        for scheme in SCHEMES
        if is_carried(kind, scheme) and all(getattr(scheme, k) in _as_tuple(v) for k, v in wanted.items())
    ]
    assert chosen
    return pytest.mark.parametrize("pair", chosen, ids=pair_id)


CAUSAL = tuple(kind for kind in KINDS if is_causal(kind))


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def patched(pair: Any, **overrides: Any) -> Any:
    """The pair's model with the pair's scheme, and position parameters that are not at their neutral start."""
    kind, scheme = pair
    model = hp.patch(build(kind, **overrides), example(scheme))
    draw_position_parameters(model)
    return model


def is_patched(model: Any) -> bool:
    """False where the stock model had the scheme already."""
    return hasattr(model.base_model, "hf_posswap")


def position_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    own = {}
    for path, module in model.named_modules():
        if type(module).__module__.startswith("hf_posswap."):
            own.update({f"{path}.{n}": p for n, p in module.named_parameters(recurse=False)})
    return own


def draw_position_parameters(model: Any) -> None:
    for parameter in position_parameters(model).values():
        torch.nn.init.normal_(parameter, std=0.5)


def tokens(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(4, VOCAB, (batch, length))


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Relative norm; NaN never passes."""
    found, expected = found.detach().double(), expected.detach().double()
    assert found.shape == expected.shape
    error = (found - expected).norm() / expected.norm()
    assert error <= tolerance, f"relative error {error:.2e} > {tolerance:.0e}"
