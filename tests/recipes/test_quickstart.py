"""recipes/quickstart.py: the whole job on a little text, its cache, a model of the user's, and bad input."""

import json
import os
import random
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny import tiny
from transformers import ByT5Tokenizer

import hf_posswap as hp

SCRIPT = Path(__file__).parents[2] / "recipes" / "quickstart.py"
SMALL = ("--tiny_steps", "4", "--steps", "2", "--batch_tokens", "512", "--eval_tokens", "2048", "--longest", "4")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine files of 2000 characters and one that is no text."""
    folder, source = tmp_path_factory.mktemp("text"), random.Random(0)
    for i in range(9):
        words = source.choices(["alpha", "beta", "gamma", "delta", "\n"], k=600)
        (folder / f"{i}.txt").write_text(" ".join(words)[:2000])
    (folder / "image.bin").write_bytes(bytes(range(128, 256)))
    return folder


@pytest.fixture(scope="module")
def first_run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The script as people start it. Its folder holds `cache` and `out`."""
    folder = tmp_path_factory.mktemp("run")
    command = [sys.executable, str(SCRIPT), *SMALL, "--text", str(text), "--cache", "cache", "--output", "out"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return folder, run


def quickstart(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    """The same in this process, which has transformers loaded already."""
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def rows(output: Path) -> list[dict[str, Any]]:
    """Rows of a saved table without what differs from run to run."""
    table = json.loads((output / "table.json").read_text())["rows"]
    for row in table:
        assert row.pop("seconds") > row.pop("cost")["seconds"] > 0
        assert row["subject"].pop("model")  # a folder, by the name that the call gave it
        for length in row["lengths"]:
            assert length.pop("seconds") > 0
    return table


def test_compares_schemes_on_the_same_tokens(first_run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, run = first_run
    table = rows(folder / "out")
    names = ["rope as trained", "yarn extended", "swapped to alibi", "swapped to nope"]
    assert [(row["name"], row["steps"]) for row in table] == [(name, steps) for name in names for steps in (0, 2)]
    assert [row["scheme"]["name"] for row in table[::2]] == ["rope", "yarn", "alibi", "nope"]
    for row in table:
        assert [length["length"] for length in row["lengths"]] == [64, 128, 256]
        assert [length["tokens"] for length in row["lengths"]] == [7 * 4 * 63, 7 * 2 * 127, 7 * 255]
        assert row["lengths"][0]["ratio"] == 1.0
    shown = f"{table[3]['lengths'][2]['perplexity']:.2f} ({table[3]['lengths'][2]['ratio']:.2f})"
    assert shown in run.stdout
    assert "4x = 256" in run.stdout
    if find_spec("matplotlib"):
        assert (folder / "out" / "table.png").stat().st_size > 10_000


def test_saves_a_model_that_loads(first_run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    scheme = hp.scheme_of(hp.load(first_run[0] / "out" / "model"))
    assert (scheme.name, scheme.to_dict()["factor"]) == ("yarn", 4.0)


def test_reuses_the_tiny_model_and_reproduces_the_table(
    first_run: tuple[Path, subprocess.CompletedProcess[str]],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, run = first_run
    assert "tiny model:" in run.stderr
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    quickstart(monkeypatch, *SMALL, "--text", text, "--cache", folder / "cache", "--output", tmp_path)
    captured = capfd.readouterr()
    assert "tiny model:" not in captured.err
    assert rows(tmp_path) == rows(folder / "out")
    assert "pip install 'hf-posswap[plot]'" in captured.out
    assert not (tmp_path / "table.png").exists()


def test_trains_the_tiny_model_again_when_it_must(
    first_run: tuple[Path, subprocess.CompletedProcess[str]],
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, _ = first_run
    (cached,) = (folder / "cache").iterdir()
    weights = cached / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    arguments = (*SMALL, "--text", text, "--cache", folder / "cache", "--output", tmp_path)
    quickstart(monkeypatch, *arguments)
    assert f"the one in {cached} is broken" in capfd.readouterr().out
    assert rows(tmp_path) == rows(folder / "out")
    quickstart(monkeypatch, *arguments, "--seed", "1")
    assert rows(tmp_path) != rows(folder / "out")
    assert len(list((folder / "cache").iterdir())) == 2


@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_takes_a_model_of_the_user(
    model_type: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    hp.save(tiny(model_type, vocab_size=384), tmp_path / "mine", tokenizer=ByT5Tokenizer())
    output = tmp_path / "out"
    quickstart(monkeypatch, *SMALL, "--model", tmp_path / "mine", "--text", text, "--output", output)
    table, printed = rows(output), capfd.readouterr().out
    extended = hp.scheme_of(hp.load(output / "model"))
    if model_type == "gpt2":  # its table ends at the trained length, and there is nothing to fine-tune beyond
        assert "too long" in printed
        assert [(row["name"], row["steps"]) for row in table[:2]] == [
            ("learned as trained", 0),
            ("learned extended", 0),
        ]
        assert extended.to_dict()["max_position_embeddings"] == 256
    else:
        assert "too long" not in printed
        assert extended.name == "yarn"
    assert not (tmp_path / "cache").exists()


def encoder(folder: Path) -> None:
    hp.save(tiny("bert", vocab_size=384), folder / "bert", tokenizer=ByT5Tokenizer())
    (folder / "long.txt").write_text("long enough " * 500)


def unsupported(folder: Path) -> None:
    (folder / "opt").mkdir()
    (folder / "opt" / "config.json").write_text('{"model_type": "opt"}')


def short(folder: Path) -> None:
    (folder / "short.txt").write_text("short")


def empty(folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty" / "a.txt").write_text(" \n")


def binary(folder: Path) -> None:
    (folder / "binary").write_bytes(bytes(range(128, 256)))


def nothing(folder: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (nothing, ["--text", "missing"], "missing"),
        (empty, ["--text", "empty"], "no UTF-8 text in empty"),
        (binary, ["--text", "binary"], "no UTF-8 text in binary"),
        (short, ["--text", "short.txt"], "too short: training and held-out part need 512 tokens"),
        (nothing, ["--longest", "1"], "--longest is at least 2"),
        (nothing, ["--model", "missing/model"], "couldn't find them in the cached files"),
        (nothing, ["--unknown", "1"], "--unknown"),
        (unsupported, ["--model", "opt"], "'opt' are not supported; these are: gpt2"),
        (encoder, ["--model", "bert", "--text", "long.txt"], "no causal language model"),
    ],
)
def test_says_in_one_line_what_is_wrong(
    make: Any,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        quickstart(monkeypatch, *arguments)
    assert stopped.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("quickstart:")]
    assert message in line
