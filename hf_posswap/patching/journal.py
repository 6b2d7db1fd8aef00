"""A list of edits that can be undone exactly.

Edits are recorded by path, and the originals are kept outside of the module tree: they are in no `state_dict`, and they
survive `deepcopy` and pickling together with the model.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_ABSENT = "absent"


@dataclass
class Journal:
    """Edits of one model, newest last."""

    edits: list[tuple[Any, ...]] = field(default_factory=list)

    def set_module(self, root: nn.Module, path: str, module: nn.Module) -> None:
        """Replaces (or adds) the submodule at `path`. The original waits on the CPU."""
        parent, name = _parent(root, path)
        original = parent._modules.get(name, _ABSENT)
        if isinstance(original, nn.Module) and not _on_meta(original):
            original.to("cpu")
        self.edits.append(("module", path, original))
        setattr(parent, name, module)

    def set_class(self, root: nn.Module, path: str, cls: type) -> None:
        """Changes the class of the module at `path`: it keeps its identity, children and hooks."""
        module = root.get_submodule(path)
        self.edits.append(("class", path, type(module)))
        module.__class__ = cls

    def set_attribute(self, root: nn.Module, path: str, name: str, value: Any) -> None:
        """Replaces a plain attribute of the module at `path`."""
        module = root.get_submodule(path)
        self.edits.append(("attribute", path, name, getattr(module, name)))
        setattr(module, name, value)

    def set_buffer(self, root: nn.Module, module: nn.Module, name: str, value: Tensor) -> None:
        """Replaces a buffer that is not saved."""
        path = next(p for p, m in root.named_modules() if m is module)
        self.edits.append(("buffer", path, name, getattr(module, name)))
        setattr(module, name, value)

    def set_config(self, root: nn.Module, old: Any, new: Any) -> None:
        """Points every submodule that holds the config `old` to `new`.

        What the user changes in it afterwards (a vocabulary that grew, `use_cache`) is kept when this is undone.
        """
        holders = [path for path, module in root.named_modules() if getattr(module, "config", None) is old]
        self.edits.append(("config", holders, old, copy.deepcopy(vars(new))))
        for path in holders:
            _at(root, path).config = new

    def add_hook(self, handle: RemovableHandle) -> None:
        """Remembers a hook that was registered."""
        self.edits.append(("hook", handle))

    def undo(self, root: nn.Module, like: Tensor) -> None:
        """Takes all edits back, newest first. `like` tells which device and dtype the model has now."""
        while self.edits:
            kind, *edit = self.edits[-1]
            _UNDO[kind](root, like, *edit)
            # Only now: interrupted in between, it is undone once more, which changes nothing.
            self.edits.pop()


def _undo_module(root: nn.Module, like: Tensor, path: str, original: Any) -> None:
    parent, name = _parent(root, path)
    if original == _ABSENT:
        parent._modules.pop(name, None)
        return
    original.train(parent.training)
    if not _on_meta(original):
        original.to(like.device)
        for parameter in original.parameters():
            parameter.data = parameter.data.to(like.dtype)
    setattr(parent, name, original)


def _undo_class(root: nn.Module, like: Tensor, path: str, cls: type) -> None:
    _at(root, path).__class__ = cls


def _undo_attribute(root: nn.Module, like: Tensor, path: str, name: str, value: Any) -> None:
    setattr(_at(root, path), name, value)


def _undo_buffer(root: nn.Module, like: Tensor, path: str, name: str, value: Tensor) -> None:
    setattr(_at(root, path), name, value.to(like.device))


def _undo_config(root: nn.Module, like: Tensor, holders: list[str], old: Any, installed: dict[str, Any]) -> None:
    original = vars(old).copy()
    for name, value in vars(_at(root, holders[0]).config).items() if holders else ():
        untouched_by_us = name in original and installed.get(name, _ABSENT) == original[name]
        if untouched_by_us and value != original[name]:
            setattr(old, name, value)
    for path in holders:
        _at(root, path).config = old


def _undo_hook(root: nn.Module, like: Tensor, handle: RemovableHandle) -> None:
    handle.remove()


_UNDO: dict[str, Callable[..., None]] = {
    "module": _undo_module,
    "class": _undo_class,
    "attribute": _undo_attribute,
    "buffer": _undo_buffer,
    "config": _undo_config,
    "hook": _undo_hook,
}


def _at(root: nn.Module, path: str) -> Any:
    return root.get_submodule(path)


def _parent(root: nn.Module, path: str) -> tuple[nn.Module, str]:
    parent, _, name = path.rpartition(".")
    return root.get_submodule(parent), name


def _on_meta(module: nn.Module) -> bool:
    tensors: list[torch.Tensor] = [*module.parameters(), *module.buffers()]
    return any(t.is_meta for t in tensors)
