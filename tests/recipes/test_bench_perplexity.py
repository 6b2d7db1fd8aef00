"""recipes/bench/perplexity.py: that the ways which it compares give the same numbers, on a model of a toy's size."""

import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "recipes" / "bench" / "perplexity.py"


@pytest.mark.parametrize("name", ["nll-8k", "sliding", "prefix"])
def test_the_usual_way_and_ours_agree(name: str) -> None:
    bench: dict[str, Any] = runpy.run_path(str(SCRIPT))
    names = bench["build"].__globals__
    names |= {"VOCABULARY": 300, "SHAPE": {**bench["SHAPE"], "hidden_size": 32, "intermediate_size": 64}}
    names |= {"STRIDE": 20, "LENGTHS": (16, 32, 48, 64)}
    _, usual, ours, _ = bench["COMPARISONS"][name]
    row = bench["time_ratios"](bench["build"]("cpu", "float32"), 64, usual, ours, repeats=2)
    assert row["ratio_25"] <= row["ratio"] <= row["ratio_75"]
    assert min(row["usual s"], row["ours s"]) > 0
