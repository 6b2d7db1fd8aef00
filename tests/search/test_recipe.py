"""recipes/search_longrope.py as people start it, on a model of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny
from transformers import ByT5Tokenizer

import hf_posswap as hp

SCRIPT = Path(__file__).parents[2] / "recipes" / "search_longrope.py"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    words = " ".join(str(i * i) for i in range(4000))
    for i in range(17):
        (tmp_path / f"{i:02}.txt").write_text(words[i * 600 : i * 600 + 1200])
    hp.save(tiny("llama", vocab_size=384), tmp_path / "mine", tokenizer=ByT5Tokenizer())
    return [sys.executable, str(SCRIPT), "--smoke", "--model", "mine", "--text", "."]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_searches_compares_and_saves(command: list[str], tmp_path: Path) -> None:
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    output = tmp_path / "runs" / "search_longrope"
    saved = json.loads((output / "table.json").read_text())
    rows = {row["name"]: row for row in saved["rows"]}
    assert list(rows) == [
        "rope",
        "linear",
        "ntk",
        "yarn",
        "yarn, attention factor 1",
        "longrope found",
        "longrope found, mode=segment",
    ]
    assert [length["length"] for length in rows["yarn"]["lengths"]] == [64, 256]
    assert f"{rows['longrope found']['lengths'][1]['perplexity']:.3f}" in done.stdout
    assert saved["search"]["perplexity"] <= min(
        saved["search"]["baselines"][name] for name in ("linear", "ntk", "yarn")
    )
    scheme = hp.scheme_of(hp.load(output / "model"))
    assert json.loads(json.dumps(scheme.to_dict())) == saved["search"]["scheme"]
    # Up to the trained length each segment is the model as it was, but for the factor on cos and sin.
    assert rows["longrope found, mode=segment"]["lengths"][0] != rows["longrope found"]["lengths"][0]
    assert run([*command, "--seed", "1"], tmp_path).stderr.endswith("name another file, or remove it to start anew.\n")


def test_says_in_one_line_what_is_wrong(command: list[str], tmp_path: Path) -> None:
    done = run([*command, "--factor", "1"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("search_longrope: --factor is at least 2")
