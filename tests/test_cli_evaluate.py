"""`hf-posswap evaluate`: the figures of the functions that it calls, in a table and a file; resumed and shared out."""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

import hf_posswap as hp
from hf_posswap.cli.arguments import parse_arguments
from hf_posswap.cli.measures import MEASURES, function_of
from hf_posswap.cli.measuring_arguments import CHOICES, CONTROLS
from hf_posswap.evaluation import perplexity, token_nll
from hf_posswap.evaluation.comparison import CONTROLS as KNOWN_CONTROLS
from hf_posswap.evaluation.masked_reading import FORMS
from hf_posswap.evaluation.perplexity import REDUCTIONS
from hf_posswap.evaluation.results import load_results
from hf_posswap.evaluation.running import Running
from hf_posswap.evaluation.sources import read_documents
from hf_posswap.evaluation.windows import BOS, PROTOCOLS
from hf_posswap.schemes import SCHEMES

Run = Callable[..., Any]
ByteModel = Callable[..., Path]


def documents_of(model: Path, texts: Path) -> Any:
    return read_documents(texts, AutoTokenizer.from_pretrained(model))


def numbers(result: Any) -> Any:
    """All but what depends on when and where it was measured."""
    values = {name: value for name, value in result.to_dict().items() if name != "cost"}
    for each in values.get("lengths", []):
        del each["seconds"]
    return {**values, "subject": {**values["subject"], "model": ""}}


def without_cost(printed: str) -> list[str]:
    return [block for block in printed.split("\n\n") if "peak memory" not in block]


def figures(result: Any) -> Any:
    return [(at.length, at.perplexity, at.document_nll) for at in result.lengths]


def test_it_writes_and_prints_what_perplexity_gives(
    byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path
) -> None:
    model, output = byte_model(), tmp_path / "results.json"
    done = run("evaluate", model, "--text", texts, "--lengths", "128,64", "--stride", "30", "--output", output)
    assert done.code == 0
    (found,) = load_results(output)
    expected = perplexity(hp.load(model), documents_of(model, texts), [64, 128], stride=30)
    assert numbers(found) == numbers(expected)
    assert (found.subject.label, found.subject.model, found.skipped) == ("rope", str(model), (1,))
    header, row = done.out.splitlines()[:2]
    assert header.split() == ["model", "64", "128"]
    assert row.split()[:2] == ["rope", f"{found.lengths[0].perplexity:.2f}"]
    assert "stride 30" in done.out
    assert "no BOS is added" in done.out
    for bits in (at.bits_per_byte for at in found.lengths):
        assert f"{bits:.4f}" in done.out
    assert "peak memory" in done.out
    assert max(map(len, done.out.splitlines())) <= 120
    assert "left out as too short: b.txt (40 tokens) of 4 documents" in done.err
    assert "perplexity: 100%" in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "texts"}


def test_json_is_what_the_file_has(byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path) -> None:
    argv = ("evaluate", byte_model(), "--text", texts / "a.txt", "--lengths", "64", "--json")
    printed = run(*argv, "--output", tmp_path / "results.json")
    assert json.loads(printed.out) == json.loads((tmp_path / "results.json").read_text())
    assert run(*argv).code == 0


def test_a_scheme_on_the_fly(byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path) -> None:
    argv = ["evaluate", byte_model(), "--text", texts, "--lengths", "256", "--output", tmp_path / "r.json"]
    typed = ["--scheme", "yarn", "--factor", "4", "--beta-fast", "16", "--label", "mine", "--documents", "3"]
    assert run(*argv, *typed, "--dtype", "bfloat16", "--attn-implementation", "eager").code == 0
    (found,) = load_results(tmp_path / "r.json")
    model = hp.load(byte_model(), dtype="bfloat16", attn_implementation="eager")
    hp.patch(model, "yarn", factor=4.0, beta_fast=16.0)
    expected = perplexity(model, documents_of(byte_model(), texts)[:3], [256])
    assert numbers(found) == numbers(expected.labelled("mine"))
    assert (found.subject.dtype, found.subject.attention, found.documents) == ("bfloat16", "eager", 3)


