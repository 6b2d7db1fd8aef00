"""The page on disk: whole, self-contained, the same every time; and when it is not written at all."""

import base64
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report import sample_results as sample

from hf_posswap.errors import EvaluationError, PosswapError
from hf_posswap.evaluation.results import Result
from hf_posswap.report import style, write_report, writing
from hf_posswap.report.figures import sections_of
from hf_posswap.report.fitting import LARGEST_PAGE

HOSTILE = '<script>alert("1")</script> & "quotes" \' \x00\ud800 $x$'


class Reader(HTMLParser):
    """Elements with their attributes, and all text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.elements if name == tag]


def some_results() -> list[Result]:
    """With one picture, which is quick to draw: no positions have none."""
    return [sample.perplexity("nope"), sample.perplexity(HOSTILE, "nope"), sample.properties("nope")]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(some_results(), tmp_path_factory.mktemp("report") / "page.html")


def test_the_page_holds_its_pictures(report: Path) -> None:
    read, folder = Reader(report), report.with_name("page_files")
    (image,), (source,) = read.all("img"), read.all("source")
    assert source["media"] == "(prefers-color-scheme: dark)"
    for uri, theme in ((image["src"], "light"), (source["srcset"], "dark")):
        kind, content = re.fullmatch(r"data:image/(png|svg\+xml);base64,(.*)", uri).groups()
        picture = base64.b64decode(content)
        if kind == "svg+xml":
            assert picture == (folder / f"perplexity-{theme}.svg").read_bytes()
        else:
            assert int.from_bytes(picture[16:20], "big") == 1800
    assert "nope from 22.20 at 512 tokens to 131.63 at 8,192" in image["alt"]
    assert {path.name for path in folder.iterdir()} == {
        f"perplexity-{theme}.{kind}" for theme in ("light", "dark") for kind in ("png", "svg")
    }


def test_nothing_is_fetched_and_nothing_runs(report: Path) -> None:
    read = Reader(report)
    assert not {"script", "link", "iframe", "object", "embed", "base"} & {name for name, _ in read.elements}
    for name, attributes in read.elements:
        assert not [each for each in attributes if each.startswith("on")]
        for key in ("src", "srcset", "href"):
            assert attributes.get(key, "#").startswith("#" if key == "href" else ("data:image/", "#")), name
    assert "url(" not in report.read_text(encoding="utf-8").replace("data:", "")
    (policy,) = [each for each in read.all("meta") if each.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in policy["content"]


def test_every_link_of_the_contents_leads_somewhere(report: Path) -> None:
    read = Reader(report)
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert [link["href"] for link in read.all("a")] == [f"#{each}" for each in ids]
    assert ids == ["perplexity", "properties", "models", "scheme-nope"]


def test_values_are_text(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(" in text
    assert "\x00" not in text
    words = "".join(Reader(report).words)
    assert '<script>alert("1")</script> & "quotes" \'' in words
    assert "nope adds no positions: there is nothing to draw." in words


def test_tables_can_be_copied(report: Path) -> None:
    words = "".join(Reader(report).words)
    assert "| nope | 22.20 [20.91, 24.05] (1.00) |" in words
    assert "nope & 22.20 [20.91, 24.05] (1.00) & " in words
    read = Reader(report)
    assert [each["scope"] for each in read.all("th")][:6] == ["col"] * 6
    assert {each.get("scope") for each in read.all("th")} == {"col", "row"}
    assert len(read.all("pre")) == 2 * len(read.all("table"))


def test_the_same_bytes_every_time(report: Path, tmp_path: Path) -> None:
    again = write_report(some_results(), tmp_path / "page.html")
    assert again.read_bytes() == report.read_bytes()
    assert len(report.read_bytes()) < LARGEST_PAGE
    folder = report.with_name("page_files")
    for path in folder.iterdir():
        assert (tmp_path / "page_files" / path.name).read_bytes() == path.read_bytes()


def test_overwriting_leaves_nothing_of_the_old_one(report: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page_files"
    folder.mkdir()
    (folder / "old-light.png").write_bytes(b"old")
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(EvaluationError, match="exists already"):
        write_report(some_results(), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == "old"
    write_report([sample.properties("nope")], tmp_path / "page.html", overwrite=True, title="Mine")
    assert "<h1>Mine</h1>" in (tmp_path / "page.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html"], "no pictures, no folder"


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "page_files"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years")
    with pytest.raises(EvaluationError, match=r"thesis\.tex is no picture"):
        write_report(some_results(), tmp_path / "page.html", overwrite=True)
    assert (folder / "thesis.tex").read_text() == "years"


@pytest.mark.parametrize("name", ["page.txt", "page", "no/such/page.html", "."])
def test_where_no_page_can_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError):
        write_report(some_results(), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_no_results_no_page(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no results"):
        write_report([], tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_one_sentence(tmp_path: Path, monkeypatch) -> None:
    def missing() -> None:
        raise PosswapError("Pictures need matplotlib: pip install hf_posswap[plot].")

    monkeypatch.setattr(writing, "require_matplotlib", missing)
    monkeypatch.setattr(style, "require_matplotlib", missing)
    with pytest.raises(PosswapError, match="need matplotlib"):
        write_report(some_results(), tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failing", ["save_figure", "page"])
def test_a_failure_leaves_what_was_there(failing: str, report: Path, tmp_path: Path, monkeypatch) -> None:
    for path in (report, *report.with_name("page_files").iterdir()):
        target = tmp_path / path.relative_to(report.parent)
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(path.read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    calls: list[int] = []

    def full(*args, **kwargs):
        calls.append(1)
        if failing == "page" and len(calls) < 3:
            return b""
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, failing, full)
    with pytest.raises(OSError, match="No space left"):
        write_report(some_results(), tmp_path / "page.html", overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_everything_at_once_fits(tmp_path: Path) -> None:
    path = write_report(sample.of_every_kind(), tmp_path / "page.html")
    assert len(path.read_bytes()) < LARGEST_PAGE
    sections = [section for section in sections_of(sample.of_every_kind()) if section.draw is not None]
    assert len(Reader(path).all("img")) == len(sections) - 1, "all but that of no positions"


def test_many_results_are_one_picture(tmp_path: Path) -> None:
    results = [sample.perplexity(f"model {i}", "nope") for i in range(24)]
    path = write_report(results, tmp_path / "page.html")
    assert len(path.read_bytes()) < LARGEST_PAGE
    assert len(Reader(path).all("img")) == 1


def test_tables_too_large_for_a_page(tmp_path: Path) -> None:
    results = [sample.perplexity("x" * 20_000 + str(i), "nope") for i in range(20)]
    with pytest.raises(EvaluationError, match=r"tables alone make a page of \d"):
        write_report(results, tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real" / "page.html", tmp_path / "link.html")
    (tmp_path / "real" / "page.html").write_text("old")
    write_report([sample.properties("nope")], tmp_path / "link.html", overwrite=True)
    assert (tmp_path / "link.html").is_symlink()
    assert "Positional schemes" in (tmp_path / "real" / "page.html").read_text()
