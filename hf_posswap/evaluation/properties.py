"""What a scheme guarantees, checked by numbers: a table in the terms of the surveys.

The list is that of Dufter et al. 2102.11090 and of Wang et al. (ICLR 2021): positions told apart, dependence on
relative distance, monotonicity; and, since Vaswani et al. 1706.03762, values that stay bounded, more positions than in
training, and no chance in them.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from hf_posswap.evaluation.property_checks import CHECKS, Property, in_all, is_deterministic
from hf_posswap.evaluation.results import Result
from hf_posswap.profiles.effects import effects_of
from hf_posswap.profiles.without_model import EXAMPLE, resolved_alone, shown_length
from hf_posswap.schemes.base import Geometry, Scheme


@dataclass(frozen=True, kw_only=True)
class Properties(Result):
    """All properties of one scheme on one geometry."""

    kind: ClassVar[str] = "properties"

    scheme: dict[str, Any]
    causal: bool
    length: int
    """Positions that were looked at, but for what says otherwise."""
    drawn: bool
    """Learned parameters that start at zero were drawn from N(0, 1), as zeros would have no properties; what does not
    hold then can still be learned."""
    properties: tuple[Property, ...]


def properties(scheme: Scheme | str, geometry: Geometry = EXAMPLE, *, length: int | None = None) -> Properties:
    """Measures what the scheme builds for this geometry; nothing is looked up, so a new scheme is covered at once.

    `length` None: as many positions as the scheme extends to, at least four times the trained length, at most a
    table's. Of a `layered` scheme a property holds when it does in all layers that have positions; positions are told
    apart when they are in one of them.

    Raises:
        SchemeError: the scheme has no meaning for this geometry, or `length` is beyond its table.
    """
    resolved = resolved_alone(scheme, geometry, {"length": length})
    length = length or shown_length(resolved, geometry)
    effects = effects_of(resolved, geometry, draw=True)
    seen = [effect for effect in effects if effect.modules] or effects
    found = [in_all(check, seen, length) for check in CHECKS]
    return Properties(
        scheme=resolved.to_dict(),
        causal=geometry.causal,
        length=length,
        drawn=any(effect.drawn for effect in seen),
        properties=(*found, is_deterministic(resolved, geometry, length)),
    )
