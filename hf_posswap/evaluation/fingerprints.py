"""What a measurement depends on, in a few characters: of tokens, of a model with its scheme, of settings."""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

CHUNK = 2**24
"""Numbers of a tensor that are on the CPU at one time."""
MODES = {*vars(torch.nn.Module()), "gradient_checkpointing", "_is_hf_initialized", "warnings_issued", "name_or_path"}
"""Attributes of modules on which no output in evaluation mode depends; torch numbers hooks by all there ever were."""
LENGTH = 32


def fingerprint_of_tokens(tokens: Tensor) -> str:
    """Of token ids of any shape."""
    return hashlib.sha256(str(list(tokens.shape)).encode() + tokens.cpu().long().numpy().tobytes()).hexdigest()[:LENGTH]


def fingerprint_of_settings(settings: Any) -> str:
    """Of JSON values; the order of keys does not count."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:LENGTH]


def fingerprint_of_model(model: Any) -> str:
    """Of class, names, shapes, dtypes and contents of all parameters and buffers, those that are not saved included, of
    plain attributes of modules (an adapter's scale, whether it is switched off) and of the names of forward hooks."""
    digest = hashlib.sha256(type(model).__name__.encode())
    tensors: Iterable[tuple[str, Any]] = {**dict(model.named_buffers()), **model.state_dict()}.items()
    for name, tensor in tensors:
        if not isinstance(tensor, Tensor):
            continue
        digest.update(f"{name} {list(tensor.shape)} {tensor.dtype}".encode())
        if not tensor.is_meta:
            for part in tensor.detach().flatten().split(CHUNK):
                digest.update(part.cpu().contiguous().view(torch.uint8).numpy())
    for name, module in model.named_modules():
        hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
        digest.update(json.dumps([name, _plain_attributes(module), [_name(hook) for hook in hooks]]).encode())
    return digest.hexdigest()[:LENGTH]


def _plain_attributes(module: Any) -> list[tuple[str, str]]:
    plain = [(key, value) for key, value in sorted(vars(module).items()) if key not in MODES]
    return [(key, repr(value)) for key, value in plain if _is_plain(value)]


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _name(hook: Any) -> str:
    return f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"
