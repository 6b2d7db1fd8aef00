"""advise: it tries what `extend` has, ranks by what a measurement by hand gives, and leaves the model as it came."""

from typing import Any

import pytest
import torch
from model_facts import facts
from tiny import LENGTH, VOCAB, tiny

import hf_posswap as hp
from hf_posswap.evaluation import Advice, advise, perplexity
from hf_posswap.evaluation.advice import _sampled
from hf_posswap.evaluation.comparison import paired_ratios
from hf_posswap.evaluation.results import read_result
from hf_posswap.patching.extending import extension_methods

LONGER = 2 * LENGTH
MASK = {"mask_token_id": 4, "positions": 2}


def text(*lengths: int) -> list[torch.Tensor]:
    return [torch.randint(5, VOCAB, (length,)) for length in lengths or (300, 140, 400, 130)]


def extended(model: Any, candidate: Any) -> Any:
    return model if candidate.method == "none" else hp.extend(model, LONGER, candidate.method, **candidate.options)


def test_candidates_are_what_extending_by_hand_gives() -> None:
    documents = text(128, 256, 128)
    advice = advise(tiny("llama"), LONGER, documents)
    best = None
    for candidate in advice.candidates:
        other = extended(tiny("llama"), candidate)
        by_hand = perplexity(other, documents, [LENGTH, LONGER], protocol="disjoint")
        best = best or by_hand
        short, long = by_hand.lengths
        assert (candidate.short_perplexity, candidate.perplexity) == (short.perplexity, long.perplexity)
        assert candidate.interval == long.interval
        assert hp.schemes.BY_NAME[candidate.scheme["name"]] is type(hp.scheme_of(other))
        needed = hp.scheme_of(other).fine_tuning
        assert candidate.fine_tuning == ("nothing: the model as it is" if candidate.method == "none" else needed)
        if by_hand is not best:
            assert candidate.over_best == paired_ratios(by_hand, best)[-1].interval
    perplexities = [candidate.perplexity for candidate in advice.candidates]
    assert perplexities == sorted(perplexities)
    assert advice.candidates[0].over_best is None
    assert (advice.length, advice.trained_length) == (LONGER, LENGTH)
    assert (advice.documents, advice.over) == (3, "documents")
    assert advice.tokens == sum(len(document) // LONGER * (LONGER - 1) for document in documents)
    assert read_result(advice.to_dict()) == Advice.from_json(advice.to_json()) == advice


def other_models() -> dict[str, Any]:
    return {
        "llama": tiny("llama"),
        "gpt2": tiny("gpt2"),
        "bert": tiny("bert"),
        "alibi": hp.patch(tiny("llama"), "alibi"),
        "proportional": hp.patch(tiny("llama"), "proportional"),
        "rope on gpt2": hp.patch(tiny("gpt2"), "rope"),
        "smollm3": tiny("smollm3"),
    }


@pytest.mark.parametrize("name", other_models())
def test_every_method_of_extend_is_tried_or_named(name: str) -> None:
    model = other_models()[name].train()
    before = facts(model)
    advice = advise(model, LONGER, text(140, 130), **(MASK if name == "bert" else {}))
    named = {candidate.method for candidate in advice.candidates} | {said.split(":")[0] for said in advice.untried}
    has_table = name in ("gpt2", "bert")
    assert named == {*extension_methods(hp.scheme_of(model)), *(() if has_table else ("none",))}
    assert all(":" in said for said in advice.untried)
    assert [said.split(":")[0] for said in advice.untried] == (["longrope"] if "longrope" in named else [])
    assert advice.measure == ("pseudo_perplexity" if name == "bert" else "perplexity")
    assert facts(model) == before


def test_parameters_are_tried_too() -> None:
    tried = {(c.method, *c.options.items()) for c in advise(tiny("llama"), LONGER, text(130)).candidates}
    assert {("yarn",), ("yarn", ("mode", "segment")), ("dynamic",), ("dynamic", ("mode", "static"))} <= tried
    assert sorted(options[0][1] for method, *options in tried if method == "theta") == [40000.0, 80000.0, 160000.0]
    tried = {(c.method, *c.options.items()) for c in advise(tiny("gpt2"), LONGER, text(130)).candidates}
    assert {("hierarchical",), ("hierarchical", ("alpha", 0.2)), ("interpolate", ("interpolation", "cubic"))} <= tried


def test_when_the_time_is_over_nothing_new_is_begun() -> None:
    advice = advise(tiny("llama"), LONGER, text(130, 130), seconds=1e-9)
    assert {candidate.method for candidate in advice.candidates} == {"none", "yarn"}
    over = [said for said in advice.untried if said.endswith("the time was over")]
    assert len(over) == len(advise(tiny("llama"), LONGER, text(130, 130), seconds=None).candidates) - 2
    assert over[0] == "linear: the time was over"


def test_what_cannot_be_measured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(model: Any, *args: Any, **options: Any) -> Any:
        if hp.scheme_of(model).name == "linear":
            raise hp.EvaluationError("a likelihood that is not finite")
        return perplexity(model, *args, **options)

    measured.__name__ = "perplexity"
    monkeypatch.setattr("hf_posswap.evaluation.comparison.perplexity", measured)
    advice = advise(tiny("llama"), LONGER, text(130, 130), protocol="disjoint")
    assert "linear: a likelihood that is not finite" in advice.untried
    assert "linear" not in {candidate.method for candidate in advice.candidates}


def test_an_interrupted_model_comes_back() -> None:
    for model in (tiny("gpt2"), tiny("llama"), hp.extend(hp.patch(tiny("gpt2"), "learned"), 100)):
        before, passes = facts(model), []

        def interrupt(module: Any, *_: Any, passes: list[Any] = passes) -> None:
            passes.append(module)
            if len(passes) == 7:
                raise KeyboardInterrupt

        hook = model.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            advise(model, LONGER, text(130, 130))
        hook.remove()
        assert facts(model) == before


def test_a_model_that_was_extended_goes_on_from_before() -> None:
    model = hp.extend(tiny("llama"), 100, "linear")
    advice = advise(model, LONGER, text(130, 260))
    assert (advice.trained_length, advice.subject.label) == (LENGTH, "linear")
    (found,) = (c for c in advice.candidates if c.method == "linear")
    assert found.scheme["factor"] == LONGER / LENGTH
    assert hp.scheme_of(model) == hp.scheme_of(hp.extend(tiny("llama"), 100, "linear"))


def test_windows_are_taken_from_all_documents() -> None:
    documents = text(1000, 100, 500)
    sampled, skipped = _sampled(documents, 100, 8)
    assert [len(each) for each in sampled] == [500, 100, 200]
    assert skipped == ()
    assert all(torch.equal(a.input_ids, b[: len(a)]) for a, b in zip(sampled, documents, strict=True))
    single, skipped = _sampled([documents[0], documents[1][:50]], 100, 4)
    assert [each.input_ids.tolist() for each in single] == [
        documents[0][i : i + 100].tolist() for i in (0, 200, 500, 700)
    ]
    assert skipped == (1,)
    assert sum(map(len, _sampled(documents, 100, 99)[0])) == 1600


def test_a_single_document_still_has_intervals() -> None:
    advice = advise(tiny("llama"), LONGER, text(1000, 50), seconds=1e-9)
    assert (advice.documents, advice.over, advice.skipped) == (1, "windows of one document", (1,))
    assert all(candidate.interval is not None for candidate in advice.candidates)


def test_commands() -> None:
    model = tiny("llama")
    model.config._name_or_path = "some/where/tiny model"
    commands = {(c.method, *c.options.values()): c.command for c in advise(model, LONGER, text(130)).candidates}
    begin = f"hf-posswap extend 'some/where/tiny model' 'tiny model-{LONGER}' --max-length {LONGER} --method"
    assert commands["linear",] == f"{begin} linear"
    assert commands["yarn", "segment"] == f"{begin} yarn --mode segment"
    assert commands["theta", 80000.0] == f"{begin} theta --rope-theta 80000.0"
    assert commands["none",] == ""
    patched = hp.patch(model, "linear", factor=1.5)
    assert all("extend MODEL " in c.command for c in advise(patched, LONGER, text(130)).candidates if c.command)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"max_length": LENGTH}, "is no extension of the 64 positions"),
        ({"max_length": 500}, "None of the 2 documents has 500 tokens"),
        ({"seconds": 0}, "seconds above 0"),
        ({"windows": 0}, "windows are 1 or more"),
        ({"original_max_position_embeddings": 0}, "positions before any extension"),
    ],
)
def test_refused_before_anything_is_measured(asked: dict[str, Any], says: str) -> None:
    model = tiny("llama")
    model.register_forward_pre_hook(lambda *_: pytest.fail("something was measured"))
    with pytest.raises(hp.PosswapError, match=says):
        advise(model, **{"max_length": LONGER, "documents": text(130, 130), **asked})


