"""The command line: what it writes, what it refuses in one line, and what it must not load to say so."""

import contextlib
import importlib.metadata
import io
import json
import math
import os
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny import MODEL_TYPES, VOCAB, tiny, tiny_config
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, DynamicCache, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

import hf_posswap as hp
from hf_posswap.cli import main
from hf_posswap.cli.arguments import parse_arguments
from hf_posswap.cli.checkpoints import fitting_class, read_config, read_model
from hf_posswap.cli.parser import plain_value
from hf_posswap.cli.where_it_works import example
from hf_posswap.cli.writing import without_weights
from hf_posswap.families import FAMILIES, family_of
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
        block = done.out.split(f"\n{scheme.name:14}{scheme.__name__} ")[1].split("\n\n")[0]
        block = block.split("needs fine-tuning: ")[1]
        assert block.startswith(scheme.fine_tuning + "\n")
        for declared in fields(scheme):
            option = "in JSON: scheme" if declared.name == "scheme" else "--" + declared.name.replace("_", "-")
            assert f"\n  {option} " in block
    assert max(map(len, done.out.splitlines())) <= 120
    assert "rrrn" not in done.out


def test_schemes_json_says_class_kind_source_and_what_fields_accept(run: Callable[..., Any]) -> None:
    rows = {row["name"]: row for row in json.loads(run("schemes", "--json").out)}
    assert list(rows) == [scheme.name for scheme in SCHEMES]
    yarn = rows["yarn"]
    assert (yarn["class"], yarn["kind"], yarn["source"]) == ("YaRN", "rotary", "2309.00071")
    described = {field["name"]: field for field in yarn["fields"]}
    assert described["factor"] == {"name": "factor", "required": True, "accepts": "a finite number from 1 to 65536"}
    assert described["truncate"]["default"] is True
    assert described["beta_fast"]["default"] == 32.0


FOUR = {"num_hidden_layers": 4}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"n_layer": 4}),
    "bert": ("bert", FOUR),
    "bert decoder": ("bert", {**FOUR, "is_decoder": True}),
    "llama": ("llama", FOUR),
    "smollm3": ("smollm3", {**FOUR, "no_rope_layers": [1, 1, 0, 1]}),
    "phi3": ("phi3", FOUR),
}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What `schemes --json` says, by name."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["schemes", "--json"]) == 0
    return {row["name"]: row for row in json.loads(out.getvalue())}


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_schemes_says_what_models_then_do(told: dict[str, Any], scheme: type[hp.Scheme]) -> None:
    """Patched, run with a cache, switched to every backend and looked at as they would be saved."""
    for variant in told[scheme.name]["variants"]:
        for name, (model_type, overrides) in ASKED.items():
            model = tiny(model_type, **overrides)
            wanted = example(scheme, variant["fields"], family_of(model.config).geometry(model.config))
            assert wanted.kind == variant["kind"]
            on = variant["models"][name]
            if not on["works"]:
                with pytest.raises(hp.SchemeError, match=re.escape(on["reason"])):
                    hp.patch(model, wanted)
                continue
            hp.patch(model, wanted)
            written = model.config.to_diff_dict()["model_type"]
            assert on["native"] == (written == model_type)
            if name != "bert":
                assert takes_cache(model) == variant["cache"]["works"]
            assert runs_on(model_type, overrides, wanted) == set(variant["backends"] or BACKENDS)
            assert variant["flash_attention"] == ("flash_attention_2" in (variant["backends"] or BACKENDS))


BACKENDS = ("eager", "sdpa", "flex_attention", "flash_attention_2")


def runs_on(model_type: str, overrides: dict[str, Any], scheme: hp.Scheme) -> set[str]:
    """The backends on which `check` lets a model have the scheme."""
    found = set()
    for backend in BACKENDS:
        config = tiny_config(model_type, **overrides)
        config._attn_implementation = backend
        with contextlib.suppress(hp.SchemeError):
            hp.check(config, scheme)
            found.add(backend)
    return found


def takes_cache(model: Any) -> bool:
    """Whether it decodes with a cache; where it does, as without one."""
    tokens = torch.randint(4, VOCAB, (1, 20))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        try:
            parts = [model(part, past_key_values=cache, use_cache=True).logits for part in tokens.split([13, 7], dim=1)]
        except hp.SchemeError:
            return False
        whole = model(tokens, use_cache=False).logits
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-4, atol=1e-4)
    return True


