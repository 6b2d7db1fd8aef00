"""`hf-posswap advise`: the ranking, and a command that does what it says."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import hf_posswap as hp
from hf_posswap.evaluation import advise, perplexity
from hf_posswap.evaluation.results import load_results
from hf_posswap.evaluation.sources import read_documents

ByteModel = Callable[..., Path]


def typed(model: Path, texts: Path, *more: Any) -> list[Any]:
    return ["advise", model, "--text", texts, "--max-length", "128", *more]


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_the_command_it_prints_gives_the_model_that_was_measured(
    byte_model: ByteModel,
    texts: Path,
    run: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*typed(byte_model(model_type), texts, "--output", "advice.json"))
    assert done.code == 0, done.err
    (advice,) = load_results(tmp_path / "advice.json")
    assert done.out.splitlines()[-1] == advice.best.command
    assert "left out as too short: b.txt (40 tokens) of 4 documents" in done.err
    documents = read_documents(texts, AutoTokenizer.from_pretrained(byte_model(model_type)))
    assert advice.candidates == advise(hp.load(byte_model(model_type)), 128, documents).candidates
    for candidate in (advice.best, advice.candidates[-1]):
        if candidate.command:
            program, *argv = shlex.split(candidate.command)
            assert (program, run(*argv).code) == ("hf-posswap", 0)
            cut = [document.input_ids[: len(document) // 128 * 128] for document in documents if len(document) >= 128]
            again = perplexity(hp.load(tmp_path / argv[2]), cut, [64, 128], protocol="disjoint")
            assert again.lengths[1].perplexity == pytest.approx(candidate.perplexity, rel=1e-6)
            (tmp_path / argv[2]).rename(tmp_path / candidate.method)
    assert not (tmp_path / "advice.json.state").exists()


def test_a_single_document_and_a_model_that_is_best_as_it_is(
    byte_model: ByteModel, texts: Path, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ranked(*args: Any, **options: Any) -> Any:
        found = advise(*args, **options)
        return replace(found, candidates=tuple(sorted(found.candidates, key=lambda each: each.method != first)))

    monkeypatch.setattr("hf_posswap.cli.advise.advise", ranked)
    for first in ("yarn", "none"):
        done = run(*typed(byte_model(), texts / "a.txt", "--seconds", "0.01", "--output", tmp_path / first))
        (advice,) = load_results(tmp_path / first)
        assert done.code == 0, done.err
        said = " ".join(done.out.split())
        assert "1 document (" in said
        assert "over windows of one document" in said
        assert "fine-tuning it would still need" in said
        assert all(candidate.fine_tuning in said for candidate in advice.candidates)
        assert ("No extension beats the model as it is at 128 tokens on this text." in said) == (first == "none")
        assert done.out.splitlines()[-1] == advice.best.command != ""


def test_masked_models(byte_model: ByteModel, texts: Path, run: Callable[..., Any]) -> None:
    done = run(*typed(byte_model("bert"), texts / "a.txt", "--positions", "1", "--seconds", "0.01", "--json"))
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)["results"]
    assert (found["measure"], [each["method"] for each in found["candidates"]]) == (
        "pseudo_perplexity",
        ["interpolate"],
    )


def test_an_interrupted_advice_goes_on(
    byte_model: ByteModel, texts: Path, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = typed(byte_model(), texts, "--output", tmp_path / "r", "--windows", "2")
    passes: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(1)
        if len(passes) == 8:
            raise KeyboardInterrupt
        return token_nll(*args, **options)

    from hf_posswap.evaluation import token_nll

    monkeypatch.setattr("hf_posswap.evaluation.reading.token_nll", counted)
    assert run(*argv).code == 130
    assert (tmp_path / "r.state").is_file()
    assert run(*argv).code == 0
    resumed = len(passes) - 8
    assert run(*argv, "--overwrite").code == 0
    assert len(passes) - 8 - resumed == resumed + 7


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--max-length", "64"], "is no extension of the 64 positions"),
        (["--max-length", "4096"], "None of the 4 documents has 4096 tokens (the longest has 410)"),
        (["--positions", "2"], "--positions is of masked language models"),
        (["--windows", "0"], "0 is no number from 1 up"),
        (["--output", "{texts}"], "is a directory"),
    ],
)
def test_refused_before_weights_are_read(
    byte_model: ByteModel,
    texts: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    says: str,
) -> None:
    monkeypatch.setattr("hf_posswap.cli.measuring.read_model", lambda *_, **__: pytest.fail("weights were read"))
    more = [word.format(texts=texts) for word in more]
    assert says in refused(*typed(byte_model(), texts, *more))


def test_extend_names_advise(byte_model: ByteModel, refused: Callable[..., str], tmp_path: Path) -> None:
    said = refused("extend", byte_model(), tmp_path / "out", "--max-length", "128", "--method", "auto", "--text", "x")
    assert "`hf-posswap advise MODEL --max-length N --text FILE`" in said
