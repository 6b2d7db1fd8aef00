"""Watches what a computation allocates."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Largest(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def largest_output(compute: Callable[[], Any], block_elements: int) -> int:
    """Elements of the largest tensor that any operation of `compute` returned."""
    watch = _Largest()
    with mock.patch("hf_posswap.attention.scores.BLOCK_ELEMENTS", block_elements), watch:
        compute()
    return watch.elements