def test_controls_are_measured_beside_it(byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path) -> None:
    argv = ["evaluate", byte_model(), "--text", texts, "--lengths", "64,128", "--output", tmp_path / "r.json"]
    done = run(*argv, "--control", "no-position,shuffled-context", "--measure", "perplexity,nll_by_position")
    assert done.code == 0, done.err
    results = load_results(tmp_path / "r.json")
    assert [(result.kind, result.subject.label) for result in results] == [
        ("perplexity", "rope"),
        ("nll_by_position", "rope"),
        ("perplexity", "no-position"),
        ("nll_by_position", "no-position"),
        ("perplexity", "rope, shuffled-context"),
    ]
    documents = documents_of(byte_model(), texts)
    without = perplexity(hp.patch(hp.load(byte_model()), "nope"), documents, [64, 128])
    shuffled = perplexity(hp.load(byte_model()), documents, [64, 128], control="shuffled-context")
    assert [figures(results[2]), figures(results[4])] == [figures(without), figures(shuffled)]
    assert "over rope" in done.out


def test_every_measurement_runs(byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path) -> None:
    causal = [measure for measure in MEASURES if measure != "pseudo_perplexity"]
    argv = ["evaluate", byte_model(), "--text", texts, "--lengths", "260,270", "--trials", "2", "--seed", "3"]
    done = run(*argv, "--measure", ",".join(causal), "--output", tmp_path / "r.json")
    assert done.code == 0, done.err
    results = load_results(tmp_path / "r.json")
    tasks = [getattr(result, "task", result.kind) for result in results]
    assert tasks == causal
    of = dict(zip(tasks, results, strict=True))
    assert [cell.length for cell in of["passkey"].cells] == [260, 270]
    assert {of[name].seed for name in ("passkey", "needle", "ruler_lite")} == {3}
    assert {cell.trials for cell in of["needle"].cells} == {2}
    assert {of[name].length for name in ("nll_by_position", "long_ppl", "position_probe", "attention_profile")} == {270}
    assert of["long_ppl"].short_length == 260
    assert done.out.count("\n\n") >= 2 * len(causal) - 1


def test_masked_models_have_pseudo_perplexity(byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path) -> None:
    argv = ["evaluate", byte_model("bert"), "--text", texts / "a.txt", "--positions", "2", "--output", tmp_path / "r"]
    assert run(*argv, "--lengths", "32", "--control", "no-position").code == 0
    results = load_results(tmp_path / "r")
    assert [result.kind for result in results] == ["pseudo_perplexity"] * 2
    assert [result.positions for result in results] == [2, 2]


def test_measurements_without_text_need_none(byte_model: ByteModel, run: Run, tmp_path: Path) -> None:
    argv = ["evaluate", byte_model(), "--measure", "passkey", "--trials", "1", "--output", tmp_path / "r"]
    assert run(*argv, "--lengths", "90").code == 0
    assert [cell.length for cell in load_results(tmp_path / "r")[0].cells] == [90]


@pytest.mark.parametrize(
    ("model_type", "typed", "name", "lengths"),
    [
        ("llama", [], "d.txt", [64, 128, 256]),
        ("llama", [], "b.txt", None),
        ("gpt2", [], "d.txt", [64]),
        ("gpt2", ["--scheme", "alibi"], "d.txt", [64, 128, 256]),
        ("llama", [], "", [64, 128, 256]),
        ("llama", [], "e.txt", [64, 128]),
    ],
)
def test_lengths_by_default(
    byte_model: ByteModel,
    texts: Path,
    run: Run,
    tmp_path: Path,
    model_type: str,
    typed: list[str],
    name: str,
    lengths: list[int] | None,
) -> None:
    (texts / "e.txt").write_text("x" * 140)
    if name == "":
        (texts / "e.txt").unlink()
    argv = ["evaluate", byte_model(model_type), "--text", texts / name, "--output", tmp_path / "r", *typed]
    done = run(*argv)
    if lengths is None:
        assert (done.code, "has 64 tokens (the longest has 40)" in done.err) == (2, True)
    else:
        assert [at.length for at in load_results(tmp_path / "r")[0].lengths] == lengths


