"""nll_by_position against a plain loop, at the positions that the model itself counts."""

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from measuring import assert_resumes, slow_nll
from tiny import LENGTH, VOCAB, tiny
from torch import Tensor

import hf_posswap as hp
from hf_posswap.evaluation import NllByPosition, nll_by_position

BOS = 1
MODELS = {
    "llama": lambda: tiny("llama"),
    "gpt2": lambda: tiny("gpt2"),
    "llama, alibi": lambda: hp.patch(tiny("llama"), "alibi"),
    "gpt2, yarn by segments": lambda: hp.patch(tiny("gpt2"), hp.YaRN(factor=4.0, mode="segment")),
}


def documents(*lengths: int) -> list[Tensor]:
    return [torch.randint(0, VOCAB, (length,)) for length in lengths]


def windows_of(document: Tensor, length: int, bos: str) -> list[Tensor]:
    """What the model reads, written out."""
    front = torch.tensor([BOS])
    if bos == "document":
        document = torch.cat([front, document])
    room = length - (bos == "window")
    cut = [document[start : start + room] for start in range(0, len(document) - room + 1, room)]
    return [torch.cat([front, window]) for window in cut] if bos == "window" else cut


@pytest.mark.parametrize("bos", ["none", "document", "window"])
@pytest.mark.parametrize("kind", MODELS)
def test_equals_a_plain_loop(kind: str, bos: str) -> None:
    model: Any = MODELS[kind]().double()
    length = 81 if "," in kind else 41  # past the trained length where the model can
    texts = documents(2 * length + 5, length - 2, length, 3 * length)
    result = nll_by_position(model, texts, length, buckets=7, bos=bos, tokens_per_batch=2 * length)

    read = {i: windows_of(text, length, bos) for i, text in enumerate(texts) if i != 1}
    at: dict[int, list[float]] = defaultdict(list)
    for windows in read.values():
        for window in windows:
            for position, nll in enumerate(slow_nll(model, window), start=1):
                at[position].append(nll)
    assert (result.documents, result.skipped, result.bos) == (4, (1,), bos)
    assert result.windows == sum(map(len, read.values())) == 6
    assert [bucket.start for bucket in result.buckets] == [length * i // 7 for i in range(7)]
    assert [bucket.stop for bucket in result.buckets] == [length * i // 7 for i in range(1, 8)]
    for bucket in result.buckets:
        expected = [nll for position in range(bucket.start, bucket.stop) for nll in at[position]]
        assert bucket.tokens == len(expected)
        assert bucket.nll == pytest.approx(sum(expected) / len(expected), rel=1e-9)
        assert bucket.interval is not None
        assert bucket.interval.low < bucket.nll < bucket.interval.high


def test_sees_where_a_model_breaks() -> None:
    """On text of a model without positions, the same with rows of noise from position 32 on is worse from there on."""
    model: Any = tiny("gpt2")
    with torch.no_grad():
        model.transformer.wpe.weight[:32] = 0
        model.transformer.wpe.weight[32:] *= 10
    text = torch.zeros(8, 1, dtype=torch.long)
    clean: Any = tiny("gpt2")
    torch.nn.init.zeros_(clean.transformer.wpe.weight)
    for _ in range(63):
        with torch.no_grad():
            text = torch.cat([text, clean(text).logits[:, -1].softmax(-1).multinomial(1)], dim=1)
    whole, broken = (nll_by_position(each, list(text), 64, buckets=4) for each in (clean, model))
    assert whole.buckets[:2] == pytest.approx(broken.buckets[:2])
    for before, after in zip(whole.buckets[2:], broken.buckets[2:], strict=True):
        assert before.interval is not None and after.interval is not None  # noqa: PT018
        assert after.interval.low > before.interval.high


def test_batches_change_nothing() -> None:
    model, texts = tiny("gpt2"), documents(64, 70, 200)
    one_by_one, at_once = (nll_by_position(model, texts, 32, tokens_per_batch=n) for n in (1, 8192))
    assert [b.nll for b in one_by_one.buckets] == pytest.approx([b.nll for b in at_once.buckets], rel=1e-5)
    assert one_by_one.windows == at_once.windows == 10


def test_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    model, texts = tiny("llama"), documents(64, 90, 70)

    def measure(**run: Any) -> NllByPosition:
        return nll_by_position(model, texts, 32, tokens_per_batch=64, **run)

    assert_resumes(measure, model, lambda result: replace(result, cost=None), tmp_path / "state")


def test_a_model_that_knows_nothing_scores_the_vocabulary_at_every_position() -> None:
    model: Any = tiny("llama", tie_word_embeddings=False)
    torch.nn.init.zeros_(model.lm_head.weight)
    result = nll_by_position(model, documents(40), 40, buckets=5)
    assert [bucket.nll for bucket in result.buckets] == pytest.approx([math.log(VOCAB)] * 5)
    assert [bucket.interval for bucket in result.buckets] == [None] * 5


def test_buckets_are_never_empty() -> None:
    result = nll_by_position(tiny("llama"), documents(9), 9)
    assert [(bucket.start, bucket.stop, bucket.tokens) for bucket in result.buckets] == [
        (0, 2, 1),
        (2, 4, 2),
        (4, 6, 2),
        (6, 9, 3),
    ]


def test_survives_json_and_says_the_trained_length() -> None:
    result = nll_by_position(tiny("llama"), documents(70, 80), 64, buckets=3)
    assert NllByPosition.from_json(result.to_json()) == result
    assert result.subject.trained_length == LENGTH


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": tiny("bert")}, "no causal language model"),
        ({"length": 65}, "more than the 64 positions"),
        ({"length": 1}, "from 2 up"),
        ({"length": 41}, "None of the 1 documents has 41 tokens"),
        ({"buckets": 0}, "buckets is a whole number from 1 up"),
        ({"buckets": 1.5}, "buckets is a whole number from 1 up"),
        ({"bos": "always"}, "bos is one of"),
        ({"bos": "window", "bos_token_id": VOCAB}, "vocabulary"),
        ({"tokens_per_batch": 0}, "tokens_per_batch"),
        ({"documents": [torch.full((40,), VOCAB)]}, "vocabulary"),
        ({"documents": [torch.zeros(40)]}, "A document is"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    call = {"model": tiny("gpt2"), "documents": documents(40), "length": 16, **changes}
    with pytest.raises(hp.EvaluationError, match=message):
        nll_by_position(**call)


def test_refuses_what_is_not_finite() -> None:
    model: Any = tiny("gpt2")
    torch.nn.init.constant_(model.transformer.ln_f.weight, torch.nan)
    with pytest.raises(hp.EvaluationError, match="not finite at 16 tokens"):
        nll_by_position(model, documents(40), 16)
