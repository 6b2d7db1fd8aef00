"""Attention scores by distance: biases, and inner products under whatever turns or replaces them.

Keys lie at distances `[R]` (query position minus key position) from one query, which is at position `at`: where
frequencies depend on a length, at the last position that it lets the query see.
"""

from typing import Any

import torch
from torch import Tensor

from hf_posswap.schemes.base import BiasEncoding, Geometry, RotaryEncoding, rotated

SEED = 0
"""What random queries and keys come from."""


def bias_by_distance(encoding: BiasEncoding, distances: Tensor, at: int | None = None) -> Tensor:
    """What is added to the scores of each head: `[H, R]` float64. `at` None: the largest distance."""
    order = distances.argsort(descending=True)
    query = (distances.max() if at is None else torch.tensor(at))[None, None]
    keys = query - distances[order]
    with torch.no_grad():
        encoding = encoding.double()
        found = encoding(encoding.tables(query), encoding.tables(keys))[0, :, 0]
    return found[:, order.argsort()]


def inner_products(
    encoding: Any, geometry: Geometry, query: Tensor, key: Tensor, distances: Tensor, at: int | None = None
) -> Tensor:
    """`query [B, H, 1, D]` with `key`, of the same shape, at every distance: `[B, H, R]`.

    `encoding` is a rotary or a score encoding; None: nothing turns. `at` None: the largest distance.
    """
    if encoding is None:
        return (query * key).sum(-1).expand(-1, -1, len(distances))
    # Attention's order: keys from the first position to the query's own.
    order = distances.argsort(descending=True)
    query_at = distances.max() if at is None else torch.tensor(at)
    positions = query_at - torch.cat((distances[order], distances.new_zeros(1)))
    keys = key.expand(-1, -1, len(positions), -1)
    with torch.no_grad():
        found = _scores(encoding.double(), geometry, query, keys, positions)[..., 0, :-1]
    return found[..., order.argsort()]


def _scores(encoding: Any, geometry: Geometry, query: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """`[B, H, 1, K]` for keys `[B, H, K, D]` at `positions [K]`, the last of which is the query's."""
    if isinstance(encoding, RotaryEncoding):
        cos, sin = (table[..., : table.shape[-1] // 2] for table in encoding.rotation(positions[None], torch.float64))
        turned = rotated(query, cos[:, -1:], sin[:, -1:], geometry.pairing)
        return turned @ rotated(keys, cos, sin, geometry.pairing).transpose(-1, -2)
    at = positions.expand(len(query), -1)
    own = torch.tensor([len(positions) - 1])
    return encoding(query, keys, encoding.tables(at[:, -1:]), encoding.tables(at), own)


def ones(encoding: Any, geometry: Geometry) -> Tensor:
    """Queries or keys of ones, `[1, H, 1, D]`; one head stands for all that turn alike."""
    return torch.ones(1, _heads(encoding, geometry), 1, geometry.head_dim, dtype=torch.float64)


def profile_of_ones(encoding: Any, geometry: Geometry, distances: Tensor, at: int | None = None) -> Tensor:
    """The inner product of a query and a key of ones, by head_dim: `[R]`, the mean over pairs of `cos(r theta_i)` for
    RoPE; over heads too where they differ."""
    both = ones(encoding, geometry)
    return inner_products(encoding, geometry, both, both, distances, at).mean(dim=(0, 1)) / geometry.head_dim


def random_pair(encoding: Any, geometry: Geometry, draws: int) -> tuple[Tensor, Tensor]:
    """Standard normal queries and keys `[B, H, 1, D]`, the same every time; B * H is at least `draws`."""
    heads = _heads(encoding, geometry)
    shape = (-(-draws // heads), heads, 1, geometry.head_dim)
    generator = torch.Generator().manual_seed(SEED)
    query, key = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return query, key


def profiles_of_random(encoding: Any, geometry: Geometry, distances: Tensor, draws: int) -> Tensor:
    """Inner products of standard normal queries and keys by `sqrt(head_dim)`: `[draws, R]`."""
    found = inner_products(encoding, geometry, *random_pair(encoding, geometry, draws), distances)
    return found.flatten(0, 1)[:draws] / geometry.head_dim**0.5


def _heads(encoding: Any, geometry: Geometry) -> int:
    return 1 if encoding is None or isinstance(encoding, RotaryEncoding) else geometry.num_attention_heads
