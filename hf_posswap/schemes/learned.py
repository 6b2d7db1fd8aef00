"""A learned table of absolute positions: row p is added to the token at position p.

Gehring et al. 1705.03122; GPT-2; BERT 1810.04805.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from hf_posswap.errors import SchemeError
from hf_posswap.schemes.base import Geometry, InputEncoding, Kind, Scheme
from hf_posswap.schemes.fields import MAX_POSITIONS, choice, number


@dataclass(frozen=True, kw_only=True)
class Learned(Scheme):
    """`E[p]`.

    `max_position_embeddings` rows (None: the trained length). `init`: "original" takes the rows of the model's own
    table and zeros where it has none; "zeros"; "normal" draws with the model's `initializer_range` from `seed`.
    """

    name: ClassVar[str] = "learned"
    kind: ClassVar[Kind] = "input"
    source: ClassVar[str] = "GPT-2, BERT"

    max_position_embeddings: int | None = number(None, low=1, high=MAX_POSITIONS, integer=True, optional=True)
    init: str = choice("original", ("original", "zeros", "normal"))
    seed: int = number(0, low=0, high=2**63 - 1, integer=True)

    def resolve(self, geometry: Geometry) -> "Learned":
        return self.with_defaults(max_position_embeddings=geometry.trained_length)

    def build(self, geometry: Geometry) -> "LearnedEncoding":
        return LearnedEncoding(self, geometry)

    def max_length(self, geometry: Geometry) -> int | None:
        return self.max_position_embeddings

    def limit(self) -> int | None:
        return self.max_position_embeddings


class LearnedEncoding(InputEncoding):
    """`weight [N, E]`, under the same name in a checkpoint as the table of a stock model."""

    def __init__(self, scheme: Learned, geometry: Geometry) -> None:
        super().__init__()
        rows = scheme.max_position_embeddings
        assert rows is not None
        self.starts_from_original = scheme.init == "original"
        self.weight = nn.Parameter(torch.zeros(rows, geometry.hidden_size))
        if scheme.init == "normal" and self.weight.device.type != "meta":
            generator = torch.Generator().manual_seed(scheme.seed)
            drawn = torch.randn(rows, geometry.hidden_size, generator=generator, device="cpu")
            self.weight.data.copy_(drawn * geometry.initializer_range)

    def take(self, rows: Tensor) -> None:
        """Starts from a copy of `rows [N, E]`, in their dtype and on their device."""
        self.weight = nn.Parameter(rows.detach().clone())

    def forward(self, position_ids: Tensor) -> Tensor:
        # A lookup past the end is an unreadable assertion on a GPU; where values are free to read, say it.
        if position_ids.device.type == "cpu" and not torch.compiler.is_compiling() and position_ids.numel():
            beyond = int(position_ids.max()) + 1
            if beyond > len(self.weight):
                raise SchemeError(
                    f"Position {beyond - 1} is beyond the learned table of {len(self.weight)}: shorten the input or "
                    f"extend(model, {beyond})."
                )
        return nn.functional.embedding(position_ids, self.weight)
