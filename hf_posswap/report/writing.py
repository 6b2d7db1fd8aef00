"""`write_report`: a page, and beside it the pictures as files. All is checked first; the page comes last."""

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tqdm.auto import tqdm

from hf_posswap.errors import EvaluationError
from hf_posswap.evaluation.results import ModelResult, Result
from hf_posswap.report.figures import draw_section, sections_of
from hf_posswap.report.figures.section import Section
from hf_posswap.report.files import FORMATS, save_figure
from hf_posswap.report.fitting import fit, refuse_too_large
from hf_posswap.report.numbers import listed
from hf_posswap.report.page import page
from hf_posswap.report.style import DARK, LIGHT, require_matplotlib

THEMES = {"light": LIGHT, "dark": DARK}
MOST_NAMED = 4
"""Models in a title."""


def write_report(
    results: Sequence[Result],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    title: str | None = None,
    progress: bool = False,
) -> Path:
    """Writes one self-contained page, and every picture as PNG and SVG, light and dark, into `<stem>_files` beside it.

    The page holds its pictures too, is below 2 MB, needs neither network nor JavaScript, and is light or dark as the
    reader's system is. Returns where it is; a link stands for what it points to. Drawing takes seconds for each
    picture: `progress` shows a bar.

    Raises:
        EvaluationError: no results, or of a kind that nobody knows how to show; another ending than .html; no such
            directory; something is there already; or tables too large for a page. Nothing was written then.
        PosswapError: matplotlib is not installed.
    """
    target = checked_page(path, overwrite=overwrite)
    require_matplotlib()
    sections, title = sections_of(results), title or _title(results)
    refuse_too_large(page(title, sections, {}, {}))
    with _replacing(files_beside(target)) as folder:
        bar = tqdm(sections, desc="drawing", disable=not progress)
        notes = {section.name: _save(section, folder) for section in bar}
        drawn = [name for name, note in notes.items() if (folder / f"{name}-light.png").exists()]
        pictures, too_large = fit(drawn, folder, len(page(title, sections, {}, notes)) + 256 * len(drawn))
        for name in too_large:
            notes[name] = f"This page has no room for the picture {files_beside(target).name}/{name}-light.png."
        scratch = folder / target.name
        scratch.write_bytes(page(title, sections, pictures, notes))
    os.replace(files_beside(target) / target.name, target)
    if not any(files_beside(target).iterdir()):
        files_beside(target).rmdir()
    return target


def checked_page(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Where a report may be written.

    Raises:
        EvaluationError: as `write_report`; or the folder of pictures holds files that are no pictures.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise EvaluationError(f"A report is saved as .html, not as {target.name!r}.")
    target = target.resolve()
    if target.is_dir() or not target.parent.is_dir():
        raise EvaluationError(f"{path} cannot be written: name a file in a directory that exists.")
    folder = files_beside(target)
    there = [each for each in (target, folder) if each.exists()]
    if there and not overwrite:
        raise EvaluationError(f"{there[0]} exists already; --overwrite (overwrite=True) replaces it.")
    if folder.exists():
        _refuse_others(folder)
    return target


def files_beside(target: Path) -> Path:
    """The folder of the pictures of a page."""
    return target.with_name(f"{target.stem}_files")


def _refuse_others(folder: Path) -> None:
    """A folder of this name may be somebody's own."""
    others = [each.name for each in folder.iterdir() if each.suffix[1:] not in FORMATS] if folder.is_dir() else [""]
    if others:
        raise EvaluationError(f"{folder / others[0]} is no picture of a report: move it, or name another page.")


def _title(results: Sequence[Result]) -> str:
    models = list(dict.fromkeys(result.subject.model for result in results if isinstance(result, ModelResult)))
    if not models:
        return "Positional schemes"
    shown = models[:MOST_NAMED] + ([f"{len(models) - MOST_NAMED} more"] if len(models) > MOST_NAMED else [])
    return f"Long-context evaluation of {listed(shown)}"


def _save(section: Section, folder: Path) -> str:
    """Saves the picture in both themes and forms; returns why there is none, if it has none."""
    note = ""
    for name, theme in THEMES.items():
        figure, note = draw_section(section, theme)
        if figure is not None:
            for kind in FORMATS:
                save_figure(figure, folder / f"{section.name}-{name}.{kind}")
                figure.set_layout_engine("none")  # it is laid out now, which takes half of the time
    return note


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` at the end; after an exception there is what was there."""
    token = secrets.token_hex(4)
    scratch, old = (folder.with_name(f".{folder.name}-{word}-{token}") for word in ("new", "old"))
    scratch.mkdir()
    try:
        yield scratch
        if folder.exists():
            folder.rename(old)
        scratch.rename(folder)
    finally:
        for each in (scratch, old):
            shutil.rmtree(each, ignore_errors=True)
