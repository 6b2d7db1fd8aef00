"""Watches what a computation allocates, and what it keeps for the backward pass."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def size(tensor: Tensor) -> int:
    """Elements of the memory behind a tensor: a view counts as what it is a view of."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


class _Largest(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves(result)
        self.elements = max([self.elements, *(size(leaf) for leaf in leaves if isinstance(leaf, Tensor))])
        return result


def elements_of(compute: Callable[[], Any], block_elements: int) -> tuple[int, int]:
    """Elements of the largest tensor that an operation of `compute` returned, and of all that is kept together."""
    watch, kept = _Largest(), {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = size(tensor)
        return tensor

    with (
        mock.patch("hf_posswap.attention.scores.BLOCK_ELEMENTS", block_elements),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        watch,
    ):
        result = compute()
    total = sum(kept.values())
    del result  # until here it held what is kept
    return watch.elements, total
