"""Perplexity at several lengths, on the same text.

Protocol "disjoint": documents are cut into blocks of the longest length, and for each length every block is read in
consecutive windows of exactly that many tokens, each window on its own. No two windows share a token, and every token
of a window but its first is scored; so a token has between 1 and length - 1 tokens of context. All lengths read the
same tokens (to the rest of a division, where the longest is no multiple of a length): what differs between them is the
length alone. No token is put in front of a window. This is not a sliding window, which would score each token with a
full context.
"""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.token_nll import refuse_too_long, token_nll


@dataclass(frozen=True)
class LengthPerplexity:
    """One length of a `PerplexityResult`."""

    window: int
    """Tokens in a window."""
    windows: int
    tokens: int
    """Tokens scored: `windows * (window - 1)`."""
    nll: float
    """Mean over the tokens scored, in nats."""
    perplexity: float
    ratio: float
    """Perplexity over that at the shortest length."""
    seconds: float


@dataclass(frozen=True)
class PerplexityResult:
    """Perplexity at several lengths, shortest first."""

    protocol: str
    documents: int
    skipped: tuple[int, ...]
    """Indices of the documents shorter than the longest length, which no length read."""
    lengths: tuple[LengthPerplexity, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return json.loads(json.dumps(asdict(self)))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "PerplexityResult":
        """The inverse of `to_dict`.

        Raises:
            EvaluationError: these are not the fields of a result.
        """
        try:
            lengths = tuple(LengthPerplexity(**length) for length in values["lengths"])
            return cls(**{**values, "skipped": tuple(values["skipped"]), "lengths": lengths})
        except (TypeError, KeyError) as error:
            raise EvaluationError(f"This is no saved perplexity result: {error}.") from error

    def to_json(self) -> str:
        """JSON text; `from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "PerplexityResult":
        """The inverse of `to_json`.

        Raises:
            EvaluationError: the text is no result.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise EvaluationError(f"This is no JSON: {error}.") from error
        return cls.from_dict(values)


def perplexity(
    model: Any,
    documents: Sequence[Tensor],
    lengths: Sequence[int],
    *,
    tokens_per_batch: int = 8192,
    progress: bool = False,
) -> PerplexityResult:
    """Token-weighted perplexity at each of `lengths`, on the same text in disjoint windows (see the module).

    `documents` are token ids, `[L]` each; those shorter than the longest length are skipped and reported. Perplexity is
    `exp(sum of nll / tokens scored)` over all windows of all documents. At most `tokens_per_batch` tokens go through
    the model at once, or one window; `progress` shows a bar.

    Raises:
        EvaluationError: as `token_nll`; no document is long enough; lengths below 2; or a model whose outputs are
            not finite.
    """
    wanted = sorted({int(length) for length in lengths})
    if not wanted or wanted[0] < 2:
        raise EvaluationError(f"lengths are one or more numbers of tokens from 2 up, not {list(lengths)}.")
    refuse_too_long(model, wanted[-1])
    blocks, skipped = _blocks(documents, wanted[-1])
    results: list[LengthPerplexity] = []
    with tqdm(total=len(wanted) * blocks.numel(), disable=not progress, unit="token", unit_scale=True) as bar:
        for window in wanted:
            shortest = results[0].perplexity if results else None
            results.append(_at_length(model, blocks, window, tokens_per_batch, shortest, bar))
            bar.update(blocks.numel() - results[-1].windows * window)
    return PerplexityResult("disjoint", len(documents), skipped, tuple(results))


def _blocks(documents: Sequence[Tensor], length: int) -> tuple[Tensor, tuple[int, ...]]:
    """All whole blocks `[N, length]`, and the indices of the documents that have none."""
    for document in documents:
        if document.dim() != 1:
            raise EvaluationError(f"A document is a tensor of token ids [length], not {list(document.shape)}.")
    skipped = tuple(i for i, document in enumerate(documents) if len(document) < length)
    kept = [document.unfold(0, length, length) for document in documents if len(document) >= length]
    if not kept:
        longest = max((len(document) for document in documents), default=0)
        raise EvaluationError(
            f"None of the {len(documents)} documents has {length} tokens (the longest has {longest}): take longer text "
            "or shorter lengths."
        )
    return torch.cat(kept), skipped


def _at_length(
    model: Any, blocks: Tensor, window: int, tokens_per_batch: int, shortest: float | None, bar: Any
) -> LengthPerplexity:
    windows = blocks.unfold(1, window, window).flatten(0, 1)
    total, started = 0.0, time.perf_counter()
    for batch in windows.split(max(1, tokens_per_batch // window)):
        total += token_nll(model, batch).sum(dtype=torch.float64).item()
        bar.update(batch.numel())
    if not math.isfinite(total):
        raise EvaluationError(f"The model gives a likelihood that is not finite at {window} tokens.")
    tokens = len(windows) * (window - 1)
    nll = total / tokens
    value = math.exp(nll) if nll < 700 else math.inf
    return LengthPerplexity(
        window=window,
        windows=len(windows),
        tokens=tokens,
        nll=nll,
        perplexity=value,
        ratio=value / (shortest or value),
        seconds=time.perf_counter() - started,
    )
