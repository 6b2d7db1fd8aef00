"""perplexity: every protocol against sums done by hand from the model's own loss, and what it refuses."""

import json
import math
from typing import Any

import pytest
import torch
from tiny import VOCAB, tiny
from torch import Tensor

import hf_posswap as hp
from hf_posswap.evaluation import PerplexityResult, perplexity, token_nll
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.windows import Layout, Window


def documents(*lengths: int) -> list[Tensor]:
    return [torch.randint(3, VOCAB, (length,)) for length in lengths]


def double(model_type: str = "llama", **overrides: Any) -> Any:
    return tiny(model_type, **overrides).double()


def loss(model: Any, row: Tensor, scored: int) -> float:
    """Mean over the last `scored` tokens of a row, by labels of -100; the model's own loss is rounded to float32."""
    labels = row.clone()
    labels[: len(row) - scored] = -100
    with torch.no_grad():
        logits = model(input_ids=row[None]).logits[0, :-1]
    return torch.nn.functional.cross_entropy(logits, labels[1:]).item()


def usual_recipe(model: Any, text: Tensor, length: int, stride: int, bos: int | None = None) -> list[tuple[float, int]]:
    """Mean loss and number of scored tokens of each window, laid as the guides to perplexity do it."""
    found, previous = [], 0
    room = length if bos is None else length - 1
    for begin in range(0, len(text), stride):
        end = min(begin + room, len(text))
        row = text[begin:end] if bos is None else torch.cat([torch.tensor([bos]), text[begin:end]])
        scored = min(end - previous, len(row) - 1)
        found.append((loss(model, row, scored), scored))
        previous = end
        if end == len(text):
            break
    return found


def weighted(windows: list[tuple[float, int]]) -> float:
    return sum(nll * scored for nll, scored in windows) / sum(scored for _, scored in windows)


@pytest.mark.parametrize("scheme", [None, "yarn", "alibi"])
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_sliding_equals_the_usual_recipe(model_type: str, scheme: str | None) -> None:
    model, texts = double(model_type), documents(50, 16, 43, 21)
    if scheme is not None:
        hp.patch(model, scheme, **({"factor": 4.0} if scheme == "yarn" else {}))
    result = perplexity(model, texts, [9, 16], stride=5)
    for found in result.lengths:
        by_document = [usual_recipe(model, text, found.length, 5) for text in texts]
        windows = [window for document in by_document for window in document]
        assert (found.windows, found.tokens) == (len(windows), sum(map(len, texts)) - 4)
        assert found.nll == pytest.approx(weighted(windows), rel=1e-12)
        assert found.perplexity == pytest.approx(math.exp(weighted(windows)), rel=1e-11)
        assert found.document_tokens == (49, 15, 42, 20)
        expected = [weighted(each) * tokens for each, tokens in zip(by_document, found.document_tokens, strict=True)]
        assert found.document_nll == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("length", "stride"), [(7, 3), (600, 256), (2, 1)])
def test_a_sliding_window_moves_by_half_its_length_up_to_256(length: int, stride: int) -> None:
    layout = Layout("sliding", length, length, None, "none")
    windows = layout.windows(3 * length)
    assert {window.start - windows[i].start for i, window in enumerate(windows[1:])} == {stride}
    assert windows[0] == Window(0, length, length - 1)
    assert windows[-1].stop == 3 * length


@pytest.mark.parametrize("bos", ["none", "document", "window"])
def test_all_lengths_of_a_sliding_sweep_score_the_same_tokens(bos: str) -> None:
    for length, tokens in [(4, 31), (9, 31), (30, 31), (31, 31)]:
        layout = Layout("sliding", length, 31, 3, bos)
        scored: list[int] = []
        for window in layout.windows(tokens):
            stop = window.stop - layout.row_offset
            scored += range(stop - window.scored, stop)
        assert scored == list(range(bos == "none", tokens))


@pytest.mark.parametrize("bos", ["none", "document", "window"])
def test_yarn_reduction_is_the_mean_over_windows_of_their_means(bos: str) -> None:
    model, texts = double(), documents(50, 33, 28)
    rows = [torch.cat([torch.tensor([1]), text]) for text in texts] if bos == "document" else texts
    windows = [usual_recipe(model, row, 16, 7, 1 if bos == "window" else None) for row in rows]
    means = [nll for document in windows for nll, _ in document]
    by_windows = perplexity(model, texts, [16], stride=7, bos=bos, reduction="yarn").lengths[0]
    by_tokens = perplexity(model, texts, [16], stride=7, bos=bos).lengths[0]
    assert by_windows.perplexity == pytest.approx(math.exp(sum(means) / len(means)), rel=1e-11)
    assert by_tokens.nll == pytest.approx(weighted([each for document in windows for each in document]), rel=1e-12)
    assert abs(by_windows.nll / by_tokens.nll - 1) > 1e-4, "windows of equal weight tell the reductions not apart"
    assert by_windows.document_nll == by_tokens.document_nll
    assert by_windows.interval != by_tokens.interval


