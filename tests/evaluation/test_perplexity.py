"""perplexity: weights, windows and reports, against sums done by hand."""

import json
import math

import pytest
import torch
from tiny import VOCAB, tiny
from torch import Tensor

import hf_posswap as hp
from hf_posswap.evaluation import PerplexityResult, perplexity, token_nll


def documents(*lengths: int) -> list[Tensor]:
    return [torch.randint(0, VOCAB, (length,)) for length in lengths]


def test_weighs_by_tokens_over_disjoint_windows() -> None:
    model, texts = tiny("llama"), documents(24, 9, 31)
    result = perplexity(model, texts, [4, 8, 12])
    # Blocks of 12: two of the first document, two of the third; the second has none.
    blocks = [texts[0][:12], texts[0][12:24], texts[2][:12], texts[2][12:24]]
    assert (result.protocol, result.documents, result.skipped) == ("disjoint", 3, (1,))
    for length, starts in zip(result.lengths, [(0, 4, 8), (0,), (0,)], strict=True):
        windows = [block[start : start + length.window] for block in blocks for start in starts]
        total = sum(token_nll(model, window[None]).double().sum().item() for window in windows)
        tokens = len(windows) * (length.window - 1)
        assert (length.windows, length.tokens) == (len(windows), tokens)
        assert length.nll == pytest.approx(total / tokens, rel=1e-6)
        assert length.perplexity == pytest.approx(math.exp(total / tokens), rel=1e-6)
        assert length.ratio == pytest.approx(length.perplexity / result.lengths[0].perplexity)
        assert length.seconds > 0


def test_all_lengths_read_the_same_tokens() -> None:
    result = perplexity(tiny("llama"), documents(70, 64), [8, 32, 16, 8])
    assert [length.window for length in result.lengths] == [8, 16, 32]
    assert [length.windows * length.window for length in result.lengths] == [128, 128, 128]
    assert result.lengths[0].ratio == 1.0


def test_batches_change_nothing() -> None:
    model, texts = tiny("gpt2"), documents(64, 64, 64)
    one_by_one = perplexity(model, texts, [8, 64], tokens_per_batch=1)
    at_once = perplexity(model, texts, [8, 64])
    for single, batched in zip(one_by_one.lengths, at_once.lengths, strict=True):
        assert single.nll == pytest.approx(batched.nll, rel=1e-6)


def test_a_model_that_knows_nothing_scores_the_vocabulary() -> None:
    model = tiny("llama", tie_word_embeddings=False)
    torch.nn.init.zeros_(model.lm_head.weight)
    result = perplexity(model, documents(32), [16, 32])
    assert [length.perplexity for length in result.lengths] == pytest.approx([VOCAB, VOCAB])


def test_survives_json() -> None:
    result = perplexity(tiny("llama"), documents(32, 5), [8, 16])
    assert PerplexityResult.from_json(result.to_json()) == result
    assert PerplexityResult.from_dict(result.to_dict()) == result
    assert json.loads(result.to_json())["skipped"] == [1]


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"lengths": [{"window": 3}]}'])
def test_refuses_json_of_something_else(text: str) -> None:
    with pytest.raises(hp.EvaluationError):
        PerplexityResult.from_json(text)


def test_refuses_what_cannot_be_measured() -> None:
    model = tiny("gpt2")
    with pytest.raises(hp.EvaluationError, match=r"None of the 2 documents has 32 tokens .the longest has 31"):
        perplexity(model, documents(31, 3), [8, 32])
    with pytest.raises(hp.EvaluationError, match="None of the 0 documents"):
        perplexity(model, [], [8])
    with pytest.raises(hp.EvaluationError, match="lengths are"):
        perplexity(model, documents(9), [])
    with pytest.raises(hp.EvaluationError, match="lengths are"):
        perplexity(model, documents(9), [1, 4])
    with pytest.raises(hp.EvaluationError, match=r"A document .* not \[2, 9\]"):
        perplexity(model, [torch.zeros(2, 9, dtype=torch.long)], [4])
    with pytest.raises(hp.EvaluationError, match="more than the 64 positions"):
        perplexity(model, documents(200), [8, 128])
    torch.nn.init.constant_(model.transformer.ln_f.weight, torch.nan)
    with pytest.raises(hp.EvaluationError, match="not finite at 8 tokens"):
        perplexity(model, documents(9), [8])


def test_shows_progress_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    perplexity(tiny("llama"), documents(32), [8, 12])
    assert capfd.readouterr().err == ""
    perplexity(tiny("llama"), documents(32), [8, 12], progress=True)
    assert "100%" in capfd.readouterr().err
