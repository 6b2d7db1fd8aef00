"""LongPPL: perplexity on the tokens that need the long context. Fang et al. 2410.23771.

    gain(t) = log p_e(x_t | long context) - log p_e(x_t | short context)
    t is a key token if gain(t) > alpha and log p_e(x_t | long context) > beta
    LongPPL = exp(mean over key tokens of -log p(x_t | long context))

p is the model's, p_e the evaluator's; alpha is `gain_threshold`, beta `likelihood_threshold`. The mean is over the key
tokens of all documents (the authors' script averages the perplexities of documents).

Documents are cut into whole blocks of `length` tokens, and the long context of a token is all that is before it in its
block. Its short context is from `short_length - stride` to `short_length - 1` tokens: windows of `short_length` tokens
slide over the block by `stride` tokens, and each gives that of its last `stride`. Candidates are the tokens behind at
least `short_length` others, whose contexts do differ. The paper's setting (a short context of 4096 tokens and more,
steps of 1024) is short_length=5120 and stride=1024.
"""

import math
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.arguments import layouts_for, refuse_batch
from hf_posswap.evaluation.base_model import batches, whole_windows
from hf_posswap.evaluation.documents import Documents, fingerprint_of_documents
from hf_posswap.evaluation.intervals import Interval, perplexity_interval
from hf_posswap.evaluation.results import ModelResult, subject_of
from hf_posswap.evaluation.running import Running, identity_of, run_items
from hf_posswap.evaluation.token_nll import refuse_non_causal, refuse_too_long, token_nll

if TYPE_CHECKING:
    from typing_extensions import Unpack

ITSELF = "the model itself"


@dataclass(frozen=True, kw_only=True)
class LongPpl(ModelResult):
    """Perplexity on key tokens, and on all that the long context could help."""

    kind: ClassVar[str] = "long_ppl"

    length: int
    short_length: int
    stride: int
    evaluator: str
    """The model that chose the key tokens, with its scheme; "the model itself": compare such results with no other."""
    gain_threshold: float
    """alpha: the long context helps a key token by more nats than these."""
    likelihood_threshold: float
    """beta: with the long context a key token's log-likelihood is above this, in nats."""
    documents: int
    skipped: tuple[int, ...]
    """Indices of the documents that are too short."""
    tokens: int
    """Candidates."""
    key_tokens: int
    perplexity: float | None
    """On the key tokens; None where the evaluator found none."""
    interval: Interval | None
    """Of `perplexity`, over the documents with key tokens; None for fewer than two."""
    all_perplexity: float
    """On all candidates."""
    all_interval: Interval | None
    """Of `all_perplexity`, over documents; None for a single document."""


