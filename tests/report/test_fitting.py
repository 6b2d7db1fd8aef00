"""Pictures in a page: what is made small first, and what does not fit at all."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hf_posswap.report.fitting import LARGEST_PAGE, fit
from hf_posswap.report.page import page

NAMES = ("first", "second", "third")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of noise, which cannot be made smaller but by leaving out pixels."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for name in NAMES:
        for theme in ("light", "dark"):
            pixels = random.integers(0, 256, (60, 90, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{name}-{theme}.png")
            (folder / f"{name}-{theme}.svg").write_bytes(b"<svg>" + b" " * 300_000)
    return folder


def widths(pictures: dict) -> list[int]:
    return [int.from_bytes(picture.light[16:20], "big") for picture in pictures.values()]


def test_all_are_sharp_where_there_is_room(folder: Path) -> None:
    pictures, left_out = fit(NAMES, folder, 0)
    assert (widths(pictures), left_out) == ([90] * 3, [])


def test_the_last_are_made_small_first_and_left_out_first(folder: Path) -> None:
    sharp, _ = fit(NAMES, folder, 0)
    one = sum(len(each) * 4 // 3 for each in (sharp["first"].light, sharp["first"].dark))
    seen = []
    for room in (3.1, 2.6, 2.0, 1.3, 0.8, 0.2):
        pictures, left_out = fit(NAMES, folder, int(LARGEST_PAGE - room * one))
        assert [*pictures, *left_out] == list(NAMES)
        content = page("", [], pictures, {})
        shown = sum(len(each.light) + len(each.dark) for each in pictures.values()) * 4 // 3
        assert shown <= room * one
        assert len(content) < LARGEST_PAGE
        seen.append(widths(pictures))
    assert seen == [[90, 90, 90], [90, 90, 45], [90, 45, 45], [45, 45, 45], [45, 45], []]


def test_a_small_vector_is_taken_as_it_is(folder: Path, tmp_path: Path) -> None:
    for theme in ("light", "dark"):
        (tmp_path / f"one-{theme}.png").write_bytes((folder / f"first-{theme}.png").read_bytes())
        (tmp_path / f"one-{theme}.svg").write_bytes(b"<svg/>")
    pictures, _ = fit(["one"], tmp_path, 0)
    assert pictures["one"].dark == b"<svg/>"