def test_a_bos_in_front_of_windows_where_the_tokenizer_puts_one(
    byte_model: ByteModel, run: Run, tmp_path: Path
) -> None:
    words = Tokenizer(WordLevel({"<s>": 1, "?": 2, "a": 3, "b": 4}, unk_token="?"))
    words.pre_tokenizer = Whitespace()
    words.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", unk_token="?").save_pretrained(tmp_path / "t")
    (tmp_path / "text.txt").write_text(" ".join("ab"[i] for i in torch.randint(2, (200,))))
    argv = ["evaluate", byte_model(), "--text", tmp_path / "text.txt", "--tokenizer", tmp_path / "t", "--lengths", "64"]
    for typed in ([], ["--bos", "document"], ["--bos", "none"]):
        assert run(*argv, *typed, "--output", tmp_path / "r", "--overwrite").code == 0
        (found,) = load_results(tmp_path / "r")
        document = torch.tensor([3 if word == "a" else 4 for word in (tmp_path / "text.txt").read_text().split()])
        bos = typed[1] if typed else "window"
        expected = perplexity(hp.load(byte_model()), [document], [64], bos=bos, bos_token_id=1)
        assert (found.bos, figures(found)) == (bos, figures(expected))


def test_models_of_other_families(texts: Path, run: Run, tmp_path: Path, byte_model: ByteModel) -> None:
    config = OPTConfig(vocab_size=384, hidden_size=32, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2,
                       word_embed_proj_dim=32, max_position_embeddings=64)  # fmt: skip
    OPTForCausalLM(config).eval().save_pretrained(tmp_path / "opt")
    argv = ["evaluate", tmp_path / "opt", "--text", texts, "--tokenizer", byte_model(), "--output", tmp_path / "r"]
    assert run(*argv, "--lengths", "32,64").code == 0
    assert [at.length for at in load_results(tmp_path / "r")[0].lengths] == [32, 64]
    assert "more than the 64 positions" in run(*argv, "--lengths", "65", "--overwrite").err
    assert "opt" in run(*argv, "--lengths", "32", "--scheme", "alibi", "--overwrite").err


# Interruptions and processes


