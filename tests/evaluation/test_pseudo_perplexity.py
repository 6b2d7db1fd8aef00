"""pseudo_perplexity against a plain loop that hides one token at a time, for heads of every make."""

import importlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from allocations import elements_of
from measuring import assert_resumes
from tiny import HEADS, HIDDEN, LAYERS, LENGTH, VOCAB, redraw, tiny
from torch import Tensor

import hf_posswap as hp
from hf_posswap.evaluation import PseudoPerplexityResult, pseudo_perplexity
from hf_posswap.evaluation.documents import Document

READING = importlib.import_module("hf_posswap.evaluation.masked_reading")
CLS, SEP, MASK = 2, 3, 4
AROUND = {"mask_token_id": MASK, "cls_token_id": CLS, "sep_token_id": SEP}
BERTS = {
    "stock": lambda: tiny("bert"),
    "alibi": lambda: hp.patch(tiny("bert"), "alibi"),
    "rope": lambda: hp.patch(tiny("bert"), "rope"),
}
SMALL = {"hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
OTHERS: dict[str, dict[str, Any]] = {
    "distilbert": {"dim": HIDDEN, "hidden_dim": 64, "n_layers": LAYERS, "n_heads": HEADS},
    "roberta": {**SMALL, "pad_token_id": 1},
    "electra": {**SMALL, "embedding_size": 16},
    "modernbert": {**SMALL, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": CLS,
                   "sep_token_id": SEP},
    "mobilebert": {**SMALL, "embedding_size": 16, "intra_bottleneck_size": HIDDEN, "true_hidden_size": HIDDEN},
}  # fmt: skip
"""MobileBERT uses the weight of its output embeddings without calling them: its logits come at all positions."""


def document(length: int) -> Document:
    """Words of 1 to 4 tokens and a separator of no word here and there; tokens of 1 to 5 bytes."""
    words = torch.arange(length).repeat_interleave(torch.randint(1, 5, (length,)))[:length].clone()
    words[torch.rand(length) < 0.1] = -1
    ids = torch.randint(5, VOCAB, (length,))
    return Document(ids, byte_ends=torch.randint(1, 6, (length,)).cumsum(0), words=words)


def blocks(document: Document, length: int, longest: int, special: int) -> list[range]:
    """The tokens of each window."""
    room, block = length - special, longest - special
    starts = [s + i for s in range(0, len(document) - block + 1, block) for i in range(0, block - room + 1, room)]
    return [range(start, start + room) for start in starts]


def slow(model: Any, document: Document, window: range, at: int, form: str = "token") -> float:
    """NLL of the token at `at`, with [CLS] and [SEP] around the window, in float64."""
    assert document.words is not None
    ids = []
    for i in window:
        same_word = document.words[i] == document.words[at] != -1
        hidden = i == at or (form == "within_word_l2r" and i > at and same_word)
        ids.append(MASK if hidden else document.input_ids[i].item())
    with torch.no_grad():
        logits = model(torch.tensor([[CLS, *ids, SEP]])).logits[0, 1 + at - window.start].double()
    return (logits.logsumexp(0) - logits[document.input_ids[at]]).item()


@pytest.mark.parametrize("form", ["token", "within_word_l2r"])
@pytest.mark.parametrize("scheme", BERTS)
def test_equals_a_plain_loop(scheme: str, form: str) -> None:
    model: Any = BERTS[scheme]().double()
    texts = [document(40), document(15), document(18), document(33)]
    result = pseudo_perplexity(model, texts, [18, 8], **AROUND, form=form, tokens_per_batch=100)

    assert (result.documents, result.skipped, result.special_tokens, result.form) == (4, (1,), 2, form)
    assert [each.length for each in result.lengths] == [8, 18]
    for found in result.lengths:
        expected, byte_counts = [], []
        for text in texts[0], texts[2], texts[3]:
            tokens = [(window, at) for window in blocks(text, found.length, 18, 2) for at in window]
            expected.append([slow(model, text, window, at, form) for window, at in tokens])
            lengths = torch.diff(text.byte_ends, prepend=torch.zeros(1)).tolist()
            byte_counts += [lengths[at] for _, at in tokens]
        total, count = sum(map(sum, expected)), sum(map(len, expected))
        assert (found.tokens, found.document_tokens) == (count, tuple(map(len, expected)))
        assert found.windows == count // (found.length - 2)
        assert found.document_nll == pytest.approx([sum(each) for each in expected], rel=1e-9)
        assert found.nll == pytest.approx(total / count, rel=1e-9)
        assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-9)
        assert found.bits_per_byte == pytest.approx(total / math.log(2) / sum(byte_counts), rel=1e-9)
        assert found.ratio == pytest.approx(found.perplexity / result.lengths[0].perplexity)
        assert found.interval is not None
        assert found.interval.low < found.perplexity < found.interval.high


