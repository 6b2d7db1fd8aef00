"""A pass through a model whose attention shows what it does.

During the pass attention is a function of ours that computes the same in blocks of queries and shows each block's
scores and weights, with whatever bias, rotation or scores of its own the model has. So nothing of the size `L x L`
exists, one layer is looked at at a time, and the numbers are those that the layer's output is made of.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hf_posswap.attention import OBSERVED, ShowBlock
from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.attention_profile.rotation import Rotation
from hf_posswap.evaluation.attention_profile.sums import LayerSums
from hf_posswap.evaluation.base_model import last_hidden_states
from hf_posswap.evaluation.token_nll import evaluating

TRIED = 64
"""Tokens of the pass that is compared with the model's own."""


def observed_layers(model: Any, input_ids: Tensor, rotation: Rotation | None = None) -> list[LayerSums]:
    """What every layer with attention shows of one pass over `input_ids [B, L]`, first layer first."""
    return _observed(model, input_ids, rotation)[1]


def refuse_unobservable(model: Any, input_ids: Tensor) -> None:
    """Raises EvaluationError unless the model computes with our attention what it computes with its own; tried on the
    first tokens of `input_ids [B, L]`, in one row."""
    name, few = type(model).__name__, input_ids[:1, :TRIED]
    if not model._supports_attention_backend:
        raise EvaluationError(f"{name} does not use transformers' attention interface: what it attends to is hidden.")
    with evaluating(model):
        own = last_hidden_states(model, few)
    if not own.isfinite().all():
        raise EvaluationError(f"The hidden states of {name} are not finite.")
    ours, layers = _observed(model, few, None)
    tolerance = torch.finfo(own.dtype).eps ** 0.5  # rounding grows from layer to layer
    difference = (ours.float() - own.float()).norm() / own.float().norm()
    if not layers or not difference <= tolerance:
        raise EvaluationError(
            f"{name} does more in its attention than scores, a mask and a softmax, so what it attends to is not known "
            f"here: its outputs would be off by {float(difference):.1e}."
        )


def _observed(model: Any, input_ids: Tensor, rotation: Rotation | None) -> tuple[Tensor, list[LayerSums]]:
    layers: list[LayerSums] = []

    def observer(query: Tensor, key: Tensor) -> ShowBlock:
        layers.append(LayerSums(query, key, rotation if rotation and rotation.layers[len(layers)] else None))
        return layers[-1].show

    with evaluating(model), _attention_function(model, OBSERVED):
        return last_hidden_states(model, input_ids, observer=observer), layers


@contextmanager
def _attention_function(model: Any, name: str) -> Iterator[None]:
    """Every config below the model names this attention function, and afterwards its own again."""
    found = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    configs: list[Any] = [config for config in found.values() if hasattr(config, "_attn_implementation_internal")]
    before = [config._attn_implementation_internal for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation_internal = own
