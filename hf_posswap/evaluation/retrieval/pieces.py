"""The tokens that prompts are put together from.

Every text is tokenised once, by itself; keys are put together from tokens. So lengths and places are exact, and a key
has as many tokens in the answer as it has in the prompt: nothing is tokenised again.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.arguments import whole

ALPHABETS = {"digits": "0123456789", "letters": "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
"""What keys can be made of; the first is taken of which the tokenizer gives every symbol one token of its own."""

NAMES = (
    "amber", "birch", "cedar", "coral", "ebony", "fern", "garnet", "hazel", "indigo", "ivory", "jade", "linen", "maple",
    "olive", "onyx", "opal", "pearl", "plum", "quartz", "ruby", "sage", "silver", "topaz", "violet", "willow",
)  # fmt: skip
"""By which tasks with several keys tell them apart."""


class Pieces:
    """Tokens of texts and keys, for one tokenizer.

    Symbols of a key are the tokens that they get after a word and a space: " 7" where the tokenizer glues the space to
    the symbol, else "7" with the space before the key. Every further symbol is the same kind of token.
    """

    def __init__(self, tokenizer: Any, width: int, bos: bool | None = None) -> None:
        """`width` is the number of symbols of a key; `bos`: whether prompts begin with a BOS, None for what the
        tokenizer does itself.

        Raises:
            EvaluationError: no alphabet of single tokens, no BOS where one is asked for, or keys of no symbols.
        """
        if not callable(tokenizer):
            raise EvaluationError(f"Prompts are made of tokens: tokenizer is the model's, not {tokenizer!r:.60}.")
        self.tokenizer, self.width = tokenizer, whole("digits", width)
        self._texts: dict[str, list[int]] = {}
        self.bos = _bos(tokenizer, bos)
        self.alphabet_name, self.alphabet = self._alphabet()

    def text(self, text: str) -> list[int]:
        """The tokens of a text, without special ones."""
        if text not in self._texts:
            self._texts[text] = self.tokenizer(text, add_special_tokens=False).input_ids
        return self._texts[text]

    def before_key(self, text: str) -> list[int]:
        """The tokens of a text that a key follows, whatever stands between them included."""
        tokens = self.text(f"{text} {ALPHABETS[self.alphabet_name][0]}")
        if tokens[-1] != self.alphabet[0]:
            raise EvaluationError(f"The tokenizer joins the key to what stands before it in {text!r}.")
        return tokens[:-1]

    def keys(self, random: Random, count: int) -> list[list[int]]:
        """Keys that are all different, drawn uniformly.

        Raises:
            EvaluationError: there are not so many.
        """
        if count > len(self.alphabet) ** self.width:
            raise EvaluationError(f"There are no {count} keys of {self.width} {self.alphabet_name}: take longer ones.")
        found: dict[tuple[int, ...], None] = {}
        while len(found) < count:
            found[tuple(random.choices(self.alphabet, k=self.width))] = None
        return [list(key) for key in found]

    def _alphabet(self) -> tuple[str, Sequence[int]]:
        for name, symbols in ALPHABETS.items():
            encoded = [self.text(f"is {symbol}") for symbol in symbols]
            last = [tokens[-1] for tokens in encoded]
            if len({tuple(tokens[:-1]) for tokens in encoded}) == 1 and len({*last}) == len(symbols):
                return name, last
        raise EvaluationError(
            f"{type(self.tokenizer).__name__} gives neither digits nor letters one token each, so keys have no fixed "
            "width."
        )


def _bos(tokenizer: Any, wanted: bool | None) -> list[int]:
    token = tokenizer.bos_token_id
    if wanted and token is None:
        raise EvaluationError(f"{type(tokenizer).__name__} has no BOS token: leave bos out.")
    if wanted is None:
        wanted = token is not None and tokenizer("is").input_ids[0] == token
    return [token] if wanted else []
