"""The command line: what it writes, what it refuses in one line, and what it must not load to say so."""

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import MODEL_TYPES, VOCAB, tiny
from transformers import AutoConfig, AutoTokenizer, ByT5Tokenizer

import hf_posswap as hp
from hf_posswap.cli import main
from hf_posswap.cli.arguments import parse_arguments, plain_value
from hf_posswap.cli.checkpoints import fitting_class
from hf_posswap.schemes import SCHEMES

Saved = Callable[..., Path]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Stock checkpoints, saved once: model type and head to a directory that no test may write to."""
    made: dict[Any, Path] = {}

    def at(model_type: str = "gpt2", head: str = "lm", **overrides: Any) -> Path:
        key = (model_type, head, *overrides.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp(model_type) / "stock"
            tiny(model_type, head, **overrides).save_pretrained(made[key])
        return made[key]

    return at


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """`main` with exit code, stdout and stderr."""

    def call(*argv: Any) -> Any:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return call


@pytest.fixture
def refused(run: Callable[..., Any]) -> Callable[..., str]:
    """Asserts exit code 2, nothing on stdout and one line on stderr, which it returns."""

    def call(*argv: Any) -> str:
        done = run(*argv)
        assert (done.code, done.out) == (2, ""), done
        assert done.err.startswith("hf-posswap: ")
        assert done.err.count("\n") == 1
        return done.err

    return call


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(3, 43)[None] % VOCAB).logits


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# schemes


def test_schemes_lists_every_registered_scheme_and_field(run: Callable[..., Any]) -> None:
    done = run("schemes")
    assert (done.code, done.err) == (0, "")
    for scheme in SCHEMES:
        assert f"{scheme.name:12}{scheme.__name__}" in done.out
        assert all("--" + declared.name.replace("_", "-") in done.out for declared in fields(scheme))


def test_schemes_json_says_class_kind_source_and_what_fields_accept(run: Callable[..., Any]) -> None:
    rows = {row["name"]: row for row in json.loads(run("schemes", "--json").out)}
    assert list(rows) == [scheme.name for scheme in SCHEMES]
    yarn = rows["yarn"]
    assert (yarn["class"], yarn["kind"], yarn["source"]) == ("YaRN", "rotary", "2309.00071")
    described = {field["name"]: field for field in yarn["fields"]}
    assert described["factor"] == {"name": "factor", "required": True, "accepts": "a finite number from 1 to 65536"}
    assert described["truncate"]["default"] is True
    assert described["beta_fast"]["default"] == 32.0


# inspect


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_inspect_a_stock_model_without_its_weights(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, model_type: str
) -> None:
    (tmp_path / "config.json").write_bytes((saved(model_type) / "config.json").read_bytes())
    facts = json.loads(run("inspect", tmp_path, "--json").out)
    assert facts["model_type"] == model_type
    assert facts["scheme"] == hp.scheme_of(tiny(model_type)).to_dict()
    assert (facts["trained_length"], facts["length"], facts["loads_with"]) == (64, 64, "transformers alone")
    assert facts["attention"] == "sdpa, stock"
    table = {"gpt2": "wpe.weight", "bert": "embeddings.position_embeddings.weight"}.get(model_type)
    assert facts["position_parameters"] == ({table: [64, 32]} if table else {})


def test_inspect_a_checkpoint_that_needs_the_package(run: Callable[..., Any], tmp_path: Path) -> None:
    hp.save(hp.patch(tiny("gpt2"), "t5", num_buckets=16), tmp_path / "t5")
    facts = json.loads(run("inspect", tmp_path / "t5", "--json").out)
    assert facts["scheme"] == {"name": "t5", "num_buckets": 16, "max_distance": 128}
    assert facts["position_parameters"] == {"position_encoding.relative_attention_bias": [16, 4]}
    assert facts["attention"].startswith("sdpa, as hf_posswap_sdpa")
    assert (facts["loads_with"], facts["architectures"]) == ("hf_posswap", ["GPT2LMHeadModel"])


def test_inspect_a_plain_checkpoint_of_ours(run: Callable[..., Any], tmp_path: Path) -> None:
    hp.save(hp.patch(tiny("llama"), "yarn", factor=4.0), tmp_path / "yarn")
    facts = json.loads(run("inspect", tmp_path / "yarn", "--json").out)
    assert facts["scheme"]["factor"] == 4.0
    assert (facts["trained_length"], facts["length"], facts["loads_with"]) == (64, 256, "transformers alone")


def test_inspect_shows_a_line_per_fact(run: Callable[..., Any], tmp_path: Path) -> None:
    hp.save(hp.patch(tiny("bert"), "rope"), tmp_path / "rope")
    done = run("inspect", tmp_path / "rope")
    lines = dict(line.split("  ", 1) for line in done.out.splitlines())
    assert lines["scheme"].strip() == "rope rope_theta=10000.0"
    assert lines["attention"].strip() == "sdpa, stock, with queries and keys rotated before it"
    assert (lines["position parameters"].strip(), lines["loads with"].strip()) == ("none", "hf_posswap")


# patch


@pytest.mark.parametrize(
    ("model_type", "scheme", "typed"),
    [
        ("gpt2", hp.ALiBi(), ["--scheme", "alibi"]),
        ("gpt2", hp.T5Bias(num_buckets=16), ["--scheme", "t5", "--num-buckets", "16"]),
        ("gpt2", hp.RoPE(rope_theta=500.0), ["--scheme=rope", "--rope_theta=5e2"]),
        ("llama", hp.YaRN(factor=4.0, truncate=False), ["--scheme", "yarn", "--factor", "4", "--truncate", "false"]),
        ("llama", hp.RoPE(), ["--scheme", "rope", "--rope-theta", "none"]),
        ("bert", hp.Sinusoidal(layout="concatenated"), ["--scheme", "sinusoidal", "--layout", "concatenated"]),
        ("bert", hp.NoPE(), ["--scheme", "nope", "--allow-unordered"]),
    ],
)
def test_patch_saves_what_patching_in_memory_gives(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, model_type: str, scheme: hp.Scheme, typed: list[str]
) -> None:
    done = run("patch", saved(model_type), tmp_path / "out", *typed)
    assert done.code == 0
    assert done.out.startswith(f"{tmp_path / 'out'}: {type(tiny(model_type)).__name__} with {scheme.name}")
    expected = hp.patch(tiny(model_type), scheme, allow_unordered=True)
    found = hp.load(tmp_path / "out", fitting_class(AutoConfig.from_pretrained(tmp_path / "out")))
    assert type(found) is type(expected)
    assert hp.scheme_of(found) == hp.scheme_of(expected)
    assert torch.equal(logits(found), logits(expected))


def test_fields_may_come_before_the_models(saved: Saved, run: Callable[..., Any], tmp_path: Path) -> None:
    assert run("patch", "--scheme", "yarn", "--factor", "4", saved("llama"), tmp_path / "out").code == 0
    assert hp.scheme_of(AutoConfig.from_pretrained(tmp_path / "out")).factor == 4.0


def test_patch_starts_from_a_checkpoint_that_needs_the_package(run: Callable[..., Any], tmp_path: Path) -> None:
    hp.save(hp.patch(tiny("gpt2"), "alibi"), tmp_path / "alibi")
    assert run("patch", tmp_path / "alibi", tmp_path / "rope", "--scheme", "rope").code == 0
    assert torch.equal(logits(hp.load(tmp_path / "rope")), logits(hp.patch(tiny("gpt2"), "rope")))


@pytest.mark.parametrize(
    ("model_type", "head", "overrides"),
    [
        ("gpt2", "lm", {}),
        ("gpt2", "base", {}),
        ("gpt2", "sequence", {}),
        ("bert", "masked", {}),
        ("bert", "lm", {"is_decoder": True}),
        ("bert", "choice", {}),
        ("llama", "token", {}),
        ("qwen2", "question", {}),
    ],
)
def test_the_head_that_was_saved_is_the_head_that_is_loaded(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, model_type: str, head: str, overrides: dict[str, Any]
) -> None:
    source = saved(model_type, head, **overrides)
    assert run("patch", source, tmp_path / "out", "--scheme", "alibi").code == 0
    assert run("patch", tmp_path / "out", tmp_path / "again", "--scheme", "rope").code == 0
    architecture = type(tiny(model_type, head, **overrides)).__name__
    assert AutoConfig.from_pretrained(tmp_path / "out").architectures == [architecture]
    assert AutoConfig.from_pretrained(tmp_path / "again").architectures == [architecture]


def test_auto_class_overrides_the_architecture(saved: Saved, run: Callable[..., Any], tmp_path: Path) -> None:
    assert run("patch", saved(), tmp_path / "out", "--scheme", "alibi", "--auto-class", "AutoModel").code == 0
    assert AutoConfig.from_pretrained(tmp_path / "out").architectures == ["GPT2Model"]


def test_the_dtype_of_the_checkpoint_is_kept(run: Callable[..., Any], tmp_path: Path) -> None:
    tiny("gpt2").to(torch.bfloat16).save_pretrained(tmp_path / "half")
    assert run("patch", tmp_path / "half", tmp_path / "out", "--scheme", "t5").code == 0
    assert {p.dtype for p in hp.load(tmp_path / "out").parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("command", [("patch", "--scheme", "alibi"), ("extend", "--max-length", "128")])
def test_the_tokenizer_comes_along(run: Callable[..., Any], tmp_path: Path, command: tuple[str, ...]) -> None:
    tiny("gpt2").save_pretrained(tmp_path / "stock")
    ByT5Tokenizer(model_max_length=64).save_pretrained(tmp_path / "stock")
    assert run(command[0], tmp_path / "stock", tmp_path / "out", *command[1:]).code == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert isinstance(tokenizer, ByT5Tokenizer)
    assert tokenizer.model_max_length == (64 if command[0] == "patch" else 128)


def test_no_tokenizer_is_made_up(saved: Saved, run: Callable[..., Any], tmp_path: Path) -> None:
    assert run("patch", saved(), tmp_path / "out", "--scheme", "alibi").code == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }


# extend


@pytest.mark.parametrize(
    ("model_type", "typed", "scheme"),
    [
        ("gpt2", [], hp.Learned(max_position_embeddings=256)),
        ("bert", ["--method", "tile"], hp.Learned(max_position_embeddings=256)),
        ("llama", [], hp.YaRN(rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)),
        ("mistral", ["--beta-fast", "16"], hp.YaRN(rope_theta=1e4, factor=4.0, original_max_position_embeddings=64)),
        ("llama", ["--method", "theta", "--rope-theta", "5e5"], hp.RoPE(rope_theta=500_000)),
    ],
)
def test_extend_saves_what_extending_in_memory_gives(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, model_type: str, typed: list[str], scheme: hp.Scheme
) -> None:
    done = run("extend", saved(model_type), tmp_path / "out", "--max-length", 256, *typed)
    assert done.code == 0
    assert "length 256" in done.out
    config = AutoConfig.from_pretrained(tmp_path / "out")
    assert config.max_position_embeddings == 256
    assert type(hp.scheme_of(config)) is type(scheme)
    options = dict(zip(typed[::2], typed[1::2], strict=True))
    given = {k[2:].replace("-", "_"): float(v) for k, v in options.items() if k != "--method"}
    expected = hp.extend(tiny(model_type), 256, options.get("--method"), **given)
    found = hp.load(tmp_path / "out", fitting_class(config))
    assert hp.scheme_of(found) == hp.scheme_of(expected)
    assert torch.equal(logits(found), logits(expected))


# Refusals: one line, exit code 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "COMMAND"),
        (["bogus"], "'schemes', 'inspect', 'patch', 'extend'"),
        (["schemes", "extra"], "extra"),
        (["inspect"], "MODEL"),
        (["inspect", "a", "--factor", "4"], "--factor"),
        (["patch", "a", "b"], "--scheme"),
        (["patch", "a", "--scheme", "alibi"], "OUT"),
        (["patch", "a", "b", "--scheme", "yarn", "--factor"], "--factor"),
        (["patch", "a", "b", "--scheme", "yarn", "--factor", "--overwrite"], "--factor"),
        (["patch", "a", "b", "c", "--scheme", "alibi"], "c"),
        (["extend", "a", "b"], "--max-length"),
        (["extend", "a", "b", "--max-length", "long"], "--max-length"),
        (["extend", "a", "b", "--max-length", "1.5"], "--max-length"),
    ],
)
def test_usage_errors(refused: Callable[..., str], argv: list[str], says: str) -> None:
    assert says in refused(*argv)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--scheme", "bogus"], "there are nope, learned"),
        (["--scheme", "yarn"], "yarn needs factor"),
        (["--scheme", "yarn", "--factr", "4"], "yarn has no field 'factr'; its fields are: rope_theta, factor"),
        (["--scheme", "yarn", "--factor", "0.5"], "factor=0.5 is not a finite number from 1 to 65536"),
        (["--scheme", "yarn", "--factor", "-4"], "factor=-4"),
        (["--scheme", "yarn", "--factor", "NaN"], "factor=nan"),
        (["--scheme", "yarn", "--factor", "four"], "factor='four'"),
        (["--scheme", "yarn", "--factor", "[4]"], "factor=[4]"),
        (["--scheme", "yarn", "--factor", "[" * 5000], "factor="),
        (["--scheme", "yarn", "--factor", "4", "--truncate", "yes"], "true or false"),
        (["--scheme", "t5", "--num-buckets", "8.5"], "an integer"),
        (["--scheme", "sinusoidal", "--layout", "true"], "one of interleaved, concatenated"),
        (["--scheme", "alibi", "--name", "rope"], "alibi has no field 'name'"),
        (["--scheme", "alibi", "--model", "x"], "alibi has no field 'model'"),
        (["--scheme", "alibi", "--allow_unordered", "true"], "alibi has no field 'allow_unordered'"),
        (["--scheme", "alibi", "--auto-class", "GPT2LMHeadModel"], "AutoModelForCausalLM"),
        (["--scheme", "alibi", "--auto-class", "AutoModelForMaskedLM"], "AutoModelForCausalLM"),
        (["--scheme", "alibi", "--auto-class", "sys"], "AutoModelForCausalLM"),
    ],
)
def test_patch_refuses_wrong_schemes_and_fields(
    saved: Saved, refused: Callable[..., str], tmp_path: Path, typed: list[str], says: str
) -> None:
    assert says in refused("patch", saved(), tmp_path / "out", *typed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--max-length", "64"], "must be longer than the 64 of now"),
        (["--max-length", "-1"], "must be longer"),
        (["--max-length", "99999999999999"], "at most"),
        (["--max-length", "128", "--method", "yarn"], "interpolate, tile, repeat_last"),
        (["--max-length", "128", "--rope-theta", "5e5"], "takes no fields"),
        (["--max-length", "128", "--tokenizer", "x"], "No scheme has a field tokenizer"),
        (["--max-length", "128", "--max_length", "256"], "No scheme has a field max_length"),
        (["--max-length", "128", "--model", "x"], "No scheme has a field model"),
    ],
)
def test_extend_refuses(saved: Saved, refused: Callable[..., str], tmp_path: Path, typed: list[str], says: str) -> None:
    assert says in refused("extend", saved(), tmp_path / "out", *typed)
    assert list(tmp_path.iterdir()) == []


def _folder_with(config: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text(config)

    return write


def _empty(folder: Path) -> None:
    folder.mkdir()


def _damaged(folder: Path) -> None:
    tiny("gpt2").save_pretrained(folder)
    (folder / "model.safetensors").write_bytes(b"not a tensor in sight")


def _pickled(folder: Path) -> None:
    model = tiny("gpt2")
    model.config.architectures = ["GPT2LMHeadModel"]
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def _other_shapes(folder: Path) -> None:
    tiny("gpt2").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "n_embd": 64}))


def _without_architectures(folder: Path) -> None:
    tiny("gpt2").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))


def _broken_tokenizer(folder: Path) -> None:
    tiny("gpt2").save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{")


BROKEN: dict[str, Callable[[Path], None]] = {
    "missing": lambda folder: None,
    "empty": _empty,
    "no json": _folder_with("{"),
    "a list": _folder_with("[1]"),
    "unknown type": _folder_with('{"model_type": "bogus"}'),
    "type of no string": _folder_with('{"model_type": ["gpt2"]}'),
    "unsupported": _folder_with('{"model_type": "opt"}'),
    "wrong value": _folder_with('{"model_type": "gpt2", "n_layer": "two"}'),
    "code": _folder_with('{"model_type": "bogus", "auto_map": {"AutoConfig": "evil.Config"}}'),
    "broken block": _folder_with('{"model_type": "gpt2", "hf_posswap": {"version": 99}}'),
    "no weights": _folder_with('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}'),
    "no such architecture": _folder_with('{"model_type": "gpt2", "architectures": ["GPT2ForNothing"]}'),
    "damaged": _damaged,
    "pickled": _pickled,
    "other shapes": _other_shapes,
    "no architectures": _without_architectures,
    "broken tokenizer": _broken_tokenizer,
}


@pytest.mark.parametrize("command", [("patch", "--scheme", "alibi"), ("extend", "--max-length", "2048")])
@pytest.mark.parametrize("case", BROKEN)
def test_broken_models_are_refused_in_one_line(
    run: Callable[..., Any], tmp_path: Path, case: str, command: tuple[str, ...]
) -> None:
    BROKEN[case](tmp_path / "model")
    done = run(command[0], tmp_path / "model", tmp_path / "out", *command[1:])
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("hf-posswap: ")
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "case",
    [
        "missing",
        "empty",
        "no json",
        "a list",
        "unknown type",
        "type of no string",
        "unsupported",
        "code",
        "broken block",
    ],
)
def test_inspect_refuses_in_one_line(refused: Callable[..., str], tmp_path: Path, case: str) -> None:
    BROKEN[case](tmp_path / "model")
    refused("inspect", tmp_path / "model")


def test_an_architecture_must_be_named_somewhere(run: Callable[..., Any], tmp_path: Path) -> None:
    _without_architectures(tmp_path / "model")
    assert "--auto-class takes one of: AutoModel," in run("patch", tmp_path / "model", "x", "--scheme", "alibi").err
    chosen = ("--auto-class", "AutoModelForCausalLM")
    assert run("patch", tmp_path / "model", tmp_path / "out", "--scheme", "alibi", *chosen).code == 0


# OUT


def test_the_model_is_never_written_over(saved: Saved, refused: Callable[..., str], tmp_path: Path) -> None:
    model = saved()
    before = files(model)
    (tmp_path / "link").symlink_to(model)
    for out in (model, f"{model}/", model / ".." / model.name, tmp_path / "link"):
        assert "is the model itself" in refused("patch", model, out, "--scheme", "alibi", "--overwrite")
    assert files(model) == before


def test_out_must_be_empty_unless_overwritten(
    saved: Saved, run: Callable[..., Any], refused: Callable[..., str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    assert run("patch", saved(), out, "--scheme", "alibi").code == 0
    (out / "notes.txt").write_text("mine")
    before = files(out)
    assert "--overwrite" in refused("patch", saved(), out, "--scheme", "rope")
    assert files(out) == before
    assert run("patch", saved(), out, "--scheme", "rope", "--overwrite").code == 0
    assert hp.scheme_of(AutoConfig.from_pretrained(out)) == hp.RoPE(rope_theta=10000.0)
    assert (out / "notes.txt").read_text() == "mine"


def test_out_is_no_file(saved: Saved, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert "is a file" in refused("patch", saved(), tmp_path / "out", "--scheme", "alibi", "--overwrite")
    assert "out" in refused("patch", saved(), tmp_path / "out" / "below", "--scheme", "alibi")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_failing_command_leaves_out_as_it_was(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert run("patch", saved(), out, "--scheme", "alibi").code == 0
    before = files(tmp_path)

    def full_disk(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full_disk)
    done = run("patch", saved(), out, "--scheme", "rope", "--overwrite")
    assert done.code == 2
    assert "No space left on device" in done.err
    assert files(tmp_path) == before


# The process around it


def test_what_libraries_print_does_not_reach_stdout(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = AutoConfig.from_pretrained

    def chatty(*args: Any, **kwargs: Any) -> Any:
        print("some library's news")
        return original(*args, **kwargs)

    monkeypatch.setattr(AutoConfig, "from_pretrained", chatty)
    done = run("inspect", saved(), "--json")
    assert json.loads(done.out)["family"] == "gpt2"
    assert "some library's news" in done.err


def test_interrupt(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_posswap.cli.schemes.run", interrupted)
    done = run("schemes")
    assert (done.code, done.out, done.err) == (130, "", "hf-posswap: interrupted\n")


def test_a_bug_is_not_hidden(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(args: Any) -> str:
        raise KeyError("a bug")

    monkeypatch.setattr("hf_posswap.cli.schemes.run", broken)
    with pytest.raises(KeyError):
        run("schemes")


def test_help_of_every_command(run: Callable[..., Any]) -> None:
    for argv in (["--help"], ["schemes", "-h"], ["inspect", "-h"], ["patch", "--help"], ["extend", "--help"]):
        done = run(*argv)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("usage: hf-posswap")
    assert "--factor 4" in run("patch", "--factor", "4", "--help").out.replace("\n", " ")
    assert run("--version").out.strip() == hp.__version__


def test_everything_after_two_dashes_is_no_option() -> None:
    parsed = parse_arguments(["patch", "--scheme", "alibi", "--", "--odd", "out"])
    assert (parsed.model, parsed.out, parsed.fields) == ("--odd", "out", {})


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("4.5", 4.5), ("1e3", 1000.0), ("True", True), ("false", False), ("None", None), ("[1, 2]", [1, 2])],
)
def test_plain_values(text: str, value: Any) -> None:
    found = plain_value(text)
    assert (found, type(found)) == (value, type(value))
    assert plain_value("tile") == "tile"


def test_the_installed_command_is_this_one() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="hf-posswap")
    assert script.load() is main


def process(code: str, *argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kwargs}
    return subprocess.run([sys.executable, "-c", code, *argv], text=True, check=False, **pipes)


MAIN = "import sys; from hf_posswap.cli import main; code = main(sys.argv[1:]);"


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["--help"], 0), (["patch", "--help"], 0), (["bogus"], 2), (["patch", "a", "b", "--factor"], 2)],
)
def test_help_and_usage_errors_load_neither_torch_nor_transformers(argv: list[str], code: int) -> None:
    check = "loaded = {'torch', 'transformers', 'numpy'} & {*sys.modules}; sys.exit(str(loaded) if loaded else code)"
    done = process(MAIN + check, *argv)
    assert done.returncode == code, done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = process(MAIN + "sys.exit(code)", "schemes", stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")
