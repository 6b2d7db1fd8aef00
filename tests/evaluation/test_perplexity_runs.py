"""perplexity in parts: batches, groups, interruption and bars change no figure."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import VOCAB, tiny
from torch import Tensor

from hf_posswap.evaluation import PerplexityResult, perplexity
from hf_posswap.evaluation.reading import Reader

PROTOCOLS: list[dict[str, Any]] = [
    {"protocol": "sliding", "control": "shuffled-context"},
    {"protocol": "sliding", "bos": "window", "reduction": "yarn"},
    {"protocol": "disjoint"},
    {"protocol": "prefix", "bos": "document"},
]


def documents() -> list[Tensor]:
    return [torch.randint(3, VOCAB, (length,)) for length in (64, 33, 47, 40)]


def figures(result: PerplexityResult) -> list[float]:
    return [value for found in result.lengths for value in (found.nll, found.tokens, *found.document_nll)]


@pytest.mark.parametrize("options", PROTOCOLS, ids=str)
def test_batches_and_groups_change_nothing(options: dict[str, Any]) -> None:
    model, texts = tiny("gpt2"), documents()
    expected = figures(perplexity(model, texts, [8, 30], **options))
    for tokens_per_batch in (1, 50, 100):
        found = figures(perplexity(model, texts, [8, 30], tokens_per_batch=tokens_per_batch, **options))
        assert found == pytest.approx(expected, rel=1e-6)


class Interrupted(Exception):  # noqa: N818
    """What a test stops a run with."""


@pytest.mark.parametrize("options", PROTOCOLS, ids=str)
def test_an_interrupted_run_goes_on(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts, state = tiny("llama"), documents(), tmp_path / "state.jsonl"
    options = {**options, "tokens_per_batch": 50}
    read, calls = Reader.read, []
    stop_at = 0

    def counted(self: Reader, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == stop_at:
            raise Interrupted
        return read(self, *args)

    monkeypatch.setattr(Reader, "read", counted)
    expected = perplexity(model, texts, [8, 30], **options)
    items = len(calls)
    assert items >= 4
    calls.clear()
    stop_at = 3
    with pytest.raises(Interrupted):
        perplexity(model, texts, [8, 30], state=state, **options)
    found = perplexity(model, texts, [8, 30], state=state, **options)
    assert figures(found) == figures(expected)
    assert len(calls) == items + 1  # only the one that was interrupted was begun twice
    by_windows = perplexity(model, texts, [8, 30], state=state, **{**options, "reduction": "yarn"})
    assert by_windows.reduction == "yarn"
    assert len(calls) == items + 1  # both reductions are of the same sums
    perplexity(model, texts, [8, 29], state=state, **options)
    assert len(calls) > items + 1


def test_shows_progress_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    perplexity(tiny("llama"), documents(), [8, 12])
    assert capfd.readouterr().err == ""
    perplexity(tiny("llama"), documents(), [8, 12], progress=True)
    shown = capfd.readouterr().err
    assert "perplexity: 100%" in shown
    assert "token/s" in shown