def test_forms_differ_only_within_words() -> None:
    model, text = tiny("bert"), document(30)
    alone = replace(text, words=torch.arange(30))
    by_token, within, of_single_tokens = (
        pseudo_perplexity(model, [each], [32], **AROUND, form=form).lengths[0].nll
        for each, form in [(text, "token"), (text, "within_word_l2r"), (alone, "within_word_l2r")]
    )
    assert of_single_tokens == by_token
    assert abs(within - by_token) > 1e-3


@pytest.mark.parametrize("model_type", OTHERS)
def test_equals_a_plain_loop_whatever_surrounds_the_head(model_type: str) -> None:
    fields = {"vocab_size": VOCAB, "max_position_embeddings": LENGTH, **OTHERS[model_type]}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    model = redraw(transformers.AutoModelForMaskedLM.from_config(config)).eval().double()
    text = document(12)
    found = pseudo_perplexity(model, [text], [14], **AROUND).lengths[0]
    expected = sum(slow(model, text, range(12), at) for at in range(12))
    assert found.document_nll == pytest.approx([expected], rel=1e-9)


def test_scores_a_sample_of_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    model, texts = tiny("bert").double(), [document(40), document(25)]
    scored: list[tuple[list[int], int]] = []
    logits_at = READING.logits_at

    def spy(model: Any, input_ids: Tensor, positions: Tensor) -> Tensor:
        scored.extend(zip(input_ids.tolist(), positions.tolist(), strict=True))
        return logits_at(model, input_ids, positions)

    monkeypatch.setattr(READING, "logits_at", spy)
    found = pseudo_perplexity(model, texts, [12], **AROUND, positions=4, tokens_per_batch=50).lengths[0]
    assert (found.windows, found.tokens, found.document_tokens) == (6, 24, (16, 8))
    assert len({(tuple(ids), position) for ids, position in scored}) == 24
    windows = [(text, window) for text in texts for window in blocks(text, 12, 12, 2)]
    drawn = [
        (text, window, window.start + position - 1)
        for i, (text, window) in enumerate(windows)
        for _, position in scored[4 * i : 4 * i + 4]
    ]
    expected = sum(slow(model, *each) for each in drawn)
    assert sum(found.document_nll) == pytest.approx(expected, rel=1e-9)
    lengths = [torch.diff(text.byte_ends, prepend=torch.zeros(1))[at].item() for text, _, at in drawn]  # type: ignore
    assert found.bits_per_byte == pytest.approx(expected / math.log(2) / sum(lengths), rel=1e-9)


def test_a_sample_depends_on_seed_and_text_alone() -> None:
    model, texts = tiny("bert"), [document(40), document(25)]

    def nll(texts: list[Document], **options: Any) -> tuple[float, ...]:
        torch.manual_seed(torch.randint(9, ()).item())
        return pseudo_perplexity(model, texts, [12], **AROUND, **options).lengths[0].document_nll

    assert nll(texts, positions=3) == nll(texts[::-1], positions=3)[::-1]
    assert nll(texts, positions=3) != nll(texts, positions=3, seed=1)
    assert nll(texts, positions=10) == nll(texts, positions=99) == nll(texts)


def test_a_model_that_knows_nothing_scores_the_vocabulary() -> None:
    model: Any = tiny("bert", tie_word_embeddings=False)
    torch.nn.init.zeros_(model.cls.predictions.decoder.weight)
    torch.nn.init.zeros_(model.cls.predictions.decoder.bias)
    result = pseudo_perplexity(model, [document(30)], [8, 16], **AROUND)
    assert [each.perplexity for each in result.lengths] == pytest.approx([VOCAB, VOCAB])
    assert [each.interval for each in result.lengths] == [None, None]


def test_logits_of_all_positions_never_exist() -> None:
    model = tiny("bert", vocab_size=2048)
    text = Document(torch.randint(5, 2048, (62,)))
    whole, _ = elements_of(lambda: model(text.input_ids[None]), 2**20)
    masked, _ = elements_of(lambda: pseudo_perplexity(model, [text], [64], **AROUND, tokens_per_batch=16 * 64), 2**20)
    assert whole == 62 * 2048  # the watch sees them
    assert masked == HIDDEN * 2048  # the weights: the logits of 16 masks are fewer


