"""Scores and weights of one layer, summed over queries that are as far from their keys.

A distance is a diagonal of the scores `[Q, K]`. Shifting every row by one against the row before makes columns of the
diagonals, which are then summed: without an index for each score, and in the same order every time.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from hf_posswap.attention import HIDDEN
from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.attention_profile.rotation import Rotation


class LayerSums:
    """What one forward pass shows of a layer: sums over rows and queries, by head, in float64.

    By distance from `1 - L` to `L - 1`, a query's position less a key's: `scores`, `weights [H, 2L - 1]` and `seen
    [1, 2L - 1]`, the pairs of query and key. `first [H]` are the weights on the first key.
    """

    def __init__(self, query: Tensor, key: Tensor, rotation: Rotation | None) -> None:
        heads, length = query.shape[1:3]
        self.length = length
        self.scores = torch.zeros(heads, 2 * length - 1, dtype=torch.float64)
        self.weights, self.seen = torch.zeros_like(self.scores), torch.zeros_like(self.scores[:1])
        self.first = torch.zeros(heads, dtype=torch.float64)
        self.norms = None if rotation is None else (rotation.norms(query), rotation.norms(key))

    def show(self, start: int, scores: Tensor, weights: Tensor) -> None:
        """`attention.ShowBlock`."""
        seen = scores > HIDDEN
        keys, queries = scores.shape[3], scores.shape[2]
        # Where the last query meets the first key, the distance is largest.
        here = slice(start - keys + self.length, start + self.length + queries - 1)
        self.scores[:, here] += by_distance(scores.where(seen, 0.0))
        self.weights[:, here] += by_distance(weights)
        self.seen[:, here] += by_distance(seen[:, :1])
        self.first += weights[..., 0].cpu().sum(dim=(0, 2), dtype=torch.float64)

    def values(self, starts: list[int]) -> dict[str, Any]:
        """JSON values, distances on both sides taken together in buckets that begin at `starts`.

        Raises:
            EvaluationError: a score is not finite.
        """
        if not (self.scores.isfinite().all() and self.weights.isfinite().all()):
            raise EvaluationError(f"The model's attention is not finite at {self.length} tokens.")
        scores, weights, seen = (self._either_side(sums) for sums in (self.scores, self.weights, self.seen))
        found = {
            "scores": in_buckets(scores, starts),
            "weights": in_buckets(weights, starts),
            "seen": in_buckets(seen, starts),
            "distance": weights @ torch.arange(self.length, dtype=torch.float64),
            "diagonal": self.weights[:, self.length - 1],
            "previous": self.weights[:, self.length],
            "first": self.first,
        }
        if self.norms is not None:
            found |= {"query_norms": self.norms[0], "key_norms": self.norms[1]}
        return {name: sums.tolist() for name, sums in found.items()}

    def _either_side(self, sums: Tensor) -> Tensor:
        """`[H, 2L - 1] -> [H, L]`."""
        before, behind = sums[:, self.length - 1 :], sums[:, : self.length - 1].flip(-1)
        return before + pad(behind, (1, 0))


def by_distance(block: Tensor) -> Tensor:
    """Sums over rows and diagonals: `[B, H, q, K] -> [H, q + K - 1]` float64 on the CPU, the last key of the first
    query first, the first key of the last query last."""
    queries, keys = block.shape[2:]
    shifted = pad(block.flip(-1), (0, queries)).flatten(2)[..., : queries * (queries + keys - 1)]
    columns = shifted.unflatten(2, (queries, queries + keys - 1))
    columns = columns.cpu() if columns.device.type == "mps" else columns  # which has no float64
    return columns.sum(dim=(0, 2), dtype=torch.float64).cpu()


def in_buckets(sums: Tensor, starts: list[int]) -> Tensor:
    """`[H, L] -> [H, len(starts)]`: a bucket ends where the next begins."""
    return torch.stack([part.sum(dim=-1) for part in sums.tensor_split(starts[1:], dim=-1)], dim=-1)
