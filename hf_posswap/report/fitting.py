"""Pictures made to fit into a page: vectors where they are small, else pixels in few colours, else fewer pixels."""

import io
from collections.abc import Sequence
from pathlib import Path

from hf_posswap.errors import EvaluationError
from hf_posswap.report.page import Embedded

LARGEST_PAGE = 2_000_000
"""Bytes."""
SHARP, SMALL = 1, 2
"""One pixel of so many is kept, each way."""
COLOURS = 256


def refuse_too_large(page: bytes) -> None:
    """Raises EvaluationError when a page is too large without any picture."""
    if len(page) > 0.9 * LARGEST_PAGE:
        raise EvaluationError(
            f"The tables alone make a page of {len(page) / 1e6:.1f} MB, and a report has at most "
            f"{LARGEST_PAGE / 1e6:g} MB: give fewer results."
        )


def fit(names: Sequence[str], folder: Path, page_size: int) -> tuple[dict[str, Embedded], list[str]]:
    """The saved pictures of these names that fit into what `page_size` bytes of text leave of a page, and the names of
    those that do not. What comes last is made small first, and left out first."""
    room = LARGEST_PAGE - page_size
    pictures = {name: _embedded(folder / name, SHARP) for name in names}
    for name in reversed(names):
        if sum(map(_size, pictures.values())) > room:
            pictures[name] = _embedded(folder / name, SMALL)
    for name in reversed(names):
        if sum(map(_size, pictures.values())) > room:
            del pictures[name]
    return pictures, [name for name in names if name not in pictures]


def _embedded(stem: Path, step: int) -> Embedded:
    return Embedded(*(_smallest(stem.with_name(f"{stem.name}-{theme}.svg"), step) for theme in ("light", "dark")))


def _smallest(path: Path, step: int) -> bytes:
    return min(path.read_bytes(), _pixels(path.with_suffix(".png"), step), key=len)


def _size(picture: Embedded) -> int:
    """In a page: base64, and the tags around it."""
    return (len(picture.light) + len(picture.dark)) * 4 // 3 + 256


def _pixels(path: Path, step: int) -> bytes:
    """A PNG in few colours, one of `step` pixels each way."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").reduce(step).quantize(COLOURS).save(buffer, "PNG")
    return buffer.getvalue()