def test_batches_change_nothing() -> None:
    model, texts = tiny("bert"), [document(40), document(25)]
    one_by_one, at_once = (
        pseudo_perplexity(model, texts, [10], **AROUND, tokens_per_batch=n).lengths[0] for n in (1, 8192)
    )
    assert one_by_one.document_nll == pytest.approx(at_once.document_nll, rel=1e-5)


def test_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    model, texts = tiny("bert"), [document(40), document(25)]

    def measure(**run: Any) -> PseudoPerplexityResult:
        return pseudo_perplexity(model, texts, [7, 10], **AROUND, form="within_word_l2r", **run)

    def comparable(result: PseudoPerplexityResult) -> Any:
        return replace(result, cost=None, lengths=tuple(replace(each, seconds=0.0) for each in result.lengths))

    assert_resumes(measure, model, comparable, tmp_path / "state")
    before = measure(state=tmp_path / "state")
    texts[0] = replace(texts[0], words=torch.zeros(40, dtype=torch.long))  # other words are another measurement
    assert measure(state=tmp_path / "state").lengths[0].nll != before.lengths[0].nll


def test_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = tiny("bert", hidden_dropout_prob=0.5).train()
    model.bert.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    first, second = (
        pseudo_perplexity(model, [document_], [8], **AROUND).lengths[0].nll for document_ in [document(9)] * 2
    )
    assert first == second  # no dropout
    torch.nn.init.constant_(model.cls.predictions.transform.LayerNorm.weight, torch.nan)
    with pytest.raises(hp.EvaluationError, match="not finite at 8 tokens"):
        pseudo_perplexity(model, [document(9)], [8], **AROUND)
    monkeypatch.setattr(model.bert.encoder, "forward", None)
    with pytest.raises(TypeError):
        pseudo_perplexity(model, [document(9)], [8], **AROUND)
    assert [module.training for module in model.modules()] == modes
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_special_tokens_are_those_of_the_tokenizer() -> None:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    tokenizer = transformers.BertTokenizer(vocab={name: i for i, name in enumerate(names)})
    model, text = tiny("bert"), document(20)
    from_tokenizer = pseudo_perplexity(model, [text], [8], tokenizer=tokenizer)
    assert from_tokenizer.special_tokens == 2
    assert from_tokenizer.lengths[0].nll == pseudo_perplexity(model, [text], [8], **AROUND).lengths[0].nll
    bare = pseudo_perplexity(model, [text], [8], mask_token_id=MASK)
    assert (bare.special_tokens, bare.lengths[0].windows, bare.lengths[0].tokens) == (0, 2, 16)


def test_survives_json() -> None:
    result = pseudo_perplexity(tiny("bert"), [document(20), document(20), document(3)], [8, 10], **AROUND, positions=3)
    assert PseudoPerplexityResult.from_json(result.to_json()) == result


class NoMask:
    mask_token_id = None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": tiny("gpt2")}, "GPT2LMHeadModel is no masked .* measure perplexity of causal"),
        ({"model": tiny("llama")}, "LlamaForCausalLM is no masked .* measure perplexity of causal"),
        ({"model": tiny("bert", head="base")}, "BertModel is no masked .* AutoModelForMaskedLM"),
        ({"model": tiny("bert", head="sequence")}, "is no masked language model"),
        ({"model": tiny("bert", head="masked", is_decoder=True)}, "sees both sides"),
        ({"lengths": [66]}, "66 tokens are more than the 64 positions"),
        ({"lengths": []}, "from 3 up"),
        ({"lengths": [2, 9]}, "tokens from 3 up"),
        ({"lengths": [23]}, "None of the 1 documents has 21 tokens"),
        ({"form": "word"}, "form is one of"),
        ({"form": "within_word_l2r", "documents": [torch.zeros(20, dtype=torch.long)]}, "give documents words"),
        ({"positions": 0}, "positions"),
        ({"tokens_per_batch": 0}, "tokens_per_batch"),
        ({"mask_token_id": None}, "the one or the other"),
        ({"tokenizer": NoMask()}, "the one or the other"),
        ({"tokenizer": NoMask(), "mask_token_id": None, "cls_token_id": None, "sep_token_id": None}, "no mask token"),
        ({"mask_token_id": VOCAB}, "vocabulary of 64"),
        ({"documents": [torch.full((20,), VOCAB)]}, "vocabulary of 64"),
        ({"documents": [torch.zeros(20)]}, "A document is"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    call = {"model": tiny("bert"), "documents": [document(20)], "lengths": [8], **AROUND, **changes}
    with pytest.raises(hp.EvaluationError, match=message):
        pseudo_perplexity(**call)
