"""Tiny models that tests share: real architectures, random weights large enough that positions matter."""

from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedModel,
)

VOCAB, LENGTH, HIDDEN, LAYERS, HEADS, KV_HEADS = 64, 64, 32, 2, 4, 2

MODEL_TYPES = ("gpt2", "bert", "llama", "mistral", "qwen2")

OWN_SHAPE: dict[str, dict[str, Any]] = {
    "qwen3": {"head_dim": 8},
    "smollm3": {"no_rope_layers": [1, 0]},
    "phi3": {"original_max_position_embeddings": LENGTH},
    "glm": {"head_dim": 16},  # half of a head turns: as many pairs as elsewhere
}
"""What a model type needs to be as small as the others, or to show what is its own."""

HEAD_CLASSES: dict[str, Any] = {
    "lm": AutoModelForCausalLM,
    "base": AutoModel,
    "masked": AutoModelForMaskedLM,
    "sequence": AutoModelForSequenceClassification,
    "token": AutoModelForTokenClassification,
    "question": AutoModelForQuestionAnswering,
    "choice": AutoModelForMultipleChoice,
}


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """A config of 2 layers, 4 heads (2 key/value heads where there are such) and length 64."""
    if model_type == "gpt2":
        shape = {"n_positions": LENGTH, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}
    else:
        shape = {"max_position_embeddings": LENGTH, "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN}
        shape |= {"num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    if model_type not in ("gpt2", "bert"):
        shape |= {"num_key_value_heads": KV_HEADS}
    tokens = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return AutoConfig.for_model(model_type, **{**shape, **tokens, **OWN_SHAPE.get(model_type, {}), **overrides})


def tiny(model_type: str, head: str = "lm", *, seed: int = 0, std: float = 0.2, **overrides: Any) -> PreTrainedModel:
    """A tiny model in eval mode. `head` is a key of `HEAD_CLASSES`; "lm" of a BERT encoder is its masked one.

    Every weight is re-drawn with `std`, norms around 1: at the usual 0.02 a model hardly sees positions.
    """
    config = tiny_config(model_type, **overrides)
    if head == "lm" and model_type == "bert" and not config.is_decoder:
        head = "masked"
    model = HEAD_CLASSES[head].from_config(config)
    return redraw(model, seed, std).eval()


def redraw(model: Any, seed: int = 0, std: float = 0.2) -> Any:
    """Draws every parameter anew, without touching the global random state."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator) * std
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(drawn.to(parameter.dtype) + (1 if is_norm else 0))
    return model