def test_schemes_shows_options_that_make_a_difference_and_no_others(told: dict[str, Any]) -> None:
    modes = ["segment", "static", "call"]
    for name, row in told.items():
        found = [variant["fields"] for variant in row["variants"]]
        assert found == ([{"mode": m} for m in modes] if name in ("dynamic", "yarn", "longrope") else [{}])
    kinds = {v["fields"]["mode"]: (v["kind"], v["cache"]["works"]) for v in told["dynamic"]["variants"]}
    assert kinds == {"segment": ("score", True), "static": ("rotary", True), "call": ("rotary", False)}


def test_schemes_asks_every_model_type(told: dict[str, Any]) -> None:
    every = [*(t for family in FAMILIES for t in family.model_types), "bert decoder"]
    assert all(sorted(v["models"]) == sorted(every) for row in told.values() for v in row["variants"])


@pytest.mark.parametrize("family", [family.name for family in FAMILIES])
def test_schemes_of_one_family_in_words(told: dict[str, Any], run: Callable[..., Any], family: str) -> None:
    done = run("schemes", "--family", family)
    assert max(map(len, done.out.splitlines())) <= 120
    said = {block.split(" (")[0]: " ".join(block.split()) for block in done.out.split("\n\n")}
    assert list(said) == list(told)
    types = next(f.model_types for f in FAMILIES if f.name == family)
    others = {t for f in FAMILIES for t in f.model_types} - {*types}
    for name, row in told.items():
        assert f"needs fine-tuning: {row['fine_tuning']}" in said[name]
        for variant in row["variants"]:
            reasons = [on["reason"] for t, on in variant["models"].items() if t in types and on["reason"]]
            assert all(reason in said[name] for reason in [*reasons, variant["cache"]["reason"] or ""])
        assert all(re.search(rf"\b{t}\b", said[name]) for t in types)
        assert not any(re.search(rf"\b{t}\b[,:]", said[name]) for t in others)


def test_schemes_json_of_one_family(run: Callable[..., Any]) -> None:
    rows = json.loads(run("schemes", "--family", "bert", "--json").out)
    assert all([*v["models"]] == ["bert", "bert decoder"] for row in rows for v in row["variants"])


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
    assert lines["scheme"].strip() == "rope rope_theta=10000.0 partial_rotary_factor=1.0"
    assert lines["attention"].strip() == "sdpa, stock, with queries and keys rotated before it"
    assert (lines["position parameters"].strip(), lines["loads with"].strip()) == ("none", "hf_posswap")


def frequencies(rope_type: str, config: Any, **options: Any) -> torch.Tensor:
    """transformers' own, in float32."""
    return ROPE_INIT_FUNCTIONS[rope_type](config, "cpu", **options)[0]


def assert_turns(found: list[float], inv_freq: torch.Tensor, length: int) -> None:
    turns = inv_freq.double() * length / (2 * math.pi)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), turns, rtol=1e-5, atol=1e-9)


def test_inspect_counts_the_turns_of_every_pair(run: Callable[..., Any], tmp_path: Path) -> None:
    theta, factor = float(torch.empty(1).uniform_(1e3, 1e5)), float(torch.empty(1).uniform_(2, 9))
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    tiny("llama", head_dim=32, **rope).save_pretrained(tmp_path / "rope")
    hp.save(hp.patch(tiny("llama", head_dim=32, **rope), hp.YaRN(factor=factor)), tmp_path / "yarn")
    hp.save(hp.patch(tiny("llama", head_dim=32, **rope), hp.LogScaled(hp.RoPE())), tmp_path / "log")
    stock = AutoConfig.from_pretrained(tmp_path / "rope")
    plain = LlamaRotaryEmbedding(stock).inv_freq
    for name, inv_freq in (("rope", plain), ("log", plain), ("yarn", frequencies("yarn", native(tmp_path / "yarn")))):
        (row,) = json.loads(run("inspect", tmp_path / name, "--json").out)["rope_turns"]
        assert (row["layers"], row["where"], len(row["turns"])) == (None, None, 16)
        assert_turns(row["turns"], inv_freq, 64)
        full = int((inv_freq * 64 >= 2 * math.pi).sum())
        shown = run("inspect", tmp_path / name).out.split("rope turns ")[1]
        assert f"{full} of 16 pairs turn at least once in 64 positions" in shown
        assert [float(x) for x in shown.split("by pair:")[1].split()] == pytest.approx(row["turns"], rel=6e-3)


