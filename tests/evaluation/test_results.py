"""Results survive JSON whatever they hold, and a damaged file is refused."""

import importlib
import json
import os
import pkgutil
import types
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import pytest
from tiny import tiny

import hf_posswap as hp
import hf_posswap.evaluation
from hf_posswap.evaluation.results import Result, load_results, read_result, save_results, subject_of

PLAIN = {int: 2**70, float: 0.1 + 0.2, str: "ä\n", bool: True, Any: [None, {"a": 1.5}]}
EXTREME = {int: -1, float: float("-inf"), str: "inf", bool: False, Any: None}


def example_of(wanted: Any, plain: Any = PLAIN, number: int = 2) -> Any:
    """What an annotation allows: `number` of whatever there may be many of; of a union its first option, for none the
    last."""
    if wanted in plain:
        return plain[wanted]
    if is_dataclass(wanted):
        hints = get_type_hints(wanted)
        return wanted(**{field.name: example_of(hints[field.name], plain, number) for field in fields(wanted)})
    options, origin = get_args(wanted), get_origin(wanted)
    if origin in (Union, types.UnionType):
        option = options[0 if number else -1]
        return None if option is type(None) else example_of(option, plain, number)
    if origin is dict:
        return {f"key {i}": example_of(options[1], plain, number) for i in range(number)}
    assert origin is tuple, f"results hold tuples, not {wanted}: they are frozen"
    each = options[:1] * number if options[-1] is Ellipsis else options
    return tuple(example_of(option, plain, number) for option in each)


def example(kind: str) -> Any:
    return example_of(Result.kinds[kind])


@dataclass(frozen=True)
class Part:
    pair: tuple[int, str]
    rows: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Sample(Result):
    """All that an annotation of a result may be."""

    kind: ClassVar[str] = "sample"
    number: float
    part: Part | None
    parts: tuple[Part, ...]
    by_name: dict[str, float]
    free: dict[str, Any]


KINDS = list(Result.kinds)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("plain", [PLAIN, EXTREME], ids=["plain", "extreme"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_survives_json(kind: str, plain: Any, number: int) -> None:
    result = example_of(Result.kinds[kind], plain, number)
    again = read_result(json.loads(result.to_json()))
    assert again == result
    assert type(again) is type(result)
    assert "Infinity" not in result.to_json()


def test_numbers_without_a_word_in_json_survive() -> None:
    inf, nan = float("inf"), float("nan")
    part = Part((3, "inf"), ((inf, -inf), (), (1e-300, 0.1 + 0.2)))
    result = Sample(number=nan, part=None, parts=(part, part), by_name={"a": inf, "b": 2}, free={"c": [1, None]})
    assert "NaN" not in result.to_json()
    again = Sample.from_json(result.to_json())
    assert again.parts == (part, part)
    assert again.number != again.number
    assert again.by_name == {"a": inf, "b": 2.0}
    assert again.free == {"c": [1, None]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_damaged_field_is_refused(kind: str) -> None:
    whole = example(kind).to_dict()
    for name in whole:
        without = {key: value for key, value in whole.items() if key != name}
        for damaged in (without, {**whole, name: [[{}]]}):
            with pytest.raises(hp.EvaluationError):
                read_result(damaged)
    with pytest.raises(hp.EvaluationError, match="has the fields"):
        read_result({**whole, "more": 1})
    with pytest.raises(hp.EvaluationError, match="version 2"):
        read_result({**whole, "version": 2})


def test_every_module_is_there_when_results_are_read() -> None:
    package = hf_posswap.evaluation
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    defined = {kind for kind, cls in Result.kinds.items() if cls.__module__.startswith("hf_posswap")}
    assert defined == {kind for kind in KINDS if kind != "sample"}


def test_files_hold_many_kinds_or_one_result(tmp_path: Path) -> None:
    results = [example(kind) for kind in KINDS]
    path = save_results(results, tmp_path / "results.json")
    assert load_results(path) == results
    save_results(results[:1], path)  # over what was there
    assert load_results(path) == results[:1]
    (tmp_path / "one.json").write_text(results[1].to_json())
    assert load_results(tmp_path / "one.json") == results[1:2]
    assert sorted(os.listdir(tmp_path)) == ["one.json", "results.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "its kind is None, and there are .*perplexity"),
        ('"results"', "its kind is None"),
        ('{"kind": ["perplexity"]}', "its kind is \\['perplexity'\\]"),
        ('{"results": {}}', "a list, not {}"),
        ('{"results": [1]}', "its kind is None"),
        ('{"kind": "perplexity"}', "kind 'perplexity' and version None, not 'perplexity' and 1"),
        ('{"kind": "perplexity", "version": 1}', "has the fields .*'lengths'.* not {}"),
        ('{"kind": "sample", "version": 1, "number": 1' + "0" * 400 + ', "part": null, "parts": [], "by_name": {}, '
         '"free": {}}', "A sample result's number is not 1000.*damaged"),
    ],
)  # fmt: skip
def test_files_of_something_else_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    with pytest.raises(hp.EvaluationError, match=rf"results.json holds no results: .*{message}"):
        load_results(path)


def test_what_cannot_be_read_or_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(hp.EvaluationError, match=r"missing.json cannot be read: No such file or directory\.$"):
        load_results(tmp_path / "missing.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "binary", tmp_path, "a\0b"):
        with pytest.raises(hp.EvaluationError, match="cannot be read"):
            load_results(path)
    for path in (tmp_path / "missing" / "x.json", tmp_path, "a\0b", tmp_path / ("x" * 300)):
        with pytest.raises(hp.EvaluationError, match="Results cannot be written to"):
            save_results([], path)
    assert os.listdir(tmp_path) == ["binary"]


def test_what_was_there_stays_when_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_results([], tmp_path / "results.json")
    before = path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(hp.EvaluationError, match="No space left"):
        save_results([example("perplexity")], path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["results.json"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save_results([], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert load_results(tmp_path / "real") == []


def test_labels_and_subjects() -> None:
    model = hp.patch(tiny("llama"), "yarn", factor=4.0)
    subject = subject_of(model)
    assert (subject.label, subject.architecture, subject.trained_length) == ("yarn", "LlamaForCausalLM", 64)
    assert (subject.head_dim, subject.heads, subject.hidden_size, subject.layers) == (8, 4, 32, 2)
    assert subject.scheme == json.loads(json.dumps(hp.scheme_of(model).to_dict()))
    assert subject.parameters == sum(p.numel() for p in model.parameters())
    assert (subject.dtype, subject.attention) == ("float32", model.config._attn_implementation)
    result = example("perplexity")
    assert result.labelled("mine").subject.label == "mine"
    assert result.labelled("mine").labelled(result.subject.label) == result
