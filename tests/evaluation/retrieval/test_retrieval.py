"""passkey, needle and ruler_lite: models that know, models that cannot know, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny, tiny_config
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.modeling_outputs import CausalLMOutput

import hf_posswap as hp
from hf_posswap.evaluation import RetrievalResult, needle, passkey, ruler_lite
from hf_posswap.evaluation.intervals import share_interval
from hf_posswap.evaluation.results import read_result

BYTES = 384
"""The vocabulary of ByT5."""


def reader(model_type: str = "llama", **overrides: Any) -> Any:
    """A tiny model for bytes that has learned nothing."""
    return tiny(model_type, **{"vocab_size": BYTES, "max_position_embeddings": 512, **overrides})


class Copier(LlamaForCausalLM):
    """Says what came after the longest earlier repetition of the last tokens: an induction head that never errs."""

    def forward(self, input_ids: Tensor, **kwargs: Any) -> CausalLMOutput:
        batch, length = input_ids.shape
        repeated, copied = torch.zeros(batch, length), torch.zeros_like(input_ids)
        for t in range(1, length):
            same = (input_ids == input_ids[:, t : t + 1])[:, :t]
            repeated[:, 1:t] = repeated[:, : t - 1] + 1  # of the tokens before t and before each earlier one
            repeated[:, :t] *= same
            copied[:, t] = input_ids.gather(1, repeated[:, :t].argmax(1, keepdim=True) + 1)[:, 0]
        hidden = nn.functional.one_hot(copied, BYTES).float()
        return CausalLMOutput(logits=self.lm_head(hidden))


@pytest.fixture(scope="module")
def copier() -> Any:
    config = tiny_config("llama", vocab_size=BYTES, hidden_size=BYTES, num_hidden_layers=1, tie_word_embeddings=False)
    model = Copier(config).eval()
    with torch.no_grad():
        model.lm_head.weight.copy_(20 * torch.eye(BYTES))
    return model


@pytest.fixture
def documents() -> list[Tensor]:
    """Lower-case letters."""
    return [torch.randint(ord("a") + 3, ord("z") + 4, (length,)) for length in (300, 700, 90)]


def test_a_model_that_copies_finds_every_key(copier: Any, byte_tokenizer: Any, documents: list[Tensor]) -> None:
    for result in (
        passkey(copier, byte_tokenizer, [90, 128], trials=12),
        needle(copier, byte_tokenizer, documents, [150], depths=[0, 0.5, 1], trials=4),
        ruler_lite(copier, byte_tokenizer, [260], ["multi_key"], trials=12),
    ):
        for cell in result.cells:
            assert (cell.accuracy, cell.token_accuracy, cell.chance) == (1.0, 1.0, 0.1)
            assert cell.interval == share_interval(cell.trials, cell.trials)
            assert cell.nll < 1e-5


def test_copying_is_not_enough_for_the_other_tasks(copier: Any, byte_tokenizer: Any) -> None:
    result = ruler_lite(copier, byte_tokenizer, [260], ["variable_tracking", "common_words"], trials=10)
    assert [cell.correct for cell in result.cells] == [0, 0]
    assert all(cell.nll > 1 for cell in result.cells)


def deaf() -> Any:
    """Two layers that see 8 tokens each: the key is out of their reach."""
    return reader("mistral", sliding_window=8)


@pytest.mark.parametrize("make", [deaf, reader, lambda: reader("gpt2", n_positions=512)], ids=["deaf", "llama", "gpt2"])
def test_a_model_that_cannot_know_scores_at_chance(make: Callable[[], Any], byte_tokenizer: Any) -> None:
    result = passkey(make(), byte_tokenizer, [130], depths=[0], trials=300)
    (cell,) = result.cells
    tokens = cell.trials * result.answer_tokens
    interval = share_interval(round(cell.token_accuracy * tokens), tokens, level=0.999)
    assert interval.low < cell.chance == 0.1 < interval.high
    assert interval.high - interval.low < 0.06
    assert cell.correct == 0  # one in a hundred thousand at best
    assert cell.nll > torch.tensor(10.0).log()  # of a digit that nothing is known of


def test_the_key_is_out_of_a_deaf_models_reach(byte_tokenizer: Any) -> None:
    model, text = deaf(), "The pass key is 12345." + " Rain falls." * 2 + " The pass key is "
    one, other = (torch.tensor([byte_tokenizer(each, add_special_tokens=False).input_ids])
                  for each in (text, text.replace("12345", "60798")))  # fmt: skip
    with torch.no_grad():
        assert torch.equal(model(one).logits[:, -1], model(other).logits[:, -1])


def test_batches_change_no_figure(byte_tokenizer: Any, documents: list[Tensor]) -> None:
    model = reader()
    single, together = (
        needle(model, byte_tokenizer, documents, [100, 150], depths=[0, 1], trials=3, tokens_per_batch=tokens)
        for tokens in (1, 8192)
    )
    assert len(single.cells) == 4
    for one, other in zip(single.cells, together.cells, strict=True):
        assert (one.correct, one.token_accuracy) == (other.correct, other.token_accuracy)
        assert one.nll == pytest.approx(other.nll, rel=1e-5)


def test_says_what_was_done(byte_tokenizer: Any, tokenizers: dict[str, Any], documents: list[Tensor]) -> None:
    result = needle(reader(), byte_tokenizer, documents, [150, 100], depths=[1, 0.25], trials=2, digits=3, seed=7)
    assert (result.task, result.skipped, result.haystack) == ("needle", (2,), "stretches of 2 documents")
    assert (result.alphabet, result.answer_tokens, result.bos, result.seed) == ("digits", 3, False, 7)
    grid = [(cell.task, cell.length, cell.depth, cell.trials) for cell in result.cells]
    assert grid == [("needle", length, depth, 2) for length in (100, 150) for depth in (0.25, 1.0)]
    assert result.subject.scheme is not None
    assert result.cost.seconds > 0
    assert read_result(result.to_dict()) == RetrievalResult.from_json(result.to_json()) == result
    with_bos = passkey(reader(vocab_size=500), tokenizers["llama2"], [150], trials=1)
    assert (with_bos.bos, with_bos.haystack, with_bos.cells[0].depth) == (True, "repeated filler sentences", None)


def test_headline_figures_have_200_trials(byte_tokenizer: Any, documents: list[Tensor]) -> None:
    model = reader(num_hidden_layers=1)
    assert passkey(model, byte_tokenizer, [90]).at(90).trials == 200
    assert needle(model, byte_tokenizer, documents, [90]).at(90).trials == 220
    assert ruler_lite(model, byte_tokenizer, [160], ["common_words"]).at(160).trials == 200
    assert [cell.task for cell in ruler_lite(model, byte_tokenizer, [260], trials=1).cells] == [
        "multi_key", "variable_tracking", "common_words"
    ]  # fmt: skip


def test_sums_up_the_depths_of_a_length(copier: Any, byte_tokenizer: Any, documents: list[Tensor]) -> None:
    result = needle(reader(), byte_tokenizer, documents, [100, 150], depths=[0, 0.5, 1], trials=4)
    cells, whole = result.cells[3:], result.at(150)
    assert (whole.task, whole.length, whole.depth, whole.trials) == ("needle", 150, None, 12)
    assert whole.correct == sum(cell.correct for cell in cells)
    assert whole.interval == share_interval(whole.correct, 12)
    assert whole.token_accuracy == pytest.approx(sum(cell.token_accuracy for cell in cells) / 3)
    assert whole.nll == pytest.approx(sum(cell.nll for cell in cells) / 3)
    both = ruler_lite(copier, byte_tokenizer, [260], ["multi_key", "common_words"], trials=2)
    assert both.at(260, "multi_key") == both.cells[0]
    for length, task in ((260, None), (260, "passkey"), (128, "multi_key")):
        with pytest.raises(hp.EvaluationError, match="Ask for one of the tasks"):
            both.at(length, task)


def test_goes_on_from_finished_batches(tmp_path: Path, byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, state = reader(), tmp_path / "state"
    first = passkey(model, byte_tokenizer, [100], trials=4, tokens_per_batch=200, state=state)
    monkeypatch.setattr(model, "forward", lambda **call: pytest.fail("measured again"))
    assert passkey(model, byte_tokenizer, [100], trials=4, tokens_per_batch=200, state=state) == first
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        passkey(model, byte_tokenizer, [100], trials=4, tokens_per_batch=200, state=state, seed=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": 0}, "trials is a whole number from 1 up, not 0"),
        ({"digits": 0}, "digits is a whole number from 1 up, not 0"),
        ({"lengths": []}, "lengths are one or more"),
        ({"lengths": [20, 100]}, "passkey takes 81 tokens with this tokenizer, not 20"),
        ({"lengths": [600]}, "600 tokens are more than the 512 positions"),
        ({"depths": [0.5, 1.01]}, "depths are one or more numbers from 0 to 1"),
        ({"depths": [float("nan")]}, "depths are one or more numbers from 0 to 1"),
        ({"depths": []}, "depths are one or more numbers from 0 to 1"),
        ({"bos": True}, "ByT5Tokenizer has no BOS"),
    ],
)
def test_refuses_what_is_out_of_range(arguments: dict[str, Any], message: str, byte_tokenizer: Any) -> None:
    with pytest.raises(hp.EvaluationError, match=message):
        passkey(reader("gpt2", n_positions=512), byte_tokenizer, **{"lengths": [100], **arguments})


def test_refuses_models_and_texts_that_cannot_give_it(byte_tokenizer: Any, documents: list[Tensor]) -> None:
    with pytest.raises(hp.EvaluationError, match="no causal language model"):
        passkey(reader("bert"), byte_tokenizer, [100])
    with pytest.raises(hp.EvaluationError, match="vocabulary of 64"):
        passkey(reader(vocab_size=64), byte_tokenizer, [100], trials=1)
    with pytest.raises(hp.EvaluationError, match=r"None of the 3 documents has 800 tokens .the longest has 700"):
        needle(reader(), byte_tokenizer, documents, [100, 800])
    with pytest.raises(hp.EvaluationError, match=r"tasks are one or more of .'multi_key'.* not .'many_keys'"):
        ruler_lite(reader(), byte_tokenizer, [260], ["many_keys"])
    with pytest.raises(hp.EvaluationError, match=r"no \d+ keys of 1 digits: take longer ones"):
        ruler_lite(reader(), byte_tokenizer, [400], ["common_words"], digits=1)
