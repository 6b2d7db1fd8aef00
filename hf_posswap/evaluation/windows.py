"""Which tokens a model reads at once, and which of them are scored: the protocols of perplexity.

"sliding": windows begin at multiples of the stride and end `length` tokens further on, or where the document ends; each
scores the tokens that no window before it scored. So all tokens are scored but a document's first, and all but those of
the first window with a context of at least `length - stride`. Laid as in the guide to perplexity of transformers.

"disjoint": documents are cut into blocks of the longest length, and for each length every block is read in consecutive
windows of that many tokens. No two windows share a token, and a token has between 1 and `length - 1` tokens of context.
All lengths read the same tokens (to the rest of a division, where the longest is no multiple of a length).

"prefix": the first `length` tokens of each document.
"""

from dataclasses import dataclass

PROTOCOLS = ("sliding", "disjoint", "prefix")
BOS = ("none", "document", "window")
DEFAULT_STRIDE = 256
"""That of YaRN's published evaluation, and half of what the guide to perplexity of transformers takes."""


@dataclass(frozen=True)
class Window:
    """Tokens `start` to `stop - 1` of a row, of which the last `scored` are scored."""

    start: int
    stop: int
    scored: int


@dataclass(frozen=True)
class Layout:
    """How documents are read in windows of `length` tokens. A row is a document, behind a BOS if bos is "document"."""

    protocol: str
    length: int
    """Tokens that the model reads at once, a BOS among them."""
    longest: int
    stride: int | None
    """Of "sliding"; None: the default, `min(256, length // 2)`."""
    bos: str

    @property
    def in_front(self) -> int:
        """Tokens of a window that are not of the row: its BOS."""
        return int(self.bos == "window")

    @property
    def row_offset(self) -> int:
        """Tokens of a row that are not of the document: its BOS."""
        return int(self.bos == "document")

    @property
    def needs(self) -> int:
        """Tokens that a document must have at least to be read at the longest length."""
        return self.longest - self.in_front - self.row_offset

    def tokens_read(self, document: int) -> int:
        """By the model, of a document of so many tokens."""
        return sum(window.stop - window.start + self.in_front for window in self.windows(document))

    def windows(self, document: int) -> list[Window]:
        """Over the row of a document of so many tokens, which are no fewer than `needs`."""
        tokens, room, unscored = document + self.row_offset, self.length - self.in_front, 1 - self.in_front
        if self.protocol == "sliding":
            return _sliding(tokens, room, self.stride or min(DEFAULT_STRIDE, self.length // 2), unscored)
        starts = [0] if self.protocol == "prefix" else _disjoint(tokens, room, self.longest - self.in_front)
        return [Window(start, start + room, room - unscored) for start in starts]


def _sliding(tokens: int, room: int, stride: int, unscored: int) -> list[Window]:
    windows, scored_until = [], unscored
    for start in range(0, tokens, stride):
        stop = min(start + room, tokens)
        windows.append(Window(start, stop, stop - scored_until))
        if stop == tokens:
            break
        scored_until = stop
    return windows


def _disjoint(tokens: int, room: int, block: int) -> list[int]:
    blocks = range(0, tokens - block + 1, block)
    return [start + inside for start in blocks for inside in range(0, block - room + 1, room)]