def native(folder: Path) -> Any:
    """The config as transformers alone reads it."""
    return LlamaConfig(**json.loads((folder / "config.json").read_text()))


@pytest.mark.filterwarnings("ignore:dynamic is saved as a plain checkpoint")
def test_inspect_counts_turns_where_frequencies_depend_on_length(run: Callable[..., Any], tmp_path: Path) -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    stock = tiny_config("llama", head_dim=16, rope_parameters=parameters)
    for mode in ("segment", "call"):
        hp.save(hp.patch(tiny("llama", head_dim=16), "dynamic", factor=4.0, mode=mode), tmp_path / mode)
    rows = json.loads(run("inspect", tmp_path / "segment", "--json").out)["rope_turns"]
    assert [row["where"] for row in rows] == ["positions 0 to 63", "positions 64 to 127", "positions 128 to 255"]
    for row, length in zip(rows, (64, 128, 256), strict=True):
        assert_turns(row["turns"], frequencies("dynamic", stock, seq_len=length), 64)
    facts = json.loads(run("inspect", tmp_path / "call", "--json").out)
    (row,) = facts["rope_turns"]
    assert row["where"] == "a call of 64"
    assert_turns(row["turns"], LlamaRotaryEmbedding(tiny_config("llama", head_dim=16)).inv_freq, 64)
    assert facts["cache"].startswith("refused: with mode='call'")
    assert facts["length"] == hp.load(tmp_path / "call").config.max_position_embeddings == 256


def test_inspect_counts_turns_by_layer_and_of_what_turns(run: Callable[..., Any], tmp_path: Path) -> None:
    for model_type in ("smollm3", "glm", "gpt2"):
        tiny_config(model_type).save_pretrained(tmp_path / model_type)
    hp.save(hp.patch(tiny("llama"), "proportional", partial_rotary_factor=0.5), tmp_path / "half")
    turns = {p.name: json.loads(run("inspect", p, "--json").out)["rope_turns"] for p in tmp_path.iterdir()}
    assert turns["gpt2"] == []
    assert [row["layers"] for row in turns["smollm3"]] == [[0]]
    glm = AutoModelForCausalLM.from_config(tiny_config("glm"))
    assert_turns(turns["glm"][0]["turns"], glm.model.rotary_emb.inv_freq, 64)
    half = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert_turns(turns["half"][0]["turns"], frequencies("proportional", tiny_config("llama", rope_parameters=half)), 64)
    assert turns["half"][0]["turns"][2:] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("keys", "style", "rope_type"),
    [
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, "v5", "linear"),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None},
            "v4",
            "linear",
        ),
        ({"rope_parameters": None}, "none", None),
    ],
)
def test_inspect_says_which_rope_keys_are_taken(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, keys: dict[str, Any], style: str, rope_type: str | None
) -> None:
    config = json.loads((saved("llama") / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **keys}))
    found = json.loads(run("inspect", tmp_path, "--json").out)["rope_keys"]
    assert (found["style"], (found["parameters"] or {}).get("rope_type")) == (style, rope_type)


def test_inspect_names_every_position_parameter(run: Callable[..., Any], tmp_path: Path) -> None:
    model = hp.patch(tiny("gpt2"), hp.LogScaled(hp.T5Bias(num_buckets=8)))
    hp.save(model, tmp_path / "log")
    facts = json.loads(run("inspect", tmp_path / "log", "--json").out)
    learned = {n.removeprefix("transformer."): list(p.shape) for n, p in model.named_parameters() if "position" in n}
    assert facts["position_parameters"] == learned != {}
    assert (facts["backends"], facts["cache"]) == (["eager", "sdpa", "flex_attention"], "works")


# patch

