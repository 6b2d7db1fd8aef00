"""The rotary schemes that there are, each with fields like those of the one that is drawn."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.schemes import SCHEMES
from hf_posswap.schemes.base import Geometry, RotaryEncoding, Scheme
from hf_posswap.schemes.rope import RoPE

BASES = (1e4, 5e5)
"""The first RoPE's base and Llama 3's."""
EXAMPLE_FACTOR = 4.0
SHARED = ("rope_theta", "partial_rotary_factor")


@dataclass(frozen=True)
class Variant:
    """A rotary scheme by name; `inv_freq [N]` of the pairs that turn, of `pairs` in all."""

    name: str
    inv_freq: Tensor
    pairs: int

    @property
    def label(self) -> str:
        """The name, and how many pairs turn where some do not."""
        turning = len(self.inv_freq)
        return self.name if turning == self.pairs else f"{self.name} ({turning} of {self.pairs} pairs turn)"


def factor_of(scheme: Scheme, geometry: Geometry, longest: int) -> float:
    """By how much the variants extend the trained length: as the scheme does, or as far as the picture goes."""
    own, drawn = getattr(scheme, "factor", 1.0), longest / geometry.trained_length
    return own if own > 1 else drawn if drawn > 1 else EXAMPLE_FACTOR


def rotary_variants(scheme: Scheme, geometry: Geometry, factor: float) -> list[Variant]:
    """Every registered rotary scheme but the one that is drawn, with its base, original length and `factor`; and RoPE
    with other bases."""
    like = plain_rope(scheme, geometry)
    shared = {
        "rope_theta": like.theta,
        "factor": factor,
        "original_max_position_embeddings": getattr(scheme, "original_max_position_embeddings", None),
        "partial_rotary_factor": like.part,
    }
    bases = [replace(like, rope_theta=base) for base in sorted({like.theta, *BASES})]
    plain = [_variant(rope, geometry, base_label(rope)) for rope in bases]
    own = base_label(like) if type(scheme) is RoPE else ""
    others = [cls for cls in SCHEMES if cls is not RoPE and cls is not type(scheme)]
    found = [*plain, *(_variant(example(cls, shared, geometry), geometry, _name(cls)) for cls in others)]
    return [variant for variant in found if variant is not None and variant.name != own]


def plain_rope(scheme: Scheme, geometry: Geometry) -> RoPE:
    """RoPE with the base of a resolved scheme, turning as many dimensions where the scheme leaves that to the model."""
    shared = {f.name: getattr(scheme, f.name) for f in fields(scheme) if f.name in SHARED and f.default is None}
    return RoPE(**shared).resolve(geometry)


def base_label(rope: RoPE) -> str:
    """What a line of plain RoPE is called."""
    return f"rope, base {rope.theta:,.0f}"


def example(cls: type[Scheme], shared: Mapping[str, Any], geometry: Geometry) -> Scheme | None:
    """A scheme of this class with the shared fields, static where it depends on length; None when it needs what only
    its user knows, or cannot have these fields."""
    declared = {f.name: f for f in fields(cls)}
    values = {name: value for name, value in shared.items() if name in declared and value is not None}
    if "original_max_position_embeddings" not in declared:
        values.pop("factor", None)  # another thing of the same name
    if declared.get("partial_rotary_factor") and declared["partial_rotary_factor"].default is not None:
        values.pop("partial_rotary_factor", None)  # the very thing that this scheme varies
    if "mode" in declared and "static" in declared["mode"].metadata.get("options", ()):
        values["mode"] = "static"
    for name, field in declared.items():
        if field.default is MISSING and name not in values:
            if not _is_series(field):
                return None
            values[name] = example_factors(geometry, shared)
    try:
        return cls(**values)
    except SchemeError:
        return None


def example_factors(geometry: Geometry, shared: Mapping[str, Any]) -> list[float]:
    """Factors of pairs from 1 to `factor`, slow pairs most: an example of what a search finds, not a result of one."""
    part = shared.get("partial_rotary_factor") or geometry.partial_rotary_factor
    pairs = int(geometry.head_dim * part) // 2
    return (1 + (shared["factor"] - 1) * torch.linspace(0, 1, pairs, dtype=torch.float64) ** 2).tolist()


def _name(cls: type[Scheme]) -> str:
    made_up = any(_is_series(field) for field in fields(cls))
    return f"{cls.name}, example factors" if made_up else cls.name


def _is_series(field: Any) -> bool:
    return field.default is MISSING and field.metadata["kind"] is tuple


def _variant(scheme: Scheme | None, geometry: Geometry, name: str) -> Variant | None:
    """None for what is no rotary scheme, or not one of this geometry."""
    if scheme is None:
        return None
    try:
        encoding = scheme.resolve(geometry).encodings(geometry).rotary
    except SchemeError:
        return None
    if not isinstance(encoding, RotaryEncoding):
        return None
    return Variant(name, encoding.inv_freq, geometry.head_dim // 2)
