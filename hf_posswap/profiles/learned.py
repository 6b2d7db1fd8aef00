"""Encodings whose parameters start at zero show nothing of what they can: an example with other parameters does."""

import copy
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

E = TypeVar("E", bound=nn.Module)


def drawn_if_zero(encoding: E, effect: Callable[[E], Tensor]) -> tuple[E, bool]:
    """The encoding; or, where its `effect` is zero, the same with parameters from N(0, 1), and True to say so.

    One without parameters is given back as it is.
    """
    if effect(encoding).any() or not has_parameters(encoding):
        return encoding, False
    drawn, generator = copy.deepcopy(encoding), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in drawn.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return drawn, True


def has_parameters(encoding: nn.Module) -> bool:
    """Whether anything of it is learned."""
    return any(True for _ in encoding.parameters())
