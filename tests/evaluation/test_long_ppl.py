"""long_ppl against the published loop, and on texts whose key tokens are known beforehand."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from measuring import assert_resumes, slow_nll
from tiny import VOCAB, tiny
from torch import Tensor, nn

import hf_posswap as hp
from hf_posswap.evaluation import LongPpl, long_ppl

WORDS = 256
SURE, UNSURE = 0.9, 0.12
"""Probabilities of what `Recalling` remembers: both far above 1 / 256, and -log 0.12 > 2 > -log 0.9."""


class Recalling(transformers.PreTrainedModel):
    """Knows only what came after the current token when that came first; it is less sure of 200 and up.

    Its hidden states are log-probabilities, its output embeddings the identity.
    """

    config_class = transformers.PreTrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings, self.lm_head = nn.Embedding(WORDS, 1), nn.Linear(WORDS, WORDS, bias=False)
        nn.init.eye_(self.lm_head.weight)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, input_ids: Tensor, **_: Any) -> tuple[Tensor]:
        return (self.lm_head(torch.stack([self.remembered(ids) for ids in input_ids.tolist()])),)

    def remembered(self, ids: list[int]) -> Tensor:
        probabilities = torch.full((len(ids), WORDS), 1 / WORDS)
        for t, token in enumerate(ids):
            if (first := ids.index(token)) < t:
                known = ids[first + 1]
                sure = UNSURE if known >= 200 else SURE
                probabilities[t] = (1 - sure) / (WORDS - 1)
                probabilities[t, known] = sure
        return probabilities.log()


def recalling() -> Any:
    return Recalling(transformers.PreTrainedConfig(vocab_size=WORDS)).eval()


def text_with(pairs: dict[int, tuple[int, int]]) -> Tensor:
    """60 tokens from 20 to 189, no two the same but those that are put at these positions."""
    text = 20 + torch.randperm(170)[:60]
    for position, pair in pairs.items():
        text[position], text[position + 1] = pair
    return text


def known_text() -> Tensor:
    """With a short context of 11 to 15 tokens the only key tokens are those at 41 and 58."""
    return text_with({
        **{3: (1, 2), 40: (1, 2)},  # far: a key token
        **{10: (3, 4), 57: (3, 4)},  # far, in the last window, which is cut
        **{30: (5, 6), 36: (5, 6)},  # near: the short context knows it too
        **{5: (7, 200), 45: (7, 200)},  # far, but not sure enough
        **{18: (9, 10), 49: (9, 11)},  # far, and another continuation
        **{0: (12, 13), 14: (12, 13)},  # a short context lies within the first 16 tokens
    })  # fmt: skip


def test_finds_the_tokens_that_need_the_long_context() -> None:
    evaluator, texts = recalling(), [known_text(), known_text()]
    model = tiny("llama", vocab_size=WORDS)
    result = long_ppl(model, texts, 60, 16, evaluator=evaluator, stride=5)
    key = [nll for text in texts for t, nll in enumerate(slow_nll(model, text), start=1) if t in (41, 58)]
    assert (result.tokens, result.key_tokens) == (88, 4)
    assert result.perplexity == pytest.approx(math.exp(sum(key) / 4), rel=1e-6)
    assert result.evaluator == "Recalling"
    loose = long_ppl(model, texts, 60, 16, evaluator=evaluator, stride=5, likelihood_threshold=-3.0)
    assert loose.key_tokens == 6  # now the unsure ones too
    strict = long_ppl(model, texts, 60, 16, evaluator=evaluator, stride=5, gain_threshold=6.0)
    assert strict.key_tokens == 0


def test_chooses_for_itself_what_it_knows() -> None:
    result = long_ppl(recalling(), [known_text(), text_with({})], 60, 16, stride=5)
    assert result.evaluator == "the model itself"
    assert (result.key_tokens, result.interval) == (2, None)
    assert result.perplexity == pytest.approx(1 / SURE)
    assert result.all_interval is not None
    assert result.all_interval.low < result.all_perplexity < result.all_interval.high


def test_says_so_when_no_token_needs_the_long_context() -> None:
    result = long_ppl(recalling(), [text_with({}), text_with({})], 60, 16)
    assert (result.key_tokens, result.perplexity, result.interval) == (0, None, None)
    assert result.all_perplexity == pytest.approx(WORDS)
    assert LongPpl.from_json(result.to_json()) == result


def published(evaluator: Any, ids: Tensor, shortest: int, stride: int, alpha: float, beta: float) -> list[int]:
    """Key tokens as the authors' script finds them: `shortest` is its truncation, which every token has at least."""
    long, found = [math.nan, *slow_nll(evaluator, ids)], []
    for start in range(0, len(ids) - shortest, stride):
        short = slow_nll(evaluator, ids[start : start + shortest + stride])
        for t in range(start + shortest, min(start + shortest + stride, len(ids))):
            if short[t - start - 1] - long[t] > alpha and long[t] < -beta:
                found.append(t)
    return found


MODELS: dict[str, Any] = {
    "llama": lambda: tiny("llama"),
    "gpt2": lambda: tiny("gpt2", seed=1),
    "llama, alibi": lambda: hp.patch(tiny("llama"), "alibi"),
    "llama, yarn by segments": lambda: hp.patch(tiny("llama"), hp.YaRN(factor=4.0, mode="segment")),
}


