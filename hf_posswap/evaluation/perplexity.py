"""Perplexity at several lengths, on the same text.

Which tokens are read at once and which are scored is the protocol's business: see `windows`. Perplexity is `exp` of the
mean negative log-likelihood, and the mean is over tokens: long windows count for more than short ones. Published
figures often average the means of windows instead; reduction "yarn" does, to be compared with those.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hf_posswap.evaluation.arguments import bos_token_for, layouts_for, refuse_batch, refuse_control, refuse_other
from hf_posswap.evaluation.documents import Document, Documents, fingerprint_of_documents, long_enough
from hf_posswap.evaluation.intervals import Interval, perplexity_interval
from hf_posswap.evaluation.reading import Reader, one_pass_serves_all_prefixes
from hf_posswap.evaluation.results import ModelResult, subject_of
from hf_posswap.evaluation.running import Run, Running, groups, run_items
from hf_posswap.evaluation.token_nll import refuse_non_causal, refuse_too_long, refuse_unknown_tokens
from hf_posswap.evaluation.windows import Layout

if TYPE_CHECKING:
    from typing_extensions import Unpack

REDUCTIONS = ("token", "yarn")


@dataclass(frozen=True)
class _Part:
    """What is measured as one: some documents, at one length or, in one pass, at all."""

    layouts: list[Layout]
    numbers: range
    """Of the documents."""
    tokens: int
    """That the model reads."""


@dataclass(frozen=True)
class LengthPerplexity:
    """One length of a perplexity."""

    length: int
    """Tokens that the model reads at once, a BOS in front of a window among them."""
    windows: int
    tokens: int
    """Tokens scored."""
    nll: float
    """Mean over the tokens scored, in nats; with reduction "yarn" the mean over windows of their means."""
    perplexity: float
    interval: Interval | None
    """Of `perplexity`, over documents; None for a single document."""
    bits_per_byte: float | None
    """Bits for every UTF-8 byte of the text that the tokens scored stand for; None where bytes are not known."""
    ratio: float
    """Perplexity over that at the shortest length."""
    seconds: float
    """Of work. Lengths that come from one pass all have the seconds of that pass."""
    document_nll: tuple[float, ...]
    """Sum over the tokens scored of every document that was read, in nats, for paired comparisons."""
    document_tokens: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PerplexityResult(ModelResult):
    """Perplexity at several lengths, shortest first."""

    kind: ClassVar[str] = "perplexity"

    protocol: str
    reduction: str
    stride: int | None
    """None for protocols without one, and for the default, which depends on the length."""
    bos: str
    """"none", "document" (one in front of each) or "window"."""
    control: str | None
    """"shuffled-context", or None."""
    documents: int
    skipped: tuple[int, ...]
    """Indices of the documents shorter than the longest length, which no length read."""
    lengths: tuple[LengthPerplexity, ...]


def perplexity(
    model: Any,
    documents: Documents,
    lengths: Sequence[int],
    *,
    stride: int | None = None,
    protocol: str = "sliding",
    reduction: str = "token",
    bos: str = "none",
    bos_token_id: int | None = None,
    control: str | None = None,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> PerplexityResult:
    """Perplexity at each of `lengths` (tokens that the model reads at once), shortest first.

    Documents that are shorter than the longest length, a BOS counted, are skipped at all lengths and reported.

    Args:
        stride: of "sliding": new tokens in a window; `min(256, length // 2)` by default, from 1 to the shortest length
            less 1.
        protocol: "sliding", "disjoint" or "prefix" (see `windows`). All lengths of a "prefix" sweep come from one pass
            of the longest where a token depends on nothing behind it; a model whose frequencies depend on the length of
            the call (mode="call"), or whose scheme is not known here, reads each length anew.
        reduction: "token": mean over all tokens scored. "yarn": mean over windows of their means, whatever number of
            tokens they score, as YaRN's published evaluation takes it (with a stride of 256, and bos="window" where
            the tokenizer has a BOS).
        bos: "none"; "document": a BOS in front of each document, which is then scored from its first token; "window": a
            BOS in front of each window. It counts in the length. `bos_token_id` is the config's by default.
        control: "shuffled-context": in every window the tokens in front of those that it scores are put in a random
            order, always the same; a BOS stays in its place. Only with "sliding", where each window but the first of a
            document has such tokens. A model that reads its context loses by it; one that only knows which words are
            about does not.
        tokens_per_batch: tokens that go through the model at once, at most, or one window.
        run: `accelerator`, `state` and `progress`: see `Running`.

    `document_nll` of the result is for paired comparisons between models. With bos="document", a length of n + 1 and a
    stride of n this is the rolling log-likelihood of lm-evaluation-harness with a `max_length` of n, for documents of a
    multiple of n tokens: otherwise its last window reaches back to be of full length, where ours is short.

    Raises:
        EvaluationError: as `token_nll`; an argument that is none of the above; no document is long enough; a BOS is
            asked for and not known; or a likelihood that is not finite.
    """
    layouts = layouts_for(lengths, stride, protocol, bos)
    refuse_other("reduction", reduction, REDUCTIONS)
    refuse_control(control, protocol)
    refuse_batch(tokens_per_batch)
    refuse_non_causal(model)
    refuse_too_long(model, layouts[-1].length)
    kept, skipped = long_enough(documents, layouts[-1].needs)
    bos_token_id = bos_token_for(model, bos, bos_token_id)
    for document in kept:
        refuse_unknown_tokens(model, document.input_ids)
    reader = Reader(model, kept, bos_token_id, control, tokens_per_batch)
    settings: dict[str, Any] = {"measurement": "perplexity", "documents": fingerprint_of_documents(kept)}
    settings |= {"lengths": [layout.length for layout in layouts], "stride": layouts[0].stride}
    settings |= {"protocol": protocol, "bos": bos, "bos_token_id": bos_token_id}
    settings |= {"control": control, "tokens_per_batch": tokens_per_batch}
    parts, done = _read(reader, layouts, settings, run)
    found: list[LengthPerplexity] = []
    for layout in layouts:
        shortest = found[0].perplexity if found else None
        found.append(_at_length(layout, kept, parts, done, reduction, shortest))
    return PerplexityResult(
        subject=subject_of(model),
        cost=done.cost,
        protocol=protocol,
        reduction=reduction,
        stride=layouts[0].stride,
        bos=bos,
        control=control,
        documents=len(kept) + len(skipped),
        skipped=skipped,
        lengths=tuple(found),
    )


def _read(reader: Reader, layouts: list[Layout], settings: dict[str, Any], run: Running) -> tuple[list[_Part], Run]:
    """All documents at all lengths: what was read together, and what came out."""
    at_once = layouts[0].protocol == "prefix" and one_pass_serves_all_prefixes(reader.model)
    parts = []
    for together in [layouts] if at_once else [[layout] for layout in layouts]:
        sizes = [together[-1].tokens_read(len(document)) for document in reader.documents]
        for numbers in groups(sizes, reader.tokens_per_batch):
            parts.append(_Part(together, numbers, sum(sizes[number] for number in numbers)))
    done = run_items(
        lambda i: reader.read(parts[i].layouts, parts[i].numbers),
        [part.tokens for part in parts],
        model=reader.model,
        settings=settings,
        **run,
    )
    return parts, done


def _at_length(
    layout: Layout, documents: list[Document], parts: list[_Part], done: Run, reduction: str, shortest: float | None
) -> LengthPerplexity:
    sums = {number: rest for part in done.values for length, number, *rest in part if length == layout.length}
    document_nll, means = zip(*(sums[number] for number in range(len(documents))), strict=True)
    laid = [layout.windows(len(document)) for document in documents]
    windows, tokens = [len(each) for each in laid], [sum(window.scored for window in each) for each in laid]
    above, below = (document_nll, tokens) if reduction == "token" else (means, windows)
    value, interval = perplexity_interval(above, below)
    return LengthPerplexity(
        length=layout.length,
        windows=sum(windows),
        tokens=sum(tokens),
        nll=sum(above) / sum(below),
        perplexity=value,
        interval=interval,
        bits_per_byte=_bits_per_byte(layout, documents, sum(document_nll)),
        ratio=value / (shortest or value),
        seconds=sum(seconds for seconds, part in zip(done.seconds, parts, strict=True) if layout in part.layouts),
        document_nll=document_nll,
        document_tokens=tuple(tokens),
    )


def _bits_per_byte(layout: Layout, documents: list[Document], nll: float) -> float | None:
    """Nats of all tokens scored, in bits for each byte of theirs."""
    read = 0
    for document in documents:
        if document.byte_ends is None:
            return None
        before = torch.cat([document.byte_ends.new_zeros(1), document.byte_ends])
        for window in layout.windows(len(document)):
            stop = window.stop - layout.row_offset
            read += int(before[stop] - before[stop - window.scored])
    return nll / math.log(2) / read if read else None