LAYERED = ["--scheme", "layered", "--schemes", '["rope", "nope"]', "--pattern", "RN"]
LOG_SCALED = ["--scheme", '{"name": "log_scaled", "inner": {"name": "t5", "num_buckets": 16}}']
LOG_SCALED_ROPE = ["--scheme", '{"name": "log_scaled", "inner": "rope"}', "--original-max-position-embeddings"]


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
        ("llama", hp.Layered(hp.RoPE(), hp.NoPE(), pattern="RN"), LAYERED),
        ("gpt2", hp.LogScaled(hp.T5Bias(num_buckets=16)), LOG_SCALED),
        ("llama", hp.LogScaled(hp.RoPE(), original_max_position_embeddings=8), [*LOG_SCALED_ROPE, "8"]),
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
        ("gpt2", ["--interpolation", "cubic"], hp.Learned(max_position_embeddings=256)),
        ("gpt2", ["--method", "hierarchical", "--alpha", "0.3"], hp.Learned(max_position_embeddings=256)),
        ("bert", ["--method", "random", "--seed", "7"], hp.Learned(max_position_embeddings=256)),
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
    given = {k[2:].replace("-", "_"): plain_value(v) for k, v in options.items() if k != "--method"}
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
        (["patch", "a", "b", "--scheme", "log_scaled", "--scheme", "rope"], "--scheme is given twice"),
        (["patch", "a", "b", "--scheme", "yarn", "--beta-fast", "8", "--beta_fast", "9"], "--beta_fast is given twice"),
        (["schemes", "--family"], "--family"),
        (["schemes", "--family", "opt"], "There is no family 'opt'; there are gpt2, bert, llama."),
    ],
)
def test_usage_errors(refused: Callable[..., str], argv: list[str], says: str) -> None:
    assert says in refused(*argv)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["--scheme", "bogus"], "there are nope, learned"),
        (["--scheme", "yarn"], "yarn needs factor"),
        (
            ["--scheme", "yarn", "--factr", "4"],
            "yarn has no field 'factr'; its fields are: rope_theta, partial_rotary_factor, factor,",
        ),
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
        (["--scheme", "log_scaled"], 'log_scaled needs inner, for example log_scaled with inner="rope"'),
        (["--scheme", '{"name": "yarn", "factor": 4'], "--scheme takes a name, or a JSON object"),
        (["--scheme", '{"factor": 4}'], "--scheme takes a name, or a JSON object"),
        (["--scheme", '{"name": "yarn", "factor": 4}', "--factor", "8"], "factor is given twice"),
        (["--scheme", '{"name": "yarn"}', "--name", "rope"], "name is given twice"),
        (["--scheme", '{"name": "log_scaled", "inner": "bogus"}'], "There is no scheme 'bogus'"),
        (["--scheme", "layered", "--schemes", "rope"], "schemes='rope' is not a list of schemes"),
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
        (["--max-length", "128", "--rope-theta", "5e5"], "no field 'rope_theta'; its fields are: interpolation."),
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


@pytest.mark.parametrize(
    "command",
    [
        ("patch", "--scheme", "alibi"),
        ("extend", "--max-length", "2048"),
        ("patch", "--scheme", "alibi", "--dry-run"),
        ("extend", "--max-length", "2048", "--dry-run"),
        ("export", "--dry-run"),
    ],
)
@pytest.mark.parametrize("case", BROKEN)
def test_broken_models_are_refused_in_one_line(
    run: Callable[..., Any], tmp_path: Path, case: str, command: tuple[str, ...]
) -> None:
    BROKEN[case](tmp_path / "model")
    done = run(command[0], tmp_path / "model", tmp_path / "out", *command[1:])
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].startswith("hf-posswap: ")
    assert "Traceback" not in done.err
    assert not {p.name for p in tmp_path.iterdir()} - {"model"}


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
    assert hp.scheme_of(AutoConfig.from_pretrained(out)) == hp.RoPE(rope_theta=10000.0, partial_rotary_factor=1.0)
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


# --dry-run and --json

WRITING = [
    ("gpt2", ("patch", "--scheme", "alibi")),
    ("gpt2", ("patch", "--scheme", "learned", "--max-position-embeddings", "32")),
    ("bert", ("patch", "--scheme", "nope", "--allow-unordered")),
    ("llama", ("patch", "--scheme", "yarn", "--factor", "4")),
    ("llama", ("patch", "--scheme", "dynamic", "--factor", "4", "--mode", "call")),
    ("llama", ("patch", "--scheme", "t5", "--auto-class", "AutoModel")),
    ("gpt2", ("extend", "--max-length", "256", "--method", "hierarchical")),
    ("llama", ("extend", "--max-length", "256")),
    ("llama", ("export", "--compat", "v4+v5")),
    ("gpt2", ("export",)),
]