def long_ppl(
    model: Any,
    documents: Documents,
    length: int,
    short_length: int,
    *,
    evaluator: Any = None,
    gain_threshold: float = 2.0,
    likelihood_threshold: float = -2.0,
    stride: int | None = None,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> LongPpl:
    """Perplexity of `model` on the tokens that `evaluator` predicts much better from a long context (see the module).

    To compare models, give all of them one evaluator: a strong one that reads `length` tokens well, with the same token
    ids. Without an evaluator the model chooses for itself those tokens that it predicts well from the long context: one
    that reads badly gets a good figure on few tokens. What it finds is in `key_tokens`; its perplexity compares none.

    Args:
        length: tokens in a block. Shorter documents are skipped and reported.
        gain_threshold, likelihood_threshold: by default 2 and -2 nats, the paper's alpha and beta.
        stride: new tokens in a window of short context; a fifth of `short_length` by default, as in the paper.
        tokens_per_batch: tokens that go through a model at once, at most, or one block.
        run: `accelerator`, `state` and `progress`: see `Running`.

    Raises:
        EvaluationError: as `token_nll`, for either model; an argument that is none of the above; models of different
            vocabularies; no document is long enough; or a likelihood that is not finite.
    """
    refuse_batch(tokens_per_batch)
    (short,) = layouts_for([short_length], stride, "sliding", "none")
    refuse_non_causal(model)
    kept, blocks, skipped = whole_windows(model, documents, length)
    for name, value in (("gain_threshold", gain_threshold), ("likelihood_threshold", likelihood_threshold)):
        if isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value):
            raise EvaluationError(f"{name} is a number of nats, not {value!r:.60}.")
    if short.length >= length:
        raise EvaluationError(f"short_length is below the length of {length} tokens, not {short_length}.")
    judge = model if evaluator is None else evaluator
    _refuse_evaluator(model, judge, length)
    step = short.stride or max(1, short.length // 5)
    choice = _Choice(model, judge, short.length, step, gain_threshold, likelihood_threshold, tokens_per_batch)
    settings: dict[str, Any] = {"measurement": "long_ppl", "documents": fingerprint_of_documents(kept)}
    settings |= {
        "evaluator": None if judge is model else identity_of(judge),
        "length": length,
        "short_length": choice.short_length,
    }
    settings |= {"stride": choice.stride, "thresholds": [gain_threshold, likelihood_threshold]}
    settings |= {"tokens_per_batch": tokens_per_batch}
    sizes = [each.numel() for each in blocks]
    done = run_items(lambda i: choice.sums(blocks[i]), sizes, model=model, settings=settings, **run)
    key_nll, key_tokens, all_nll, tokens = zip(*done.values, strict=True)
    perplexity, interval = perplexity_interval(key_nll, key_tokens) if any(key_tokens) else (None, None)
    all_perplexity, all_interval = perplexity_interval(all_nll, tokens)
    return LongPpl(
        subject=subject_of(model),
        cost=done.cost,
        length=length,
        short_length=choice.short_length,
        stride=choice.stride,
        evaluator=ITSELF if judge is model else _name(judge),
        gain_threshold=choice.gain_threshold,
        likelihood_threshold=choice.likelihood_threshold,
        documents=len(kept) + len(skipped),
        skipped=skipped,
        tokens=sum(tokens),
        key_tokens=sum(key_tokens),
        perplexity=perplexity,
        interval=interval,
        all_perplexity=all_perplexity,
        all_interval=all_interval,
    )


@dataclass(frozen=True)
class _Choice:
    """How key tokens are chosen, and what the model makes of them."""

    model: Any
    evaluator: Any
    short_length: int
    stride: int
    gain_threshold: float
    likelihood_threshold: float
    tokens_per_batch: int

    def sums(self, blocks: Tensor) -> tuple[float, int, float, int]:
        """NLL in nats over the key tokens of `blocks [N, L]`, their number, and both for all candidates.

        Raises:
            EvaluationError: a likelihood is not finite.
        """
        candidates = blocks.shape[1] - self.short_length
        chosen = self._nll(self.evaluator, blocks, candidates)
        gain = torch.stack([self._short(block) for block in blocks]) - chosen
        key = (gain > self.gain_threshold) & (-chosen > self.likelihood_threshold)
        nll = chosen if self.evaluator is self.model else self._nll(self.model, blocks, candidates)
        return nll[key].sum().item(), int(key.sum()), nll.sum().item(), nll.numel()

    def _short(self, block: Tensor) -> Tensor:
        """`[L - S]`: of the candidates of `block [L]`, given their short contexts (S: `short_length`)."""
        windows = block.unfold(0, self.short_length, self.stride)[1:]
        rest = (len(block) - self.short_length) % self.stride
        parts = [self._nll(self.evaluator, windows, self.stride).flatten()] if len(windows) else []
        if rest:  # the last window is cut where the block ends
            window = block[len(block) - self.short_length + self.stride - rest :]
            parts.append(self._nll(self.evaluator, window[None], rest)[0])
        return torch.cat(parts)

    def _nll(self, model: Any, rows: Tensor, last: int) -> Tensor:
        """`[N, last]` in float64: of the last tokens of `rows [N, L]`."""
        parts = [token_nll(model, batch, last=last).cpu().double() for batch in batches(rows, self.tokens_per_batch)]
        nll = torch.cat(parts)
        if not nll.isfinite().all():
            raise EvaluationError(f"{type(model).__name__} gives a likelihood that is not finite.")
        return nll


def _refuse_evaluator(model: Any, evaluator: Any, length: int) -> None:
    """Raises EvaluationError unless `evaluator` reads `length` tokens of the model's."""
    refuse_non_causal(evaluator)
    refuse_too_long(evaluator, length)
    ours, theirs = (each.get_input_embeddings().weight.shape[0] for each in (model, evaluator))
    if ours != theirs:
        raise EvaluationError(
            f"The model has a vocabulary of {ours} and the evaluator one of {theirs}: take an evaluator with the same "
            "tokenizer, so that a token id means the same to both."
        )


def _name(model: Any) -> str:
    subject = subject_of(model)
    return subject.model if subject.label == type(model).__name__ else f"{subject.model} ({subject.label})"
