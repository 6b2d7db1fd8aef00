"""recipes/before_and_after.py: every family on a little text, from training to saved results; and bad input."""

import os
import random
import subprocess
import sys
from pathlib import Path

import hf_posswap as hp
from hf_posswap.evaluation import load_results

SCRIPT = Path(__file__).parents[2] / "recipes" / "before_and_after.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--smoke", "--length", "16", "--cache", "cache", "--output", "out"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_measures_every_family_before_and_after(tmp_path: Path) -> None:
    words = random.Random(0).choices(["alpha", "beta", "gamma", "delta", "\n"], k=3000)
    (tmp_path / "text.txt").write_text(" ".join(words))
    done = run(tmp_path, "--text", "text.txt")
    assert done.returncode == 0, done.stderr
    found = {result.subject.label: result for result in load_results(tmp_path / "out" / "results.json")}
    assert list(found) == [
        "gpt2, learned, as trained",
        "gpt2, learned, extended",
        "gpt2, learned, extended, 2 steps",
        "gpt2, nope, no positions (control)",
        "gpt2, nope, no positions (control), 2 steps",
        "llama, rope, as trained",
        "llama, yarn, extended",
        "llama, yarn, extended, 2 steps",
        "llama, nope, no positions (control)",
        "llama, nope, no positions (control), 2 steps",
        "bert, rope, as trained",
        "bert, yarn, extended",
        "bert, yarn, extended, 2 steps",
    ]
    lengths = {label: [length.length for length in result.lengths] for label, result in found.items()}
    assert lengths.pop("gpt2, learned, as trained") == [16]
    assert set(map(tuple, lengths.values())) == {(16, 32, 64, 128)}
    assert {result.kind for label, result in found.items() if "bert" in label} == {"pseudo_perplexity"}
    assert hp.load(tmp_path / "out" / "llama-extended").config.max_position_embeddings == 128


def test_refuses_a_text_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("too short")
    done = run(tmp_path, "--text", "text.txt")
    assert (done.returncode, done.stdout) == (2, "")
    assert "take longer texts" in done.stderr.splitlines()[-1]
