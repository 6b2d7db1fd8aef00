"""What a measurement depends on, in a few characters: of tokens, of a model with its scheme, of settings."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

SAMPLED = 256
"""Numbers of each tensor that go into a model's fingerprint: training changes all of them."""
LENGTH = 32


def fingerprint_of_tokens(tokens: Tensor) -> str:
    """Of token ids of any shape."""
    return hashlib.sha256(str(list(tokens.shape)).encode() + tokens.cpu().long().numpy().tobytes()).hexdigest()[:LENGTH]


def fingerprint_of_settings(settings: Any) -> str:
    """Of JSON values; the order of keys does not count."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:LENGTH]


def fingerprint_of_model(model: Any) -> str:
    """Of class, names, shapes and dtypes, and of a sample of every tensor."""
    digest = hashlib.sha256(type(model).__name__.encode())
    tensors: Iterable[tuple[str, Any]] = model.state_dict().items()
    for name, tensor in tensors:
        if not isinstance(tensor, Tensor):
            continue
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        if not tensor.is_meta and tensor.numel():
            step = max(1, tensor.numel() // SAMPLED)
            digest.update(tensor.detach().flatten()[::step].cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:LENGTH]