def test_an_interrupted_run_goes_on_by_itself(
    byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["evaluate", byte_model(), "--text", texts, "--lengths", "32,64", "--tokens-per-batch", "300"]
    argv += ["--control", "no-position"]
    assert run(*argv, "--output", tmp_path / "whole").code == 0
    passes: list[int] = []

    def counted(*args: Any, **options: Any) -> Any:
        passes.append(1)
        if len(passes) == stop_at:
            raise KeyboardInterrupt
        return token_nll(*args, **options)

    monkeypatch.setattr("hf_posswap.evaluation.reading.token_nll", counted)
    stop_at = 0
    assert run(*argv).code == 0
    total, stop_at = len(passes), len(passes) - 2
    passes.clear()
    done = run(*argv, "--output", tmp_path / "r")
    assert (done.code, done.err.splitlines()[-1]) == (130, "hf-posswap: interrupted")
    assert (tmp_path / "r.state").is_file()
    assert not (tmp_path / "r").exists()
    stop_at = 0
    passes.clear()
    assert run(*argv, "--output", tmp_path / "r").code == 0
    assert 0 < len(passes) < total / 2
    assert not (tmp_path / "r.state").exists()
    assert list(map(numbers, load_results(tmp_path / "r"))) == list(map(numbers, load_results(tmp_path / "whole")))


@pytest.mark.parametrize(
    ("command", "typed"),
    [
        (
            "evaluate",
            ["--lengths", "100,128", "--control", "no-position", "--measure", "perplexity,passkey", "--trials", "6"],
        ),
        pytest.param("advise", ["--max-length", "128", "--seconds", "0.001"], marks=pytest.mark.slow),
    ],
)
def test_two_processes_write_the_same_file(
    byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path, command: str, typed: list[str]
) -> None:
    argv = [command, str(byte_model()), "--text", str(texts), "--tokens-per-batch", "300", *typed]
    alone = run(*argv, "--output", tmp_path / "one")
    assert alone.code == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, "-m", "hf_posswap", *argv, "--output", tmp_path / "two"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, two = load_results(tmp_path / "one"), load_results(tmp_path / "two")
    assert list(map(numbers, two)) == list(map(numbers, one))
    assert {result.cost.processes for result in two} == {2}
    assert without_cost(done.stdout) == without_cost(alone.out) != alone.out
    assert done.stderr.count("left out as too short") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two", "texts"}


# What is refused, before weights are read


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--measure", "perplexitty"], "there is no 'perplexitty'; there are perplexity, pseudo_perplexity"),
        (["--measure", "passkey,passkey"], "passkey is given twice"),
        (["--control", "no-context"], "there is no 'no-context'"),
        (["--lengths", "0,64"], "0 is no number from 1 up"),
        (["--lengths", "64,long"], "--lengths"),
        (["--lengths", "5000"], "None of the 4 documents has 5000 tokens (the longest has 410)"),
        (["--protocol", "slide"], "--protocol"),
        (["--trials", "5"], "--trials is an option of passkey, needle, ruler_lite, not of perplexity"),
        (["--control", "shuffled-context", "--measure", "nll_by_position"], "--control is an option of perplexity"),
        (["--factor", "4"], "fields are of a scheme"),
        (["--scheme", "yarn"], "yarn needs factor"),
        (["--scheme", "rotary"], "rotary"),
        (
            ["--scheme", "learned", "--max-position-embeddings", "70", "--lengths", "64,128"],
            "more than the 70 positions",
        ),
        (["--measure", "long_ppl", "--lengths", "64"], "--lengths SHORT,LONG"),
        (["--text", "nowhere/at/all.txt"], "nowhere/at/all.txt"),
        (["--tokenizer", "{texts}"], "There is no tokenizer in"),
        (["--output", "{texts}"], "is a directory"),
        (["--output", "{texts}/a.txt"], "--overwrite replaces it"),
        (["--output", "{texts}/below/r.json"], "is no directory that can be written to"),
        (["--dtype", "int8"], "--dtype"),
    ],
)
def test_refused_before_weights_are_read(
    byte_model: ByteModel,
    texts: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    typed: list[str],
    says: str,
) -> None:
    monkeypatch.setattr("hf_posswap.cli.measuring.read_model", lambda *_, **__: pytest.fail("weights were read"))
    text = [] if "--text" in typed else ["--text", texts]
    typed = [word.format(texts=texts) for word in typed]
    assert says in refused("evaluate", byte_model(), *text, *typed)


def test_a_text_is_asked_for(byte_model: ByteModel, refused: Callable[..., str]) -> None:
    assert "--text takes a file" in refused("evaluate", byte_model())


def test_what_cannot_be_measured_is_one_line(byte_model: ByteModel, texts: Path, run: Run, tmp_path: Path) -> None:
    done = run("evaluate", byte_model("bert"), "--text", texts, "--measure", "perplexity", "--output", tmp_path / "r")
    assert (done.code, done.out) == (2, "")
    assert "is no causal language model" in done.err.splitlines()[-1]
    assert not (tmp_path / "r").exists()


# What can be typed is what there is


def test_choices_are_those_of_the_functions() -> None:
    assert {"protocol": PROTOCOLS, "reduction": REDUCTIONS, "bos": BOS, "form": FORMS} == CHOICES
    assert CONTROLS == KNOWN_CONTROLS
    for measure, options in MEASURES.items():
        parameters = inspect.signature(function_of(measure)).parameters
        assert {*options} <= {*parameters}
        assert parameters["run"].kind is inspect.Parameter.VAR_KEYWORD
        first = {p.name for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
        assert first <= {"model", "tokenizer", "documents", "lengths", "length", "short_length"}
    assert {*Running.__annotations__} == {"accelerator", "state", "progress"}


def test_every_field_but_the_seed_can_be_typed() -> None:
    names = {declared.name for scheme in SCHEMES for declared in fields(scheme)}
    for name in names - {"seed"}:
        argv = ["evaluate", "model", "--scheme", "yarn", f"--{name.replace('_', '-')}", "4"]
        assert parse_arguments(argv).fields == {name: 4}


def test_help(run: Run) -> None:
    for command in ("evaluate", "compare", "advise", "report"):
        done = run(command, "--help")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"usage: hf-posswap {command}")
