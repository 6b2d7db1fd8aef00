"""Fixed sinusoids of absolute position. Vaswani et al. 1706.03762, section 3.5."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry, InputEncoding, Kind, Scheme, float64_angles
from hf_posswap.schemes.fields import choice, number


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Scheme):
    """`sin(p * base^(-2k/E))` and the cosine of the same angle, k = 0..E/2-1, times `scale`.

    `layout="interleaved"` (the paper): sine at 2k, cosine at 2k+1. `"concatenated"`: all sines, then all cosines.
    """

    name: ClassVar[str] = "sinusoidal"
    kind: ClassVar[Kind] = "input"
    source: ClassVar[str] = "1706.03762"

    base: float = number(10000.0, low=1.0001, high=1e15)
    layout: str = choice("interleaved", ("interleaved", "concatenated"))
    scale: float = number(1.0, low=0.0, high=1e6)

    def resolve(self, geometry: Geometry) -> "Sinusoidal":
        if geometry.hidden_size % 2:
            raise SchemeError(f"sinusoidal pairs dimensions and needs an even hidden size, not {geometry.hidden_size}.")
        return self

    def build(self, geometry: Geometry) -> "SinusoidalEncoding":
        return SinusoidalEncoding(self, geometry)


class SinusoidalEncoding(InputEncoding):
    """Computed from the positions in float64 at every call, so it has no length.

    A checkpoint gets the table `weight [table_length, E]` that a stock model needs instead; loading it back into this
    module checks nothing and keeps nothing, because the formula is the truth.
    """

    def __init__(self, scheme: Sinusoidal, geometry: Geometry) -> None:
        super().__init__()
        dims = torch.arange(0, geometry.hidden_size, 2, dtype=torch.float64, device="cpu")
        self.frequencies = scheme.base ** (-dims / geometry.hidden_size)
        self.layout, self.scale = scheme.layout, scheme.scale
        self.table_length: int | None = None

    def forward(self, position_ids: Tensor) -> Tensor:
        angles = float64_angles(position_ids, self.frequencies)
        halves = (angles.sin() * self.scale, angles.cos() * self.scale)
        interleaved = self.layout == "interleaved"
        values = torch.stack(halves, dim=-1).flatten(-2) if interleaved else torch.cat(halves, dim=-1)
        return values.to(device=position_ids.device, dtype=self.anchor.dtype)

    def __getattr__(self, name: str) -> Any:
        """`weight`, for those who look up what `state_dict` names: a loader, or torch's distributed checkpoints."""
        if name == "weight" and self.__dict__.get("table_length") is not None:
            return nn.Parameter(self._table(), requires_grad=False)
        return super().__getattr__(name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """A loader that assigns `weight` assigns in vain: the formula is the truth."""
        if name != "weight":
            super().register_parameter(name, param)

    def _table(self) -> Tensor:
        assert self.table_length is not None
        return self(torch.arange(self.table_length, device=self.anchor.device)[None])[0]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.table_length is not None:
            destination[prefix + "weight"] = self._table()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        formula_only = {k: v for k, v in state_dict.items() if k != prefix + "weight"}
        super()._load_from_state_dict(formula_only, prefix, *args)
