"""Every scheme on every kind of model, from the registries: what is registered later is covered without an edit."""

from dataclasses import MISSING, fields
from typing import Any

import pytest
import torch
from tiny import tiny

import hf_posswap as hp
from hf_posswap.families import FAMILIES, MODEL_TYPES
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
    """An instance: required fields get 4, within every range so far, and lists a number for each of 4 pairs.

    What depends on the trained length takes 8 for it, so that `LENGTH` tokens lie on both sides of several borders.
    """
    of_our_own = {
        "longrope": {"long_factor": (1.0, 2.0, 3.0, 4.0), "short_factor": (1.0, 1.1, 1.2, 1.3)},
        "layered": {"schemes": (hp.RoPE(), hp.NoPE()), "pattern": "RN"},
        "log_scaled": {"inner": hp.RoPE()},
    }
    values = {f.name: 4.0 for f in fields(scheme) if f.default is MISSING} | of_our_own.get(scheme.name, {})
    if scheme.name in ("dynamic", "longrope", "log_scaled"):
        values["original_max_position_embeddings"] = 8
    return scheme(**values)


def is_causal(kind: str) -> bool:
    return kind != "bert"


def is_carried(kind: str, scheme: type[Scheme]) -> bool:
    return is_causal(kind) or (scheme.causal_only is None and scheme.has_order)


def pair_id(pair: Any) -> str:
    return f"{pair[0]}-{pair[1].name}"


def pairs(kinds: tuple[str, ...] = KINDS, **wanted: Any) -> Any:
    """A parametrisation over carried pairs; `kind="bias"` and the like select by class attributes.

    The pairs that others cover are marked slow.
    """
    chosen = [
        pytest.param((kind, scheme), marks=[] if is_covering(kind, scheme) else pytest.mark.slow)
        for kind in kinds
        for scheme in SCHEMES
        if is_carried(kind, scheme) and all(getattr(scheme, k) in _as_tuple(v) for k, v in wanted.items())
    ]
    assert chosen
    return pytest.mark.parametrize("pair", chosen, ids=pair_id)


def is_covering(kind: str, scheme: type[Scheme]) -> bool:
    """Every scheme on one kind of each family; on the others a scheme of every way into the network."""
    return kind in FIRST_OF_FAMILY or scheme.name in EVERY_WAY


FIRST_OF_FAMILY = tuple(family.model_types[0] for family in FAMILIES)
EVERY_WAY = ("nope", "learned", "yarn", "dynamic", "t5", "layered")


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
