"""score against decoding step by step, with and without cache."""

from typing import Any

import pytest
import torch
from tiny import VOCAB, tiny
from torch import Tensor
from transformers import GenerationConfig

import hf_posswap as hp
from hf_posswap.evaluation.retrieval.scoring import Score, score

ALPHABET = torch.tensor([5, 9, 11, 40])
MODELS: dict[str, Any] = {
    "gpt2": lambda: tiny("gpt2"),
    "llama": lambda: tiny("llama"),
    "alibi": lambda: hp.patch(tiny("llama"), "alibi"),
    "yarn": lambda: hp.patch(tiny("llama"), hp.YaRN(factor=4.0)),
    "nope": lambda: hp.patch(tiny("gpt2"), "nope"),
    "float64": lambda: tiny("llama").double(),
}


def decoded(model: Any, prompts: Tensor, tokens: int, use_cache: bool) -> tuple[Tensor, Tensor]:
    """Prompts and what greedy decoding adds to them, `[B, L]`, and its log-probabilities `[B, tokens, V]`."""
    how = GenerationConfig(do_sample=False, max_new_tokens=tokens, use_cache=use_cache, pad_token_id=0,
                           output_logits=True, return_dict_in_generate=True)  # fmt: skip
    made = model.generate(prompts, attention_mask=torch.ones_like(prompts), generation_config=how)
    return made.sequences, torch.stack(made.logits, 1).double().log_softmax(-1)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_is_what_greedy_decoding_gives(name: str, use_cache: bool) -> None:
    model = MODELS[name]()
    rows, log_probabilities = decoded(model, torch.randint(0, VOCAB, (6, 30)), 4, use_cache)
    answers = rows[:, 30:]
    scores = score(model, rows, 4, ALPHABET)
    assert all(each.exact for each in scores)
    nll = -log_probabilities.gather(2, answers[..., None]).sum((1, 2))
    assert [each.nll for each in scores] == pytest.approx(nll.tolist(), rel=1e-4)
    in_alphabet = torch.isin(answers, ALPHABET)  # the likeliest of all is the likeliest of these
    assert [each.right for each in scores] == in_alphabet.sum(1).tolist()
    for position in range(4):
        others = rows.clone()
        others[:, 30 + position] = (others[:, 30 + position] + 1) % VOCAB
        assert not any(each.exact for each in score(model, others, 4, ALPHABET))


def test_counts_the_likeliest_of_the_alphabet() -> None:
    model, rows = tiny("llama"), torch.randint(0, VOCAB, (8, 20))
    rows[:, -3:] = ALPHABET[torch.randint(0, 4, (8, 3))]
    with torch.no_grad():
        logits = model(rows).logits[:, -4:-1].tolist()
    by_hand = [
        sum(max(ALPHABET.tolist(), key=step.__getitem__) == token for step, token in zip(steps, answer, strict=True))
        for steps, answer in zip(logits, rows[:, -3:].tolist(), strict=True)
    ]
    assert 0 < sum(by_hand) < 24
    assert [each.right for each in score(model, rows, 3, ALPHABET)] == by_hand


def test_the_head_runs_on_answers_only_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = tiny("llama"), torch.randint(0, VOCAB, (4, 50))
    expected = score(model, rows, 5, ALPHABET)
    positions: list[int] = []
    model.lm_head.register_forward_hook(lambda module, args, output: positions.append(output.numel() // VOCAB))
    monkeypatch.setattr("hf_posswap.evaluation.retrieval.scoring.CHUNK_ELEMENTS", 3 * VOCAB)
    found = score(model, rows, 5, ALPHABET)
    assert max(positions) == 4  # the last position of every prompt, by which the head is checked
    assert sum(positions) == 20 + 4 + 4 + 1  # answers, twice that check, and one position for the vocabulary's size
    for one, other in zip(found, expected, strict=True):
        assert one == Score(other.exact, other.right, pytest.approx(other.nll, rel=1e-6))


def test_leaves_the_model_as_it_was() -> None:
    model, rows = tiny("gpt2", attn_pdrop=0.5).train(), torch.randint(0, VOCAB, (2, 20))
    assert score(model, rows, 3, ALPHABET) == score(model, rows, 3, ALPHABET)  # no dropout
    torch.nn.init.constant_(model.transformer.ln_f.weight, torch.nan)
    with pytest.raises(hp.EvaluationError, match="not finite at 20 tokens"):
        score(model, rows, 3, ALPHABET)
    with pytest.raises(hp.EvaluationError, match="vocabulary of 64"):
        score(model, rows + VOCAB, 3, ALPHABET)
    assert model.training
    assert not model.lm_head._forward_pre_hooks
