"""Documents read by a masked language model: window by window, one hidden token after the other."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.fingerprints import fingerprint_of_settings, fingerprint_of_tokens
from hf_posswap.evaluation.masked_head import logits_at

TOKEN, WITHIN_WORD = FORMS = ("token", "within_word_l2r")
"""What is hidden: the token that is predicted, or with it the later ones of its word."""


@dataclass(frozen=True)
class SpecialTokens:
    """The token that hides others, and those around every window."""

    mask: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    @classmethod
    def of(cls, tokenizer: Any, mask: int | None, front: int | None, end: int | None) -> "SpecialTokens":
        """As a tokenizer puts them around a text, or as given: the mask, one in front and one at the end.

        Raises:
            EvaluationError: there is no mask token, or there are two sources.
        """
        if (tokenizer is None) == (mask is None) or (tokenizer is not None and (front, end) != (None, None)):
            raise EvaluationError(
                "Special tokens come from a tokenizer, or from a mask_token_id, with a cls_token_id and a sep_token_id "
                "where the model is used to them: give the one or the other."
            )
        if mask is not None:
            return cls(mask, *(() if each is None else (each,) for each in (front, end)))
        if tokenizer.mask_token_id is None:
            raise EvaluationError(
                f"{type(tokenizer).__name__} has no mask token: take the tokenizer of a masked language model."
            )
        encoded = tokenizer("a", return_special_tokens_mask=True)
        ids, text = encoded["input_ids"], [i for i, each in enumerate(encoded["special_tokens_mask"]) if not each]
        return cls(tokenizer.mask_token_id, tuple(ids[: text[0]]), tuple(ids[text[-1] + 1 :]))


@dataclass(frozen=True)
class MaskedReader:
    """How documents are read at one length. A window has N = length - special tokens of its document."""

    model: Any
    special: SpecialTokens
    length: int
    longest: int
    form: str
    positions: int | None
    seed: int
    tokens_per_batch: int

    def windows(self, values: Tensor) -> Tensor:
        """`[W, N]` of what a document has by token, `[L]`."""
        room, block = self.length - len(self.special), self.longest - len(self.special)
        return values.cpu().unfold(0, block, block).unfold(1, room, room).flatten(0, 1)

    def tokens_scored(self, document: Document) -> int:
        return len(self._drawn(document)[0])

    def bytes_scored(self, document: Document) -> int:
        """That the tokens scored stand for; 0 where bytes are not known."""
        if document.byte_ends is None:
            return 0
        each = document.byte_ends.diff(prepend=document.byte_ends.new_zeros(1))
        return int(self.windows(each)[self._drawn(document)].sum())

    def nll(self, document: Document) -> float:
        """Of the tokens scored, in nats, summed.

        Raises:
            EvaluationError: it is not finite.
        """
        window, position = self._drawn(document)
        ids, words, total = self.windows(document.input_ids.long()), self._words(document), 0.0
        for rows in torch.arange(len(window)).split(max(1, self.tokens_per_batch // self.length)):
            text, at = ids[window[rows]], position[rows]
            masked = text.masked_fill(_hidden(at, words[window[rows]]), self.special.mask)
            total += self._nll(masked, at, text.gather(1, at[:, None])[:, 0]).cpu().double().sum().item()
        if not math.isfinite(total):
            raise EvaluationError(f"The model gives a likelihood that is not finite at {self.length} tokens.")
        return total

    def _words(self, document: Document) -> Tensor:
        """`[W, N]`: tokens with the same number are hidden from those before them; with -1 alone."""
        if self.form == TOKEN or document.words is None:
            return self.windows(torch.full_like(document.input_ids, -1))
        return self.windows(document.words)

    def _drawn(self, document: Document) -> tuple[Tensor, Tensor]:
        """Windows and positions `[R]` of the tokens scored: the same of a document whatever else is read."""
        count, room = self.windows(document.input_ids).shape
        wanted = room if self.positions is None else min(self.positions, room)
        seed = fingerprint_of_settings([self.seed, room, fingerprint_of_tokens(document.input_ids)])
        generator = torch.Generator().manual_seed(int(seed[:15], 16))
        drawn = [torch.randperm(room, generator=generator)[:wanted].sort().values for _ in range(count)]
        return torch.arange(count).repeat_interleave(wanted), torch.cat(drawn)

    def _nll(self, text: Tensor, position: Tensor, target: Tensor) -> Tensor:
        """Of `target [R]` at `position [R]` of `text [R, N]`: `[R]`."""
        around = (self.special.before, self.special.after)
        before, after = (text.new_tensor(ids).expand(len(text), -1) for ids in around)
        logits = logits_at(self.model, torch.cat([before, text, after], dim=1), position + before.shape[1])
        exact = logits if logits.dtype == torch.float64 else logits.float()
        return cross_entropy(exact, target.to(logits.device), reduction="none")


def _hidden(position: Tensor, words: Tensor) -> Tensor:
    """`[R, N]`: what is masked when the tokens at `position [R]` are predicted, with `words [R, N]`."""
    columns, at = torch.arange(words.shape[1]), position[:, None]
    word = words.gather(1, at)
    return (columns == at) | ((columns > at) & (words == word) & (word >= 0))
