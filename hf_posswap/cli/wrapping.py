"""Text as wide as a terminal is. Names, options and numbers are never broken."""

import textwrap

WIDTH = 120


def wrapped(text: str, first: str, other: str) -> list[str]:
    """Lines of `text`, `first` before the first and `other` before all others."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )
