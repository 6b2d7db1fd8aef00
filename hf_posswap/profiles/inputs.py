"""Input encodings in numbers: the values at each position, and how alike positions are."""

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import InputEncoding, Scheme

COLUMNS = 32
"""Dimensions that are transformed at once."""


def input_values(encoding: InputEncoding, positions: Tensor) -> Tensor:
    """What is added at `positions [L]`: `[L, E]`, float64."""
    with torch.no_grad():
        return encoding.double()(positions[None])[0]


def refuse_zeros(values: Tensor, scheme: Scheme) -> Tensor:
    """The values.

    Raises:
        SchemeError: nothing is added before a model or training gives the values.
    """
    if not values.any():
        start = ", unless it starts at random with init='normal'" if hasattr(scheme, "init") else ""
        raise SchemeError(
            f"{scheme.name} is zero until a model or training fills it: there is nothing to be seen{start}."
        )
    return values


def cosines(values: Tensor) -> Tensor:
    """Cosine between all rows of `[L, E]`: `[L, L]`; 0 with a row of zeros."""
    unit = torch.nn.functional.normalize(values, dim=-1)
    return unit @ unit.T


def similarity_by_distance(values: Tensor) -> Tensor:
    """The mean cosine of all rows of `[L, E]` that are 0, 1, 2 ... L-1 apart: `[L]`.

    An autocorrelation: by Fourier transforms of twice the length, in `L log L` time.
    """
    length = len(values)
    unit = torch.nn.functional.normalize(values, dim=-1)
    total = values.new_zeros(length)
    for columns in unit.split(COLUMNS, dim=1):
        power = torch.fft.rfft(columns, n=2 * length, dim=0).abs().square().sum(dim=1)
        total += torch.fft.irfft(power, n=2 * length)[:length]
    return total / torch.arange(length, 0, -1)
