"""compare: each row is what the measurement gives on a model patched by hand, and the model comes back."""

import math
from typing import Any

import pytest
import torch
from model_facts import facts
from tiny import LENGTH, VOCAB, tiny

import hf_posswap as hp
from hf_posswap.evaluation import compare, perplexity, pseudo_perplexity
from hf_posswap.evaluation.comparison import paired_ratios

MASK = {"mask_token_id": 4}


def text(documents: int = 6) -> list[torch.Tensor]:
    return [torch.randint(5, VOCAB, (int(length),)) for length in torch.randint(150, 260, (documents,))]


def numbers(result: Any) -> Any:
    """What does not depend on when it was measured."""
    return [(at.length, at.perplexity, at.document_nll, at.document_tokens) for at in result.lengths]


def test_rows_are_what_patching_by_hand_gives() -> None:
    model, documents = tiny("llama"), text()
    schemes = {"as it is": None, "PI": hp.LinearRoPE(factor=4.0), "bias": "alibi"}
    rows = compare(model, schemes, documents, [32, 128], stride=16)
    assert [row.subject.label for row in rows] == list(schemes)
    by_hand = [model, hp.patch(tiny("llama"), "linear", factor=4.0), hp.patch(tiny("llama"), "alibi")]
    for row, other in zip(rows, by_hand, strict=True):
        alone = perplexity(other, documents, [32, 128], stride=16)
        assert numbers(row) == numbers(alone)
        assert (row.subject.scheme, row.stride) == (alone.subject.scheme, 16)
    assert len({at.document_tokens for row in rows for at in row.lengths}) == 1


def test_a_list_is_labelled_by_name() -> None:
    rows = compare(tiny("gpt2"), [None, "nope", hp.ALiBi()], text(2), [32])
    assert [row.subject.label for row in rows] == ["as it is", "nope", "alibi"]


def test_controls_add_rows() -> None:
    model, documents, controls = tiny("llama"), text(), ("no-position", "shuffled-context")
    rows = compare(model, {"mine": None}, documents, [LENGTH], controls=controls)
    assert [row.subject.label for row in rows] == ["mine", "no-position", "mine, shuffled-context"]
    assert numbers(rows[1]) == numbers(perplexity(hp.patch(tiny("llama"), "nope"), documents, [LENGTH]))
    assert numbers(rows[2]) == numbers(perplexity(model, documents, [LENGTH], control="shuffled-context"))
    assert rows[2].control == "shuffled-context"
    assert numbers(rows[2]) != numbers(rows[0])
    assert len(compare(model, ["nope"], documents, [LENGTH], controls=["no-position"])) == 1


def test_masked_models_are_compared_by_pseudo_perplexity() -> None:
    model, documents = tiny("bert"), text(2)
    rows = compare(model, [None, "alibi"], documents, [32], controls=["no-position"], positions=4, **MASK)
    assert [row.kind for row in rows] == ["pseudo_perplexity"] * 3
    bag = hp.patch(tiny("bert"), "nope", allow_unordered=True)
    assert numbers(rows[2]) == numbers(pseudo_perplexity(bag, documents, [32], positions=4, **MASK))


@pytest.mark.parametrize("own", [None, "linear"])
def test_the_model_comes_back(own: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama").train()
    if own is not None:
        hp.patch(model, own, factor=2.0)
    before, documents = facts(model), text(2)
    compare(model, [None, "nope", "alibi", hp.YaRN(factor=4.0)], documents, [LENGTH])
    assert facts(model) == before
    measured = []

    def interrupted(*args: Any, **options: Any) -> Any:
        measured.append(args)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return perplexity(*args, **options)

    monkeypatch.setattr("hf_posswap.evaluation.comparison.perplexity", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare(model, [None, "alibi"], documents, [LENGTH])
    assert facts(model) == before


@pytest.mark.parametrize(
    ("model_type", "schemes", "options", "says"),
    [
        ("bert", {"a": hp.ALiBi(), "mine": hp.XPos()}, MASK, "mine: xpos does not work on an encoder"),
        ("llama", {"a": None, "table": hp.Learned(max_position_embeddings=100)}, {}, "table: 128 tokens are more than"),
        ("gpt2", {"stock": None}, {}, "stock: 128 tokens are more than the 64 positions"),
        ("llama", ["nope", "nope"], {}, "each once"),
        ("llama", [], {}, "one or more schemes"),
        ("llama", ["rotary"], {}, "rotary"),
        ("llama", ["nope"], {"controls": ["no-context"]}, "no control 'no-context'"),
        ("bert", ["alibi"], {"controls": ["shuffled-context"], **MASK}, "take no-position"),
    ],
)
def test_refused_before_anything_is_measured(
    model_type: str, schemes: Any, options: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(model_type)
    before, passes = facts(model), []
    monkeypatch.setattr(type(model), "forward", lambda *args, **kwargs: passes.append(args))
    with pytest.raises(hp.PosswapError, match=says):
        compare(model, schemes, text(2), [32, 128], **options)
    assert passes == []
    assert facts(model) == before


# Paired ratios


def test_paired_ratios_are_ratios_of_perplexities() -> None:
    one, other = compare(tiny("llama"), [None, "alibi"], text(), [32, 128])
    ratios, inverse = paired_ratios(one, other), paired_ratios(other, one)
    for at, ratio, back, against in zip(one.lengths, ratios, inverse, other.lengths, strict=True):
        assert ratio.value == pytest.approx(at.perplexity / against.perplexity, rel=1e-12)
        assert ratio.interval is not None
        assert back.interval is not None
        assert ratio.interval.low < ratio.value < ratio.interval.high
        assert back.interval.low == pytest.approx(1 / ratio.interval.high, rel=0.01)


def test_pairing_sees_what_unpaired_intervals_do_not() -> None:
    """Hard and easy documents differ far more than the two models, of which one is better on every token."""
    (result,) = compare(tiny("llama"), [None], text(12), [32])
    (at,) = result.lengths
    hard = tuple(nll + 2 * i * at.document_tokens[i] for i, nll in enumerate(at.document_nll))
    better = tuple(nll - 0.1 * at.document_tokens[i] for i, nll in enumerate(hard))
    changed = [replaced(result, nll) for nll in (better, hard)]
    (ratio,) = paired_ratios(*changed)
    assert ratio.value == pytest.approx(math.exp(-0.1), rel=1e-9)
    assert ratio.interval is not None
    assert [ratio.interval.low, ratio.interval.high] == pytest.approx([math.exp(-0.1)] * 2, rel=1e-9)


def replaced(result: Any, document_nll: tuple[float, ...]) -> Any:
    values = result.to_dict()
    values["lengths"][0]["document_nll"] = list(document_nll)
    return type(result).from_dict(values)


def test_only_results_on_the_same_tokens_are_paired() -> None:
    model, documents = tiny("llama"), text(3)
    one, yarn = perplexity(model, documents, [32]), perplexity(model, documents, [32], reduction="yarn")
    for other in (perplexity(model, documents, [LENGTH]), perplexity(model, documents[:2], [32])):
        with pytest.raises(hp.EvaluationError, match="same tokens"):
            paired_ratios(one, other)
    with pytest.raises(hp.EvaluationError, match="average over windows"):
        paired_ratios(one, yarn)
    (ratio,) = paired_ratios(perplexity(model, documents[:1], [32]), perplexity(model, documents[:1], [32]))
    assert (ratio.value, ratio.interval) == (1.0, None)
