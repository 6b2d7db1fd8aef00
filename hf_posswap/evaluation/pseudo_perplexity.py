"""Pseudo-perplexity of masked language models: every token in turn hidden and predicted from all others.

    PPPL = exp(-1/N sum_t log p(w_t | w without w_t))      Salazar et al. 2020 (1910.14659); form "token"

With form "within_word_l2r" the later tokens of the same word are hidden together with w_t: else they give away rare
words, which have many tokens (Kauf & Ivanova 2023, 2305.10588). Neither is a likelihood of the text: compare it with no
perplexity, and one form not with the other.

Documents are cut into blocks as long as the longest length can hold, and for each length every block is read in
consecutive windows, special tokens around each. All lengths read the same tokens, to the rest of a division.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.arguments import refuse_batch, refuse_other, wanted_lengths, whole
from hf_posswap.evaluation.documents import Document, Documents, fingerprint_of_documents, long_enough
from hf_posswap.evaluation.fingerprints import fingerprint_of_tokens
from hf_posswap.evaluation.intervals import perplexity_interval
from hf_posswap.evaluation.masked_head import refuse_without_masked_head
from hf_posswap.evaluation.masked_reading import FORMS, TOKEN, WITHIN_WORD, MaskedReader, SpecialTokens
from hf_posswap.evaluation.perplexity import LengthPerplexity
from hf_posswap.evaluation.results import ModelResult, subject_of
from hf_posswap.evaluation.running import Running, run_items
from hf_posswap.evaluation.token_nll import evaluating, refuse_too_long, refuse_unknown_tokens

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, kw_only=True)
class PseudoPerplexityResult(ModelResult):
    """Pseudo-perplexity at several lengths, shortest first."""

    kind: ClassVar[str] = "pseudo_perplexity"

    form: str
    """"token" (Salazar et al. 2020) or "within_word_l2r" (Kauf & Ivanova 2023)."""
    positions: int | None
    """Tokens of each window that were drawn and scored; None: all."""
    seed: int
    """Of that draw."""
    special_tokens: int
    """Around each window: counted in its length, not scored."""
    documents: int
    skipped: tuple[int, ...]
    """Indices of the documents too short for the longest length, which no length read."""
    lengths: tuple[LengthPerplexity, ...]


def pseudo_perplexity(
    model: Any,
    documents: Documents,
    lengths: Sequence[int],
    *,
    tokenizer: Any = None,
    mask_token_id: int | None = None,
    cls_token_id: int | None = None,
    sep_token_id: int | None = None,
    form: str = TOKEN,
    positions: int | None = None,
    seed: int = 0,
    tokens_per_batch: int = 8192,
    **run: "Unpack[Running]",
) -> PseudoPerplexityResult:
    """Pseudo-perplexity at each of `lengths` (tokens that the model reads at once, special ones among them).

    Every token scored costs a forward pass of its whole window; there is no padding, and no logits but its own.
    Documents too short for the longest length are skipped at all lengths and reported. `bits_per_byte` is of the bytes
    that the tokens scored stand for.

    Args:
        tokenizer: has the mask token, and shows the special tokens around a window by those that it puts around a text.
            Instead of it `mask_token_id`, with `cls_token_id` in front of each window and `sep_token_id` behind it
            where they are given.
        form: "token" or "within_word_l2r" (see the module); the latter needs `Document.words`.
        positions: score a sample of so many tokens of each window, drawn by `seed` and the text; all by default.
        tokens_per_batch: tokens that go through the model at once, at most, or one window.
        run: `accelerator`, `state` and `progress`: see `Running`.

    Raises:
        EvaluationError: no masked language model; an argument that is none of the above; token ids that are none; no
            document is long enough; more tokens than the model has positions for; or a likelihood that is not finite.
    """
    refuse_without_masked_head(model)
    special = SpecialTokens.of(tokenizer, mask_token_id, cls_token_id, sep_token_id)
    wanted = wanted_lengths(lengths, len(special) + 1)
    refuse_other("form", form, FORMS)
    refuse_batch(tokens_per_batch)
    if positions is not None:
        whole("positions", positions)
    refuse_too_long(model, wanted[-1])
    kept, skipped = long_enough(documents, wanted[-1] - len(special))
    _check_documents(model, kept, special, form)
    readers = [MaskedReader(model, special, n, wanted[-1], form, positions, seed, tokens_per_batch) for n in wanted]
    items = [(reader, document) for reader in readers for document in kept]
    settings: dict[str, Any] = {"measurement": "pseudo_perplexity", "documents": fingerprint_of_documents(kept)}
    settings |= {"words": [fingerprint_of_tokens(d.words) for d in kept if form == WITHIN_WORD and d.words is not None]}
    settings |= {"special": [special.mask, special.before, special.after], "lengths": wanted, "form": form}
    settings |= {"positions": positions, "seed": seed, "tokens_per_batch": tokens_per_batch}
    with evaluating(model):
        sizes = [reader.tokens_scored(document) * reader.length for reader, document in items]
        done = run_items(lambda i: items[i][0].nll(items[i][1]), sizes, model=model, settings=settings, **run)
    found: list[LengthPerplexity] = []
    for i, reader in enumerate(readers):
        part = slice(i * len(kept), (i + 1) * len(kept))
        shortest = found[0].perplexity if found else None
        found.append(_at_length(reader, kept, done.values[part], sum(done.seconds[part]), shortest))
    return PseudoPerplexityResult(
        subject=subject_of(model),
        cost=done.cost,
        form=form,
        positions=positions,
        seed=seed,
        special_tokens=len(special),
        documents=len(kept) + len(skipped),
        skipped=skipped,
        lengths=tuple(found),
    )


def _at_length(
    reader: MaskedReader, documents: list[Document], nll: list[float], seconds: float, shortest: float | None
) -> LengthPerplexity:
    tokens = [reader.tokens_scored(document) for document in documents]
    read = [reader.bytes_scored(document) for document in documents]
    value, interval = perplexity_interval(nll, tokens)
    return LengthPerplexity(
        length=reader.length,
        windows=sum(len(reader.windows(document.input_ids)) for document in documents),
        tokens=sum(tokens),
        nll=sum(nll) / sum(tokens),
        perplexity=value,
        interval=interval,
        bits_per_byte=sum(nll) / math.log(2) / sum(read) if all(read) else None,
        ratio=value / (shortest or value),
        seconds=seconds,
        document_nll=tuple(nll),
        document_tokens=tuple(tokens),
    )


def _check_documents(model: Any, documents: list[Document], special: SpecialTokens, form: str) -> None:
    refuse_unknown_tokens(model, torch.tensor([special.mask, *special.before, *special.after]))
    for document in documents:
        refuse_unknown_tokens(model, document.input_ids)
    if form == WITHIN_WORD and any(document.words is None for document in documents):
        raise EvaluationError(
            f'The form "{WITHIN_WORD}" has to know the word of each token: give documents words, or take "{TOKEN}".'
        )
