"""T5's relative bias: one learned number per head and bucket of distance. Raffel et al. 1910.10683, section 2.1."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import DistanceBias, Geometry, Kind, Scheme
from hf_posswap.schemes.fields import MAX_POSITIONS, number


def t5_bucket(distances: Tensor, num_buckets: int, max_distance: int, causal: bool) -> Tensor:
    """The bucket of each distance `query - key`: half of them exact, half logarithmic up to `max_distance`.

    Causal: keys after the query fall into bucket 0. Otherwise the upper half of the buckets is for later keys.
    """
    if causal:
        upper, past = torch.zeros_like(distances), distances.clamp(min=0)
    else:
        num_buckets //= 2
        upper, past = (distances < 0).long() * num_buckets, distances.abs()
    exact = num_buckets // 2
    # The margin keeps a distance that lies exactly on a border on its upper side, whatever the device's logarithm.
    ratio = torch.log(past.clamp(min=1).double() / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (num_buckets - exact) + 1e-9).floor().long()
    return upper + torch.where(past < exact, past, far.clamp(max=num_buckets - 1))


@dataclass(frozen=True, kw_only=True)
class T5Bias(Scheme):
    """A table `[num_buckets, H]` shared by all layers, zero at the start. The defaults are T5's."""

    name: ClassVar[str] = "t5"
    kind: ClassVar[Kind] = "bias"
    source: ClassVar[str] = "1910.10683"
    relative: ClassVar[bool] = True

    num_buckets: int = number(32, low=2, high=65536, integer=True)
    max_distance: int = number(128, low=2, high=MAX_POSITIONS, integer=True)

    def resolve(self, geometry: Geometry) -> "T5Bias":
        one_side = self.num_buckets if geometry.causal else self.num_buckets // 2
        if one_side < 2 or (not geometry.causal and self.num_buckets % 2):
            raise SchemeError(
                f"t5 on an encoder splits its buckets and needs an even number from 4, not {self.num_buckets}."
            )
        if self.max_distance <= one_side // 2:
            raise SchemeError(f"t5: max_distance={self.max_distance} must exceed the {one_side // 2} exact distances.")
        return self

    def build(self, geometry: Geometry) -> "T5Encoding":
        return T5Encoding(self, geometry)


class T5Encoding(DistanceBias):
    """`weight [num_buckets, H]`, under T5's name for it: `relative_attention_bias`."""

    def __init__(self, scheme: T5Bias, geometry: Geometry) -> None:
        super().__init__(geometry.num_attention_heads)
        self.scheme, self.causal = scheme, geometry.causal
        self.relative_attention_bias = nn.Parameter(torch.zeros(scheme.num_buckets, self.num_heads))

    def bias(self, distances: Tensor, heads: Tensor) -> Tensor:
        if distances.device.type == "mps":  # has no float64
            buckets = self._bucket(distances.cpu()).to(distances.device)
        else:
            buckets = self._bucket(distances)
        return self.relative_attention_bias[buckets, heads].to(self.exact_dtype)

    def _bucket(self, distances: Tensor) -> Tensor:
        return t5_bucket(distances, self.scheme.num_buckets, self.scheme.max_distance, self.causal)