@pytest.mark.parametrize(
    ("kind", "judge", "stride"),
    [("llama", "gpt2", 4), ("gpt2", None, 7), ("llama, alibi", "llama", None), ("llama, yarn by segments", None, 9)],
)
def test_equals_the_published_loop(kind: str, judge: str | None, stride: int | None) -> None:
    model = MODELS[kind]().double()
    evaluator = MODELS[judge]().double() if judge else model
    length = 90 if "segments" in kind else 50
    texts = [torch.randint(0, VOCAB, (n,)) for n in (2 * length + 7, length - 1, length)]
    options = {"gain_threshold": 0.4, "likelihood_threshold": -5.5}
    result = long_ppl(model, texts, length, 16, evaluator=judge and evaluator, stride=stride, **options)

    step = stride or 3  # a fifth
    key, everything = [], []
    for block in (texts[0][:length], texts[0][length : 2 * length], texts[2]):
        nll = [math.nan, *slow_nll(model, block)]
        everything += nll[16:]
        key += [nll[t] for t in published(evaluator, block, 16 - step, step, 0.4, -5.5)]
    assert (result.documents, result.skipped, result.stride, result.length) == (3, (1,), step, length)
    assert (result.tokens, result.key_tokens) == (len(everything), len(key))
    assert 5 < len(key) < len(everything) / 2
    assert result.perplexity == pytest.approx(math.exp(sum(key) / len(key)), rel=1e-9)
    assert result.all_perplexity == pytest.approx(math.exp(sum(everything) / len(everything)), rel=1e-9)
    assert result.interval is not None
    assert result.interval.low <= result.perplexity <= result.interval.high


def test_a_model_that_knows_nothing_scores_the_vocabulary() -> None:
    model: Any = tiny("llama", tie_word_embeddings=False, vocab_size=WORDS)
    torch.nn.init.zeros_(model.lm_head.weight)
    result = long_ppl(model, [known_text()], 60, 16, evaluator=recalling(), stride=5)
    assert result.key_tokens == 2
    assert (result.perplexity, result.all_perplexity) == pytest.approx((WORDS, WORDS))


def test_batches_change_nothing() -> None:
    model, texts = tiny("llama", vocab_size=WORDS), [known_text(), known_text()]
    one_by_one, at_once = (long_ppl(model, texts, 60, 16, evaluator=recalling(), tokens_per_batch=n) for n in (1, 8192))
    assert one_by_one.key_tokens == at_once.key_tokens > 0
    assert one_by_one.perplexity == pytest.approx(at_once.perplexity, rel=1e-5)


def test_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    model, texts, evaluators = (
        tiny("llama", vocab_size=WORDS),
        [known_text(), known_text(), known_text()],
        [recalling()],
    )

    def measure(**run: Any) -> LongPpl:
        return long_ppl(model, texts, 60, 16, evaluator=evaluators[-1], **run)

    assert_resumes(measure, model, lambda result: replace(result, cost=None), tmp_path / "state")
    before = measure(state=tmp_path / "state")
    evaluators.append(recalling())
    nn.init.zeros_(evaluators[-1].lm_head.weight)  # another evaluator is another measurement
    assert measure(state=tmp_path / "state").key_tokens == 0 < before.key_tokens


def test_names_the_evaluator_and_its_scheme() -> None:
    texts = [torch.randint(0, VOCAB, (40,))]
    evaluator = hp.patch(tiny("llama", seed=1), "alibi")
    assert long_ppl(tiny("llama"), texts, 40, 16, evaluator=evaluator).evaluator == "LlamaForCausalLM (alibi)"


LONG = {"documents": [torch.zeros(65, dtype=torch.long)]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": tiny("bert")}, "BertForMaskedLM is no causal language model"),
        ({"evaluator": tiny("bert")}, "BertForMaskedLM is no causal language model"),
        ({"evaluator": tiny("llama", vocab_size=65)}, "vocabulary of 64 and the evaluator one of 65"),
        ({"length": 65}, "65 tokens are more than the 64 positions"),
        ({"model": tiny("llama"), "evaluator": tiny("gpt2"), "length": 65, **LONG}, "more than the 64 positions"),
        ({"length": 61}, "None of the 1 documents has 61 tokens"),
        ({"short_length": 40}, "short_length is below the length of 40"),
        ({"short_length": 1}, "from 2 up"),
        ({"short_length": "16"}, "from 2 up"),
        ({"stride": 16}, "stride is a whole number from 1 to 15"),
        ({"stride": 0}, "stride is a whole number from 1 to 15"),
        ({"tokens_per_batch": 0}, "tokens_per_batch"),
        ({"documents": [torch.full((60,), VOCAB)]}, "vocabulary"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    call = {"model": tiny("gpt2"), "documents": [torch.randint(0, VOCAB, (60,))], "length": 40, "short_length": 16}
    with pytest.raises(hp.EvaluationError, match=message):
        long_ppl(**{**call, **changes})


@pytest.mark.parametrize("broken", ["model", "evaluator"])
def test_refuses_what_is_not_finite(broken: str) -> None:
    models: dict[str, Any] = {"model": tiny("gpt2"), "evaluator": tiny("gpt2", seed=1)}
    torch.nn.init.constant_(models[broken].transformer.ln_f.weight, torch.nan)
    with pytest.raises(hp.EvaluationError, match="not finite"):
        long_ppl(documents=[torch.randint(0, VOCAB, (60,))], length=40, short_length=16, **models)
