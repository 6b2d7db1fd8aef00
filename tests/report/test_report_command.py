"""`hf-posswap report`."""

from argparse import Namespace
from pathlib import Path

import pytest
from report import sample_results as sample

from hf_posswap.cli.report import run
from hf_posswap.errors import PosswapError
from hf_posswap.evaluation.results import save_results


def arguments(output: Path, *results: Path, overwrite: bool = False) -> Namespace:
    return Namespace(results=[str(path) for path in results], output=str(output), overwrite=overwrite)


def test_results_of_several_files_become_one_page(tmp_path: Path) -> None:
    save_results([sample.perplexity("first", "nope")], tmp_path / "a.json")
    (tmp_path / "b.json").write_text(sample.perplexity("second", "nope").to_json())
    said = run(arguments(tmp_path / "out.html", tmp_path / "a.json", tmp_path / "b.json"))
    assert said.startswith(f"{tmp_path / 'out.html'}: 2 results, 1 picture")
    text = (tmp_path / "out.html").read_text()
    assert "first" in text
    assert "second" in text
    assert len(list((tmp_path / "out_files").iterdir())) == 4
    with pytest.raises(PosswapError, match="exists already"):
        run(arguments(tmp_path / "out.html", tmp_path / "a.json"))


def test_all_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    for path in ("broken.json", "missing.json"):
        with pytest.raises(PosswapError, match=path):
            run(arguments(tmp_path / "out.html", tmp_path / path))
    with pytest.raises(PosswapError, match=r"saved as \.html"):
        run(arguments(tmp_path / "out.pdf", tmp_path / "missing.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["broken.json"]