def test_disjoint_windows_cut_blocks_of_the_longest_length() -> None:
    model, texts = double(), documents(24, 9, 31)
    result = perplexity(model, texts, [4, 8, 12], protocol="disjoint")
    # Blocks of 12: two of the first document, two of the third; the second has none.
    blocks = [texts[0][:12], texts[0][12:24], texts[2][:12], texts[2][12:24]]
    assert (result.protocol, result.documents, result.skipped) == ("disjoint", 3, (1,))
    for found, starts in zip(result.lengths, [(0, 4, 8), (0,), (0,)], strict=True):
        windows = [block[start : start + found.length] for block in blocks for start in starts]
        nll = [loss(model, window, found.length - 1) for window in windows]
        assert (found.windows, found.tokens) == (len(windows), len(windows) * (found.length - 1))
        assert found.nll == pytest.approx(sum(nll) / len(nll), rel=1e-12)
        assert found.ratio == pytest.approx(found.perplexity / result.lengths[0].perplexity)
        assert found.seconds > 0


def test_all_lengths_of_a_disjoint_sweep_read_the_same_tokens() -> None:
    result = perplexity(tiny("llama"), documents(70, 64), [8, 32, 16, 8], protocol="disjoint")
    assert [found.length for found in result.lengths] == [8, 16, 32]
    assert [found.windows * found.length for found in result.lengths] == [128, 128, 128]
    assert result.lengths[0].ratio == 1.0


def counted(model: Any) -> list[list[int]]:
    """The shapes of all forward passes from now on."""
    shapes: list[list[int]] = []
    model.register_forward_pre_hook(
        lambda _, args, call: shapes.append(list(call["input_ids"].shape)), with_kwargs=True
    )
    return shapes


CALL = hp.DynamicNTKRoPE(factor=4.0, mode="call")


@pytest.mark.parametrize("bos", ["none", "document", "window"])
@pytest.mark.parametrize("scheme", [None, "alibi", hp.DynamicNTKRoPE(factor=4.0, mode="segment")], ids=str)
@pytest.mark.parametrize("model_type", ["gpt2", "llama"])
def test_prefixes_come_from_one_pass(model_type: str, scheme: Any, bos: str) -> None:
    model, texts = tiny(model_type), documents(50, 47, 61)
    if scheme is not None:
        hp.patch(model, scheme)
    separate = [perplexity(model, texts, [n, 45], protocol="prefix", bos=bos).lengths[0] for n in (8, 30)]
    separate.append(perplexity(model, texts, [45], protocol="prefix", bos=bos).lengths[0])
    shapes = counted(model)
    together = perplexity(model, texts, [30, 8, 45], protocol="prefix", bos=bos)
    assert shapes == [[3, 45]]
    start = [] if bos == "none" else [1]
    for found, alone in zip(together.lengths, separate, strict=True):
        rows = [torch.cat([torch.tensor(start, dtype=torch.long), text])[: found.length] for text in texts]
        naive = sum(loss(model, row, found.length - 1) for row in rows) / 3
        assert (found.windows, found.tokens) == (3, 3 * (found.length - 1))
        assert found.nll == pytest.approx(naive, rel=1e-5)
        assert found.nll == pytest.approx(alone.nll, rel=1e-5)
        assert found.document_nll == pytest.approx(alone.document_nll, rel=1e-5)


def stock_dynamic() -> Any:
    return tiny("llama", rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0})


def unknown_family() -> Any:
    return tiny("gpt_neox")


@pytest.mark.parametrize("make", [lambda: hp.patch(tiny("llama"), CALL), stock_dynamic, unknown_family])
def test_prefixes_are_read_one_by_one_where_one_pass_might_be_another_function(make: Any) -> None:
    model, texts = make(), documents(130, 120)
    lengths = [20, 64] if model.config.model_type == "gpt_neox" else [20, 64, 120]
    shapes = counted(model)
    result = perplexity(model, texts, lengths, protocol="prefix")
    assert shapes == [[2, n] for n in lengths]
    for found in result.lengths:
        naive = sum(loss(model, text[: found.length], found.length - 1) for text in texts) / 2
        assert found.nll == pytest.approx(naive, rel=1e-5)


