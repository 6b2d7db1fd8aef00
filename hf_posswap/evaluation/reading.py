"""Documents read by a model window by window, windows of equal shape together."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError, FamilyError, SchemeError
from hf_posswap.evaluation.bare import bare
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.token_nll import token_nll
from hf_posswap.evaluation.windows import Layout, Window
from hf_posswap.patching import scheme_of

SHUFFLED = "shuffled-context"

Sums = tuple[int, int, float, float]
"""Length, number of a document, NLL summed over the tokens scored, and summed over windows of their means."""


@dataclass(frozen=True)
class Reader:
    """A model and the documents that it reads."""

    model: Any
    documents: Sequence[Document]
    bos_token_id: int | None
    control: str | None
    tokens_per_batch: int

    def read(self, layouts: Sequence[Layout], numbers: Sequence[int]) -> list[Sums]:
        """What the tokens scored of the documents of these numbers come to; several layouts are prefixes in one pass.

        Raises:
            EvaluationError: it is not finite.
        """
        sums = self._prefixes(layouts, numbers) if len(layouts) > 1 else self._windows(layouts[0], numbers)
        for length, _, nll, _ in sums:
            if not math.isfinite(nll):
                raise EvaluationError(f"The model gives a likelihood that is not finite at {length} tokens.")
        return sums

    def _windows(self, layout: Layout, numbers: Sequence[int]) -> list[Sums]:
        shapes: dict[tuple[int, int], list[tuple[int, Window]]] = {}
        for number in numbers:
            for window in layout.windows(len(self.documents[number])):
                shapes.setdefault((window.stop - window.start, window.scored), []).append((number, window))
        nll, means = dict.fromkeys(numbers, 0.0), dict.fromkeys(numbers, 0.0)
        for (_, scored), windows in shapes.items():
            for (number, _), row in zip(windows, self.nll(layout, windows), strict=True):
                nll[number] += row.sum().item()
                means[number] += row.sum().item() / scored
        return [(layout.length, number, nll[number], means[number]) for number in numbers]

    def _prefixes(self, layouts: Sequence[Layout], numbers: Sequence[int]) -> list[Sums]:
        windows = [(number, layouts[-1].windows(len(self.documents[number]))[0]) for number in numbers]
        shorter = [(layout.length, layout.windows(layout.needs)[0].scored) for layout in layouts]
        sums: list[Sums] = []
        for number, row in zip(numbers, self.nll(layouts[-1], windows), strict=True):
            total = row.cumsum(dim=0).tolist()
            sums += [(length, number, total[scored - 1], total[scored - 1] / scored) for length, scored in shorter]
        return sums

    def nll(self, layout: Layout, windows: Sequence[tuple[int, Window]]) -> Iterator[Tensor]:
        """Of the tokens scored, in float64, for each of some windows of one shape."""
        first = windows[0][1]
        size = max(1, self.tokens_per_batch // (first.stop - first.start + layout.in_front))
        for start in range(0, len(windows), size):
            rows = torch.stack([self._row(layout, *each) for each in windows[start : start + size]])
            yield from token_nll(self.model, rows, last=first.scored).cpu().double()

    def _row(self, layout: Layout, number: int, window: Window) -> Tensor:
        """Token ids of a window, `[L]`, with what `bos` and `control` add."""
        ids = self.documents[number].input_ids
        first = max(0, window.start - layout.row_offset)
        row = ids[first : window.stop - layout.row_offset].long()
        if self.control == SHUFFLED:
            row = _shuffled(row, len(row) - window.scored, (number, window.start, layout.length))
        if layout.bos == "window" or (layout.bos == "document" and window.start == 0):
            row = torch.cat([row.new_tensor([self.bos_token_id]), row])
        return row


def one_pass_serves_all_prefixes(model: Any) -> bool:
    """Whether what this model makes of a token depends on nothing behind it, nor on how much is behind it."""
    try:
        return scheme_of(bare(model)).refuses_cache is None
    except (SchemeError, FamilyError):
        return False


def _shuffled(row: Tensor, context: int, seed: tuple[int, ...]) -> Tensor:
    """The first `context` tokens in another order, which depends on the seed alone."""
    if context < 2:
        return row
    order = torch.from_numpy(np.random.default_rng(seed).permutation(context))
    return torch.cat([row[:context][order.to(row.device)], row[context:]])