@pytest.mark.filterwarnings("ignore:dynamic is saved as a plain checkpoint")
@pytest.mark.parametrize(("model_type", "command"), WRITING)
def test_a_dry_run_says_what_the_real_one_then_says(
    saved: Saved, run: Callable[..., Any], tmp_path: Path, model_type: str, command: tuple[str, ...]
) -> None:
    argv = (command[0], saved(model_type), tmp_path / "out", *command[1:])
    shown, planned = run(*argv, "--dry-run"), run(*argv, "--dry-run", "--json")
    assert (shown.code, planned.code, "nothing was written" in shown.out) == (0, 0, True)
    assert list(tmp_path.iterdir()) == []
    done = run(*argv, "--json")
    assert done.code == 0
    assert {**json.loads(planned.out), "written": True} == json.loads(done.out)
    facts, config = json.loads(done.out), json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"][0].removeprefix("Posswap") == facts["architecture"]
    assert hp.scheme_of(AutoConfig.from_pretrained(tmp_path / "out")).to_dict() == facts["scheme"]
    if command[0] != "export":
        assert facts["native"] == (config["model_type"] == model_type)
        assert facts["loads_with"] == ("transformers alone" if facts["native"] else "hf_posswap")
        assert bool(facts["stock_differs"]) == ("call" in command)


def test_a_dry_run_leaves_what_it_would_replace(saved: Saved, run: Callable[..., Any], tmp_path: Path) -> None:
    assert run("patch", saved(), tmp_path / "out", "--scheme", "alibi").code == 0
    before = files(tmp_path)
    assert run("patch", saved(), tmp_path / "out", "--scheme", "rope", "--overwrite", "--dry-run").code == 0
    assert files(tmp_path) == before


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("patch", "--scheme", "xpos", "--partial-rotary-factor", "0.2"), "partial_rotary_factor=0.2"),
        (("patch", "--scheme", "learned", "--max-position-embeddings", "65"), "table has 64 rows, fewer than 65"),
        (("extend", "--max-length", "128", "--method", "bogus"), "it has: interpolate, tile, repeat_last"),
        (("extend", "--max-length", "9999", "--method", "hierarchical"), "hierarchical"),
        (("extend", "--max-length", "128", "--method", "hierarchical", "--alpha", "2"), "alpha=2"),
        (("extend", "--max-length", "64"), "must be longer than the 64 of now"),
        (("export", "--auto-class", "AutoModelForMaskedLM"), "AutoModelForCausalLM"),
    ],
)
def test_refused_before_weights_are_read(
    saved: Saved,
    refused: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Any,
    says: str,
    dry: Any,
) -> None:
    read = []

    def read_then(args: Any, config: Any, **options: Any) -> Any:
        read.append(options)
        return read_model(args, config, **options)

    monkeypatch.setattr("hf_posswap.cli.writing.read_model", read_then)
    monkeypatch.setattr("hf_posswap.cli.export.read_model", read_then)
    assert says in refused(command[0], saved(), tmp_path / "out", *command[1:], *dry)
    assert read == [{"device_map": "meta"}] * len(dry) or command[0] == "export"
    assert list(tmp_path.iterdir()) == []


