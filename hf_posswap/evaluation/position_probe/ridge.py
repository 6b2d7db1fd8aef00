"""Ridge regression from sums: Hoerl & Kennard 1970, in closed form, over examples that never exist all at once.

Features are standardised and the target is centred, so that `ridge` has the same meaning whatever the features' scale,
and the intercept is not shrunk: with correlations C of the features and their covariances c with the target,
`(C + ridge I) w = c`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError

EXAMPLES = 4096
"""Examples that exist in float64 at one time."""

CONSTANT = 1e-24
"""A feature whose variance is less than this part of its mean square is constant but for rounding, and is left out."""


@dataclass(frozen=True)
class LinearProbe:
    """`features [..., E]` to predictions `[...]`, in float64."""

    weight: Tensor
    intercept: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        parts = [_exact(part) @ self.weight for part in features.flatten(0, -2).split(EXAMPLES)]
        return torch.cat(parts).view(features.shape[:-1]) + self.intercept


class RidgeSums:
    """Sums of products of all features, the target and 1: a square of `E + 2` numbers in float64.

    Features are taken less `origin [E]`, the mean of the first examples: of features far from 0 nothing else would be
    left of the variance.
    """

    def __init__(self) -> None:
        self.products: Tensor | None = None
        self.origin: Tensor | None = None

    def add(self, features: Tensor, targets: Tensor) -> None:
        """`features [N, E]` with `targets [N]`."""
        for x, y in zip(features.split(EXAMPLES), targets.split(EXAMPLES), strict=True):
            x = _exact(x)
            y = y.to(x)[:, None]
            if self.origin is None:
                self.origin = x.mean(dim=0)
            row = torch.cat((x - self.origin, y, torch.ones_like(y)), dim=1)
            products = row.T @ row
            self.products = products if self.products is None else self.products.add_(products)

    def fit(self, ridge: float) -> LinearProbe:
        """The probe with the least squared error plus `ridge` times the square of its standardised weights.

        Raises:
            EvaluationError: a feature is not finite, or nothing was added.
        """
        if self.products is None or self.origin is None or not self.products.isfinite().all():
            raise EvaluationError("A probe cannot be fitted: hidden states are not finite.")
        means = self.products[-1, :-1] / self.products[-1, -1]
        squares = self.products[:-1, :-1] / self.products[-1, -1]
        covariances = squares - means.outer(means)
        variances = covariances.diagonal()[:-1]
        varies = variances > CONSTANT * (squares.diagonal()[:-1] + self.origin**2)
        scale = torch.where(varies, variances.clamp(min=0).rsqrt(), 0.0)
        correlations = covariances[:-1, :-1] * scale.outer(scale)
        penalty = ridge * torch.eye(len(scale), dtype=torch.float64, device=scale.device)
        weight = torch.linalg.solve(correlations + penalty, covariances[:-1, -1] * scale) * scale
        return LinearProbe(weight, means[-1] - (self.origin + means[:-1]) @ weight)


def _exact(x: Tensor) -> Tensor:
    return (x.cpu() if x.device.type == "mps" else x).double()  # mps has no float64
