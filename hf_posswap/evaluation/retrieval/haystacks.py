"""What surrounds the answers: exactly as many tokens as are asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from hf_posswap.evaluation.documents import Document, fingerprint_of_documents
from hf_posswap.evaluation.fingerprints import fingerprint_of_settings

FILLER = (
    " Rain falls on the roof. The road runs along the river. A lamp stands by the window. Nobody is in a hurry, and "
    "the kettle sings. Later the rain stops, and then it begins again."
)
"""Repeated without end. It has no digits and no capital letters alone, so no key can be in it."""


class Haystack(Protocol):
    """A supply of tokens."""

    @property
    def in_words(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def draw(self, random: Random, size: int) -> list[int]:
        """`size` tokens."""


@dataclass(frozen=True)
class RepeatedText:
    """The same tokens again and again, from their beginning."""

    tokens: Sequence[int]
    in_words: str = "repeated filler sentences"

    @property
    def fingerprint(self) -> str:
        return fingerprint_of_settings(list(self.tokens))

    def draw(self, random: Random, size: int) -> list[int]:
        return (list(self.tokens) * (size // len(self.tokens) + 1))[:size]


@dataclass(frozen=True)
class Stretches:
    """Consecutive tokens of one document, every possible stretch being as likely as any other."""

    documents: Sequence[Document]

    @property
    def in_words(self) -> str:
        return f"stretches of {len(self.documents)} document{'s' * (len(self.documents) > 1)}"

    @property
    def fingerprint(self) -> str:
        return fingerprint_of_documents(self.documents)

    def draw(self, random: Random, size: int) -> list[int]:
        starts = [len(document) - size + 1 for document in self.documents]
        document = random.choices(self.documents, weights=starts)[0]
        start = random.randrange(len(document) - size + 1)
        return document.input_ids[start : start + size].tolist()