def test_frequencies_by_the_length_of_the_call_do_change_prefixes() -> None:
    model, text = hp.patch(tiny("llama"), CALL), torch.randint(3, VOCAB, (1, 120))
    assert (token_nll(model, text)[:, :50] - token_nll(model, text[:, :51])).abs().max() > 1e-3


def test_bos_in_front_of_documents_and_of_windows() -> None:
    model, text = double(), documents(20)[0]
    bos = torch.tensor([1])
    document = perplexity(model, [text], [8], stride=7, bos="document").lengths[0]
    row = torch.cat([bos, text])
    parts = [(row[:8], 7), (row[7:15], 7), (row[14:21], 6)]
    assert (document.windows, document.tokens) == (3, 20)
    assert document.nll == pytest.approx(weighted([(loss(model, *part), part[1]) for part in parts]), rel=1e-12)
    window = perplexity(model, [text], [8], stride=4, bos="window", bos_token_id=2).lengths[0]
    parts = [(text[:7], 7), (text[4:11], 4), (text[8:15], 4), (text[12:19], 4), (text[16:20], 1)]
    parts = [(torch.cat([bos + 1, row]), scored) for row, scored in parts]
    assert (window.windows, window.tokens) == (5, 20)
    assert window.nll == pytest.approx(weighted([(loss(model, *part), part[1]) for part in parts]), rel=1e-12)


@pytest.mark.parametrize("protocol", ["sliding", "disjoint", "prefix"])
def test_a_bos_counts_in_the_length(protocol: str) -> None:
    model = tiny("gpt2")
    for bos in ("document", "window"):
        shapes = counted(model)
        result = perplexity(model, documents(31, 30, 40), [32], protocol=protocol, bos=bos)
        assert result.skipped == (1,)
        assert max(length for _, length in shapes) == 32


def test_bits_per_byte_are_of_the_bytes_of_the_tokens_scored() -> None:
    model, texts = tiny("llama"), documents(21, 17)
    ends = [torch.randint(0, 4, (len(text),)).cumsum(0) for text in texts]  # tokens of no bytes among them
    known = [Document(text, byte_ends=end) for text, end in zip(texts, ends, strict=True)]

    def bits(read: int, **options: Any) -> None:
        found = perplexity(model, known, [8], **options).lengths[0]
        assert found.bits_per_byte == pytest.approx(sum(found.document_nll) / math.log(2) / read, rel=1e-12)

    everything, first = int(ends[0][-1] + ends[1][-1]), int(ends[0][0] + ends[1][0])
    bits(everything - first)
    bits(everything, bos="document")
    bits(everything, bos="window")
    bits(everything - first, reduction="yarn")
    bits(int(ends[0][7] + ends[1][7]) - first, protocol="prefix")
    bits(int(ends[0][6] + ends[1][6]), protocol="prefix", bos="window")
    windows = [(0, 0, 7), (0, 8, 15), (1, 0, 7), (1, 8, 15)]
    bits(sum(int(ends[i][last] - ends[i][first]) for i, first, last in windows), protocol="disjoint")
    assert perplexity(model, [known[0], texts[1]], [8]).lengths[0].bits_per_byte is None


def test_one_byte_a_token_is_the_nll_in_bits() -> None:
    text = torch.tensor(list("Träume".encode())) % VOCAB
    found = perplexity(tiny("llama"), [Document(text, byte_ends=torch.arange(1, 8))], [5]).lengths[0]
    assert found.bits_per_byte == pytest.approx(found.nll / math.log(2))


def test_shuffled_context_is_another_order_of_what_is_in_front() -> None:
    model, texts = double(), documents(40, 25)
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda _, args, call: seen.extend(call["input_ids"]), with_kwargs=True)
    control = perplexity(model, texts, [16], stride=6, bos="window", control="shuffled-context").lengths[0]
    rows, seen[:] = list(seen), []
    plain = perplexity(model, texts, [16], stride=6, bos="window").lengths[0]
    scored = [15, 15, *[6] * 5, 1, 4]  # first windows, whole ones, and what is left of each document
    assert (len(rows), control.tokens, plain.tokens) == (9, 65, 65)
    moved = 0
    for row, original, new in zip(rows, seen, scored, strict=True):
        context = len(row) - new
        assert row[0] == 1
        assert torch.equal(row[context:], original[context:])
        assert torch.equal(row[:context].sort().values, original[:context].sort().values)
        moved += int((row != original).sum())
    assert moved > 30
    expected = weighted([(loss(model, row, new), new) for row, new in zip(rows, scored, strict=True)])
    assert control.nll == pytest.approx(expected, rel=1e-12)
    assert control.nll != pytest.approx(plain.nll, rel=1e-3)