def test_export_refuses_quantised_weights_by_their_config(
    saved: Saved, refused: Callable[..., str], tmp_path: Path
) -> None:
    config = json.loads((saved("llama") / "config.json").read_text())
    quantised = {**config, "quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(quantised))
    assert "are quantised" in refused("export", tmp_path / "model", tmp_path / "out", "--dry-run")


@pytest.mark.filterwarnings("ignore:dynamic is saved as a plain checkpoint")
@pytest.mark.parametrize("fields_of_scheme", [("call",), ("static",), ("segment",)])
def test_without_weights_a_model_is_what_it_is_with_them(tmp_path: Path, fields_of_scheme: tuple[str]) -> None:
    """From the config alone, as a name on the Hub is checked, and from the headers of the files."""
    hp.save(hp.patch(tiny("llama"), "dynamic", factor=4.0, mode=fields_of_scheme[0]), tmp_path / "saved")
    args = SimpleNamespace(model=str(tmp_path / "saved"), auto_class=None, dry_run=False)
    config = read_config(args.model)
    found = [without_weights(args, config), without_weights(SimpleNamespace(**{**vars(args), "dry_run": True}), config)]
    for draft in found:
        loaded = read_model(args, config)
        assert all(p.is_meta for p in draft.parameters())
        assert (type(draft), hp.scheme_of(draft)) == (type(loaded), hp.scheme_of(loaded))
        assert draft.config.max_position_embeddings == loaded.config.max_position_embeddings == 256
        longer = [hp.extend(model, 300, "ntk") for model in (draft, loaded)]
        assert longer[0].config.hf_posswap == longer[1].config.hf_posswap


def test_a_dry_run_of_a_large_model_takes_no_memory(run: Callable[..., Any], tmp_path: Path) -> None:
    """6.7 billion parameters, 13 GB in a file that has a length and nothing in it."""
    config = LlamaConfig(architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path / "large")
    with torch.device("meta"):
        tensors = AutoModelForCausalLM.from_config(config).state_dict()
    header, end = {}, 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "BF16",
            "shape": [*tensor.shape],
            "data_offsets": [end, end := end + 2 * tensor.numel()],
        }
    text = json.dumps(header).encode()
    with open(tmp_path / "large" / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for command in (
        ("patch", "--scheme", "learned", "--max-position-embeddings", "1000000"),
        ("extend", "--max-length", "131072"),
        ("export",),
    ):
        assert run(command[0], tmp_path / "large", tmp_path / "out", *command[1:], "--dry-run").code == 0
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 300e6
    assert [p.name for p in tmp_path.iterdir()] == ["large"]


def test_what_inspect_prints_can_be_patched_in(run: Callable[..., Any], tmp_path: Path) -> None:
    scheme = hp.LogScaled(hp.YaRN(factor=3.5, beta_fast=16.0))
    hp.save(hp.patch(tiny("llama"), scheme), tmp_path / "one")
    tiny("llama").save_pretrained(tmp_path / "stock")
    printed = json.loads(run("inspect", tmp_path / "one", "--json").out)["scheme"]
    assert run("patch", tmp_path / "stock", tmp_path / "two", "--scheme", json.dumps(printed)).code == 0
    assert torch.equal(logits(hp.load(tmp_path / "two")), logits(hp.load(tmp_path / "one")))


def test_out_must_be_somewhere(
    saved: Saved, refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    argv = ("patch", saved(), "--scheme", "alibi", "--dry-run")
    assert "is no directory" in refused(*argv, tmp_path / "notes" / "out")
    assert "is no directory" in refused(*argv, tmp_path / "notes" / "below" / "out")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "is not writable" in refused(*argv, tmp_path / "out")
    assert files(tmp_path) == {"notes": b"mine"}


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


COMMANDS = ("schemes", "inspect", "patch", "extend", "export", "plot")


def test_help_of_every_command(run: Callable[..., Any]) -> None:
    for argv in (["--help"], *([command, "--help"] for command in COMMANDS)):
        done = run(*argv)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("usage: hf-posswap")
    assert "--factor 4" in run("patch", "--factor", "4", "--help").out.replace("\n", " ")
    assert run("--version").out.strip() == hp.__version__
    families = re.search(r"--family F\s+(.*?):", run("schemes", "-h").out.replace("\n", " "))
    assert families is not None
    assert re.split(r", | or ", " ".join(families[1].split())) == [family.name for family in FAMILIES]


def test_weights_that_are_missing_are_not_made_up(run: Callable[..., Any], tmp_path: Path) -> None:
    model = tiny("llama")
    weights = {k: v.clone() for k, v in model.state_dict().items() if k != "model.layers.1.mlp.down_proj.weight"}
    model.save_pretrained(tmp_path / "m")
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    for command in (["patch", "--scheme", "alibi"], ["extend", "--max-length", "128"], ["export"]):
        result = run(command[0], tmp_path / "m", tmp_path / "out", *command[1:])
        assert result.code == 2
        assert "lacks 1 weights, which would be random (model.layers.1.mlp.down_proj.weight" in result.err
        assert not (tmp_path / "out").exists()


def test_every_field_of_a_scheme_can_be_typed(run: Callable[..., Any]) -> None:
    for command in ("patch", "extend"):
        options = set(re.findall(r"--([a-z-]+)", run(command, "-h").out.split("Fields of the scheme")[0]))
        names = {declared.name for scheme in SCHEMES for declared in fields(scheme)}
        assert not {name for name in names if name.replace("_", "-") in options}


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
