"""`hf-posswap compare`: several schemes on the same tokens, and how they are typed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import hf_posswap as hp
from hf_posswap.cli.typed_schemes import split_outside, typed_schemes
from hf_posswap.evaluation import compare
from hf_posswap.evaluation.comparison import paired_ratios
from hf_posswap.evaluation.results import load_results
from hf_posswap.evaluation.sources import read_documents
from hf_posswap.report.numbers import with_interval

LIST = 'none,linear:factor=4,yarn:factor=4:mode=segment,{"name": "log_scaled", "inner": "rope"},nope'


def test_it_writes_and_prints_what_comparing_in_python_gives(
    byte_model: Callable[..., Path], texts: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    argv = ["compare", byte_model(), "--schemes", LIST, "--text", texts, "--lengths", "64,256", "--stride", "60"]
    done = run(*argv, "--output", tmp_path / "r.json", "--control", "shuffled-context")
    assert done.code == 0, done.err
    found = load_results(tmp_path / "r.json")
    schemes = {
        "none": None,
        "linear:factor=4": hp.LinearRoPE(factor=4.0),
        "yarn:factor=4:mode=segment": hp.YaRN(factor=4.0, mode="segment"),
        '{"name": "log_scaled", "inner": "rope"}': hp.LogScaled("rope"),
        "nope": hp.NoPE(),
    }
    documents = read_documents(texts, AutoTokenizer.from_pretrained(byte_model()))
    expected = compare(hp.load(byte_model()), schemes, documents, [64, 256], stride=60, controls=["shuffled-context"])
    assert len(found) == 10
    for one, other in zip(found, expected, strict=True):
        assert (one.subject.label, one.subject.scheme) == (other.subject.label, other.subject.scheme)
        assert [at.document_nll for at in one.lengths] == [at.document_nll for at in other.lengths]
    for result in expected[1:]:
        (line,) = [
            line
            for line in done.out.split("over none")[1].split("\n\n")[0].splitlines()
            if line.startswith(result.subject.label + "  ")
        ]
        for ratio in paired_ratios(result, expected[0]):
            assert with_interval(ratio.value, ratio.interval) in line


def test_other_measurements_can_be_compared(
    byte_model: Callable[..., Path], texts: Path, run: Callable[..., Any], tmp_path: Path
) -> None:
    argv = ["compare", byte_model("gpt2"), "--schemes", "none,alibi", "--text", texts, "--measure", "nll_by_position"]
    assert run(*argv, "--output", tmp_path / "r.json").code == 0
    results = load_results(tmp_path / "r.json")
    assert [(r.kind, r.subject.label, r.length) for r in results] == [
        ("nll_by_position", "none", 64),
        ("nll_by_position", "alibi", 64),
    ]


@pytest.mark.parametrize(
    ("model_type", "schemes", "says"),
    [
        ("llama", "none,yarn", "yarn needs factor"),
        ("llama", "none,,nope", "a name is missing"),
        ("llama", "nope,nope", "nope is given twice"),
        ("llama", "yarn:factor=4:factor=8", "a field is given twice"),
        ("llama", "yarn:4", "'4' is no field with a value"),
        ("llama", '{"name": 3}', "takes a name, or a JSON object"),
        ("bert", "none,xpos", "xpos: xpos does not work on an encoder"),
        ("llama", "none,learned:max_position_embeddings=100", "learned:max_position_embeddings=100: "),
    ],
)
def test_refused_by_label_before_weights_are_read(
    byte_model: Callable[..., Path],
    texts: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    model_type: str,
    schemes: str,
    says: str,
) -> None:
    monkeypatch.setattr("hf_posswap.cli.measuring.read_model", lambda *_, **__: pytest.fail("weights were read"))
    argv = ["compare", byte_model(model_type), "--schemes", schemes, "--text", texts]
    assert says in refused(*argv, "--lengths", "64" if model_type == "bert" else "64,128")


def test_schemes_as_they_are_typed() -> None:
    composed = {"name": "layered", "schemes": ["rope", {"name": "yarn", "factor": 4.0}], "pattern": "RRRN"}
    factors = [1.0, 2.5]
    typed = f"none, {json.dumps(composed)},longrope:factor=2:long_factor={json.dumps(factors)}"
    found = typed_schemes(typed)
    assert list(found) == ["none", json.dumps(composed), f"longrope:factor=2:long_factor={json.dumps(factors)}"]
    assert list(found.values()) == [
        None,
        hp.Layered(schemes=("rope", hp.YaRN(factor=4.0)), pattern="RRRN"),
        hp.LongRoPE(factor=2.0, long_factor=(1.0, 2.5)),
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b", ["a", "b"]),
        ("a", ["a"]),
        ("", [""]),
        ("a[1,2],b", ["a[1,2]", "b"]),
        ('{"a": "},", "b": [1, {"c": 2}]},d', ['{"a": "},", "b": [1, {"c": 2}]}', "d"]),
        (r'"\",",b', [r'"\","', "b"]),
        (r'"\\",b', [r'"\\"', "b"]),
    ],
)
def test_separators_within_brackets_and_quotes_do_not_count(text: str, parts: list[str]) -> None:
    assert split_outside(text, ",") == parts