def test_a_model_that_knows_nothing_scores_the_vocabulary() -> None:
    model = tiny("llama", tie_word_embeddings=False)
    torch.nn.init.zeros_(model.lm_head.weight)
    result = perplexity(model, documents(32, 40), [16, 32])
    assert [found.perplexity for found in result.lengths] == pytest.approx([VOCAB, VOCAB])
    assert result.lengths[0].interval is not None
    assert result.lengths[0].interval.low == pytest.approx(VOCAB)


def test_intervals_are_over_documents() -> None:
    result = perplexity(tiny("llama"), documents(*range(20, 40)), [8, 20])
    for found in result.lengths:
        assert found.interval is not None
        assert found.interval.low < found.perplexity < found.interval.high
    assert perplexity(tiny("llama"), documents(20), [8]).lengths[0].interval is None


def test_survives_json() -> None:
    result = perplexity(tiny("llama"), documents(32, 40, 5), [8, 16], bos="document", stride=3)
    assert PerplexityResult.from_json(result.to_json()) == result
    assert PerplexityResult.from_dict(result.to_dict()) == result
    saved = json.loads(result.to_json())
    assert (saved["skipped"], saved["bos"], saved["stride"], saved["protocol"]) == ([2], "document", 3, "sliding")


@pytest.mark.parametrize("text", ["{}", "[]", "no JSON", '{"lengths": [{"length": 3}]}'])
def test_refuses_json_of_something_else(text: str) -> None:
    with pytest.raises(hp.EvaluationError):
        PerplexityResult.from_json(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": []}, "lengths are"),
        ({"lengths": [1, 4]}, "lengths are"),
        ({"lengths": [4.5]}, "lengths are"),
        ({"lengths": 8.5}, "lengths are"),
        ({"lengths": [65]}, "more than the 64 positions"),
        ({"lengths": [32]}, r"None of the 2 documents has 32 tokens .the longest has 31"),
        ({"stride": 0}, "stride is a whole number from 1 to 7"),
        ({"stride": 8}, "stride is a whole number from 1 to 7"),
        ({"stride": 1.5}, "stride is a whole number"),
        ({"stride": 4, "protocol": "prefix"}, "'prefix' has none"),
        ({"protocol": "rolling"}, "protocol is one of 'sliding', 'disjoint', 'prefix', not 'rolling'"),
        ({"reduction": "mean"}, "reduction is one of 'token', 'yarn'"),
        ({"bos": True}, "bos is one of"),
        ({"bos": "window", "bos_token_id": VOCAB}, "do not fit a vocabulary of 64"),
        ({"control": "shuffled"}, "control is one of"),
        ({"control": "shuffled-context", "protocol": "prefix"}, "none is in front of them"),
        ({"control": "shuffled-context", "protocol": "disjoint"}, "none is in front of them"),
        ({"tokens_per_batch": 0}, "tokens_per_batch is a whole number"),
    ],
)
def test_refuses_bad_arguments_before_anything_runs(options: dict[str, Any], message: str) -> None:
    model = tiny("gpt2")
    shapes = counted(model)
    with pytest.raises(hp.EvaluationError, match=message):
        perplexity(model, documents(31, 3), **{"lengths": [8, 16], **options})
    assert not shapes


def test_refuses_documents_and_models_that_cannot_be_measured() -> None:
    model = tiny("gpt2")
    with pytest.raises(hp.EvaluationError, match="None of the 0 documents"):
        perplexity(model, [], [8])
    with pytest.raises(hp.EvaluationError, match=r"A document .* not .*\[2, 9\]"):
        perplexity(model, [torch.zeros(2, 9, dtype=torch.long)], [4])
    with pytest.raises(hp.EvaluationError, match="vocabulary of 64"):
        perplexity(model, [*documents(9), torch.full((9,), 64)], [4])
    with pytest.raises(hp.EvaluationError, match="no causal language model"):
        perplexity(tiny("bert"), documents(9), [4])
    with pytest.raises(hp.EvaluationError, match="give bos_token_id"):
        perplexity(tiny("llama", bos_token_id=None), documents(9), [4], bos="window")
    torch.nn.init.constant_(model.transformer.ln_f.weight, torch.nan)
    for protocol in ("sliding", "disjoint", "prefix"):
        with pytest.raises(hp.EvaluationError, match=r"not finite at [48] tokens"):
            perplexity(model, documents(9), [4, 8], protocol=protocol)
