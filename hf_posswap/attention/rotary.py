"""Rotation where a family has no rotary slot: after the projections, before the cache."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x [B, H, L, D]` with dimensions i and i + D/2 turned by the angle of `cos, sin [B, L, D]`."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = (table[:, None, :, : first.shape[-1]].to(device=x.device, dtype=x.dtype) for table in (cos, sin))
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
