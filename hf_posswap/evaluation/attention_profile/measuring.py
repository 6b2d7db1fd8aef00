"""Attention scores and weights by distance, of all windows that a model reads."""

from collections.abc import Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.arguments import refuse_batch
from hf_posswap.evaluation.attention_profile.observing import observed_layers, refuse_unobservable
from hf_posswap.evaluation.attention_profile.results import AttentionProfile, HeadProfile
from hf_posswap.evaluation.attention_profile.rotation import rotation_of
from hf_posswap.evaluation.base_model import batches, whole_windows
from hf_posswap.evaluation.documents import Documents, fingerprint_of_documents
from hf_posswap.evaluation.results import subject_of
from hf_posswap.evaluation.running import Running, run_items

if TYPE_CHECKING:
    from typing_extensions import Unpack


def attention_profile(
    model: Any,
    documents: Documents,
    length: int,
    *,
    buckets: int = 32,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> AttentionProfile:
    """Mean attention score and weight by distance for every head of every layer, and which frequencies it uses.

    All whole windows of `length` tokens of each document are read, by causal models or encoders. Distances count
    tokens, not `position_ids`, in at most `buckets` buckets: single distances first, then by a constant ratio. At most
    `tokens_per_batch` tokens go through the model at once, or one window; `run` is described at `Running`.

    Whatever attention implementation is set, what is shown is computed by writing scores out; the model comes back with
    its own. There is no dropout.

    Raises:
        EvaluationError: no document is long enough; a model that does not call its attention through transformers'
            attention interface, or does more there than scores, a mask and a softmax; or scores that are not finite.
    """
    if not isinstance(buckets, Integral) or buckets < 2:
        raise EvaluationError(f"buckets is a whole number from 2 up, not {buckets!r:.60}.")
    refuse_batch(tokens_per_batch)
    kept, windows, skipped = whole_windows(model, documents, length)
    parts, starts = batches(torch.cat(windows), tokens_per_batch), bucket_starts(length, buckets)
    refuse_unobservable(model, parts[0])
    rotation = rotation_of(model)

    def measure(item: int) -> list[dict[str, Any]]:
        return [layer.values(starts) for layer in observed_layers(model, parts[item], rotation)]

    settings = {"measurement": "attention_profile", "documents": fingerprint_of_documents(kept), "length": length}
    settings |= {"buckets": buckets, "tokens_per_batch": tokens_per_batch}
    done = run_items(measure, [part.numel() for part in parts], model=model, settings=settings, **run)
    read, inv_freq = sum(map(len, windows)), () if rotation is None else rotation.inv_freq
    layers = enumerate(zip(*done.values, strict=True))
    return AttentionProfile(
        subject=subject_of(model),
        cost=done.cost,
        length=length,
        documents=len(kept),
        skipped=skipped,
        windows=read,
        distances=tuple(starts),
        inv_freq=inv_freq,
        heads=tuple(h for i, sums in layers for h in _heads(i, _added(sums), read, length, len(inv_freq))),
    )


def bucket_starts(length: int, buckets: int) -> list[int]:
    """The first distance of each bucket of the distances 0 to `length - 1`."""
    ratio = length ** (1 / (buckets - 1))
    return sorted({0, *(min(round(ratio**i), length - 1) for i in range(buckets - 1))})


def _added(values: tuple[dict[str, Any], ...]) -> dict[str, Tensor]:
    """`LayerSums.values` of all parts, in order."""
    tensors = [{name: torch.tensor(sums, dtype=torch.float64) for name, sums in part.items()} for part in values]
    return {name: torch.stack([part[name] for part in tensors]).sum(dim=0) for name in tensors[0]}


def _heads(layer: int, sums: dict[str, Tensor], windows: int, length: int, pairs: int) -> Iterator[HeadProfile]:
    """Means of sums over so many windows, head by head; `pairs` of the head turn."""
    queries, seen = windows * length, sums["seen"]
    scores, weights = (_or_none(sums["scores"], seen), (sums["weights"] / seen.clamp(min=1)).tolist())
    shares = _shares(sums, len(weights), pairs)
    for head in range(len(weights)):
        yield HeadProfile(
            layer=layer,
            head=head,
            score=scores[head],
            weight=tuple(weights[head]),
            mean_distance=sums["distance"][head].item() / queries,
            diagonal=sums["diagonal"][head].item() / queries,
            previous=sums["previous"][head].item() / (queries - windows),
            first=sums["first"][head].item() / queries,
            frequencies=shares[head],
        )


def _or_none(sums: Tensor, seen: Tensor) -> list[tuple[float | None, ...]]:
    counts = seen[0].tolist()
    return [tuple(s / n if n else None for s, n in zip(row, counts, strict=True)) for row in sums.tolist()]


def _shares(sums: dict[str, Tensor], heads: int, pairs: int) -> list[tuple[float, ...]]:
    """Of each pair that turns in the size of a head's scores."""
    if "query_norms" not in sums:
        return [(0.0,) * pairs] * heads
    queries, keys = sums["query_norms"], sums["key_norms"]
    sizes = queries * keys.repeat_interleave(len(queries) // len(keys), dim=0)
    whole = sizes.sum(dim=1, keepdim=True).clamp(min=torch.finfo(sizes.dtype).tiny)  # a head may be all zeros
    return [tuple(row) for row in (sizes / whole)[:, :pairs].tolist()]