def test_a_stock_config_that_leaves_its_length_open_has_to_be_told() -> None:
    stock = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
    with pytest.raises(hp.SchemeError, match="original_max_position_embeddings=32"):
        advise(tiny("llama", **stock), LONGER, text(130))
    told = advise(tiny("llama", **stock), LONGER, text(130), original_max_position_embeddings=32)
    assert told.trained_length == 32
    assert "--original-max-position-embeddings 32" in told.best.command


# extend(method="auto")


@pytest.mark.parametrize("shape", ["documents", "one", "rows"])
def test_auto_takes_the_best(shape: str) -> None:
    documents = list(torch.randint(5, VOCAB, (3, 150)))
    calibration = {"documents": documents, "one": documents[0], "rows": torch.stack(documents)}[shape]
    model = hp.extend(tiny("gpt2"), LONGER, "auto", calibration=calibration)
    best = advise(tiny("gpt2"), LONGER, documents[:1] if shape == "one" else documents).best
    by_hand = hp.extend(tiny("gpt2"), LONGER, best.method, **best.options)
    assert model.config.max_position_embeddings == LONGER
    assert torch.equal(model.transformer.wpe.weight, by_hand.transformer.wpe.weight)


def test_auto_is_measured_by_pseudo_perplexity_on_masked_models() -> None:
    class Tokenizer:
        mask_token_id = 4
        model_max_length = LENGTH

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": [1, 7, 2], "special_tokens_mask": [1, 0, 1]}

    tokenizer = Tokenizer()
    model = hp.extend(tiny("bert"), 80, "auto", tokenizer=tokenizer, calibration=text(80), seconds=1e-9)
    assert (model.config.max_position_embeddings, tokenizer.model_max_length) == (80, 80)


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("auto", {}, "calibration"),
        ("auto", {"calibration": [torch.arange(130) % VOCAB], "rope_theta": 5.0}, "takes no rope_theta"),
        ("yarn", {"calibration": [torch.arange(130) % VOCAB]}, "calibration text is of method='auto'"),
        (None, {"calibration": [torch.arange(130) % VOCAB]}, "calibration text is of method='auto'"),
    ],
)
def test_auto_refuses(method: str | None, given: dict[str, Any], says: str) -> None:
    model = tiny("llama")
    before = facts(model)
    with pytest.raises(hp.EvaluationError, match=says):
        hp.extend(model, LONGER, method, **given)
    assert facts(model) == before
