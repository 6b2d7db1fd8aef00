"""Mean negative log-likelihood by position: where in its context a model breaks.

All whole blocks of `length` tokens of each document are read, each on its own. A token counts at its own position among
the tokens that the model reads, a BOS included; the one at position 0 has nothing before it and is not scored.

Buckets have even widths: bucket b of n holds the positions from `length * b // n` to `length * (b + 1) // n - 1`. A
model that reads well gets better from one to the next, or stays as it was; one that breaks gets worse from its trained
length on, which is in `subject`.
"""

from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.arguments import bos_token_for, layouts_for, refuse_batch
from hf_posswap.evaluation.documents import Documents, fingerprint_of_documents, long_enough
from hf_posswap.evaluation.intervals import Interval, ratio_interval
from hf_posswap.evaluation.reading import Reader
from hf_posswap.evaluation.results import ModelResult, subject_of
from hf_posswap.evaluation.running import Running, groups, run_items
from hf_posswap.evaluation.token_nll import refuse_non_causal, refuse_too_long, refuse_unknown_tokens
from hf_posswap.evaluation.windows import Layout

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class PositionBucket:
    """Tokens at positions `start` to `stop - 1` of their windows."""

    start: int
    stop: int
    tokens: int
    """Scored: those at position 0 are not."""
    nll: float
    """Mean, in nats."""
    interval: Interval | None
    """Of `nll`, over documents; None for a single document."""


@dataclass(frozen=True, kw_only=True)
class NllByPosition(ModelResult):
    """One bucket after the other."""

    kind: ClassVar[str] = "nll_by_position"

    length: int
    """Tokens that the model reads at once, a BOS among them."""
    windows: int
    documents: int
    skipped: tuple[int, ...]
    """Indices of the documents that are too short."""
    bos: str
    """"none", "document" (one in front of each) or "window"."""
    buckets: tuple[PositionBucket, ...]


def nll_by_position(
    model: Any,
    documents: Documents,
    length: int,
    *,
    buckets: int = 32,
    bos: str = "none",
    bos_token_id: int | None = None,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> NllByPosition:
    """Mean NLL of the tokens in each of `buckets` ranges of positions (see the module), one exact pass per block.

    Args:
        length: tokens that the model reads at once. Shorter documents are skipped and reported.
        buckets: at most `length // 2`, which more come down to.
        bos: "none", "document" or "window", as in `perplexity`; `bos_token_id` is the config's by default.
        tokens_per_batch: tokens that go through the model at once, at most, or one block.
        run: `accelerator`, `state` and `progress`: see `Running`.

    Raises:
        EvaluationError: as `token_nll`; an argument that is none of the above; no document is long enough; a BOS is
            asked for and not known; or a likelihood that is not finite.
    """
    (layout,) = layouts_for([length], None, "disjoint", bos)
    refuse_batch(tokens_per_batch)
    borders = _borders(layout.length, buckets)
    refuse_non_causal(model)
    refuse_too_long(model, layout.length)
    kept, skipped = long_enough(documents, layout.needs)
    for document in kept:
        refuse_unknown_tokens(model, document.input_ids)
    reader = Reader(model, kept, bos_token_for(model, bos, bos_token_id), None, tokens_per_batch)
    sizes = [layout.tokens_read(len(document)) for document in kept]
    items = groups(sizes, tokens_per_batch)
    settings: dict[str, Any] = {"measurement": "nll_by_position", "documents": fingerprint_of_documents(kept)}
    settings |= {"length": layout.length, "borders": borders, "bos": bos, "bos_token_id": reader.bos_token_id}
    settings |= {"tokens_per_batch": tokens_per_batch}
    done = run_items(
        lambda i: _sums(reader, layout, items[i], borders),
        [sum(sizes[number] for number in numbers) for numbers in items],
        model=model,
        settings=settings,
        **run,
    )
    windows = [len(layout.windows(len(document))) for document in kept]
    return NllByPosition(
        subject=subject_of(model),
        cost=done.cost,
        length=layout.length,
        windows=sum(windows),
        documents=len(kept) + len(skipped),
        skipped=skipped,
        bos=bos,
        buckets=_buckets(borders, windows, [sums for item in done.values for sums in item]),
    )


def _borders(length: int, buckets: int) -> list[int]:
    if not isinstance(buckets, Integral) or buckets < 1:
        raise EvaluationError(f"buckets is a whole number from 1 up, not {buckets!r:.60}.")
    count = min(int(buckets), length // 2)
    return [length * i // count for i in range(count + 1)]


def _sums(reader: Reader, layout: Layout, numbers: range, borders: list[int]) -> list[list[float]]:
    """For every document of these numbers the NLL in each bucket."""
    windows = [(number, window) for number in numbers for window in layout.windows(len(reader.documents[number]))]
    by_position = {number: torch.zeros(layout.length, dtype=torch.float64) for number in numbers}
    for (number, _), nll in zip(windows, reader.nll(layout, windows), strict=True):
        by_position[number][1:] += nll
    for total in by_position.values():
        if not total.isfinite().all():
            raise EvaluationError(f"The model gives a likelihood that is not finite at {layout.length} tokens.")
    return [[part.sum().item() for part in total.tensor_split(borders[1:-1])] for total in by_position.values()]


def _buckets(borders: list[int], windows: list[int], sums: list[list[float]]) -> tuple[PositionBucket, ...]:
    found = []
    for i, (start, stop) in enumerate(pairwise(borders)):
        nll = [document[i] for document in sums]
        tokens = [count * (stop - max(1, start)) for count in windows]
        found.append(PositionBucket(start, stop, sum(tokens), sum(nll) / sum(tokens), ratio_interval(nll, tokens)))
    return tuple(found)
