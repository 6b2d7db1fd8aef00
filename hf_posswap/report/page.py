"""One HTML page from sections: no network, no JavaScript, light and dark as the reader's system is.

It is built as a tree of elements, never from strings, so whatever results hold (a label such as `<script>`) is text.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from xml.etree.ElementTree import Element, SubElement, tostring

from hf_posswap import __version__
from hf_posswap.report.figures.section import Section
from hf_posswap.report.tables import Table

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Whoever opens the page, their browser fetches nothing and runs nothing."""

MOST_ROWS = 16
"""Of a table that is open from the start."""


@dataclass(frozen=True)
class Embedded:
    """A picture within the page: its bytes in both themes, PNG or SVG."""

    light: bytes
    dark: bytes


def page(title: str, sections: Sequence[Section], pictures: Mapping[str, Embedded], notes: Mapping[str, str]) -> bytes:
    """The page. `pictures` are by the section's name, and so are `notes`: captions of what has no picture here."""
    root = Element("html", lang="en")
    _head(root, title)
    body = SubElement(root, "main")
    _text(body, "h1", title)
    _contents(body, sections)
    for section in sections:
        _section(body, section, pictures.get(section.name), notes.get(section.name, ""))
    _text(SubElement(root, "footer"), "p", f"Made by hf_posswap {__version__}.")
    text = "<!DOCTYPE html>\n" + tostring(root, encoding="unicode", method="html")
    return _printable(text).encode("utf-8", errors="replace")


def _head(root: Element, title: str) -> None:
    head = SubElement(root, "head")
    SubElement(head, "meta", charset="utf-8")
    SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    SubElement(head, "meta", name="color-scheme", content="light dark")
    SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    _text(head, "title", title)
    _text(head, "style", files("hf_posswap.report").joinpath("page.css").read_text(encoding="utf-8"))


def _contents(body: Element, sections: Sequence[Section]) -> None:
    links = SubElement(SubElement(body, "nav", {"aria-label": "Contents"}), "ol")
    for section in sections:
        _text(SubElement(links, "li"), "a", section.title, href=f"#{section.name}")


def _section(body: Element, section: Section, picture: Embedded | None, note: str) -> None:
    place = SubElement(body, "section", id=section.name)
    _text(place, "h2", section.title)
    figure = SubElement(place, "figure")
    if picture is not None:
        _picture(figure, picture, section.alt)
    _text(figure, "figcaption", note or section.caption)
    for i, table in enumerate(section.tables):
        short = i == 0 and len(table.rows) <= MOST_ROWS
        _table(place if short else _fold(place, table.title), table)


def _picture(figure: Element, picture: Embedded, alt: str) -> None:
    """Wider than a phone it scrolls within its frame: scaled down, nobody could read it."""
    frame = {"class": "scrolls", "tabindex": "0", "role": "group", "aria-label": "Picture"}
    both = SubElement(SubElement(figure, "div", frame), "picture")
    SubElement(both, "source", media="(prefers-color-scheme: dark)", srcset=_as_uri(picture.dark))
    SubElement(both, "img", src=_as_uri(picture.light), alt=alt)


def _as_uri(content: bytes) -> str:
    kind = "png" if content.startswith(b"\x89PNG") else "svg+xml"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _table(place: Element, table: Table) -> None:
    frame = {"class": "scrolls", "tabindex": "0", "role": "group", "aria-label": "Table"}
    grid = SubElement(SubElement(place, "div", frame), "table")
    _row(SubElement(grid, "thead"), table, table.columns, heads=len(table.columns))
    body = SubElement(grid, "tbody")
    for row in table.rows:
        _row(body, table, row, heads=1)
    for name, text in {"Markdown": table.markdown(), "LaTeX": table.latex()}.items():
        _text(_fold(place, name), "pre", text)


def _fold(place: Element, name: str) -> Element:
    """What opens without JavaScript."""
    fold = SubElement(place, "details")
    _text(fold, "summary", name)
    return fold


def _row(parent: Element, table: Table, cells: Sequence[str], heads: int) -> None:
    line = SubElement(parent, "tr")
    for column, cell in enumerate(cells):
        style = {"class": "number"} if table.is_number(column) else {}
        scope = {"scope": "col" if heads > 1 else "row"} if column < heads else {}
        _text(line, "th" if scope else "td", cell, **style, **scope)


def _text(parent: Element, tag: str, text: str, **attributes: str) -> None:
    SubElement(parent, tag, attributes).text = text


def _printable(text: str) -> str:
    """Without control characters, which HTML has no place for."""
    return "".join(letter for letter in text if letter >= " " or letter in "\n\t")
