"""Exported checkpoints: transformers alone runs them the same, and the report says of every reader what is true."""

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import LENGTH, VOCAB, tiny
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import hf_posswap as hp
from hf_posswap.cli import main
from hf_posswap.families import family_of
from hf_posswap.persistence.export_report import PLAIN
from hf_posswap.persistence.readers import READERS, Reading, formulas

LLAMAS = ("llama", "mistral", "qwen2")
HEAD_DIM = 16
PAIRS = HEAD_DIM // 2
COMPATS = ("v5", "v4+v5")
LISTS = tuple(1 + 0.4 * i for i in range(PAIRS))

EXPORTED: dict[str, hp.Scheme] = {
    "rope": hp.RoPE(rope_theta=5e5),
    "linear": hp.LinearRoPE(factor=4),
    "ntk": hp.NTKRoPE(factor=4.0),
    "dynamic": hp.DynamicNTKRoPE(factor=4.0, mode="static"),
    "yarn": hp.YaRN(factor=4.0),
    "yarn-betas": hp.YaRN(factor=4.0, beta_fast=4.0, beta_slow=0.1),
    "yarn-ramp": hp.YaRN(factor=4.0, truncate=False),
    "yarn-scaled": hp.YaRN(factor=4.0, attention_factor=1.3),
    "yarn-mscales": hp.YaRN(factor=4.0, mscale=0.7, mscale_all_dim=0.3),
    "ntk_by_parts": hp.NTKByPartsRoPE(factor=4.0),
    "longrope": hp.LongRoPE(factor=4.0, long_factor=LISTS, mode="static"),
    "longrope-scaled": hp.LongRoPE(factor=4.0, long_factor=LISTS, mode="static", attention_factor=1.3),
    "llama3": hp.Llama3RoPE(factor=4.0),
    "proportional": hp.ProportionalRoPE(),
    "proportional-factor": hp.ProportionalRoPE(factor=2.0),
    "nope": hp.NoPE(),
}

# In the order of READERS, on LLaMA with keys of both styles. s: same, p: plain RoPE, w: wrong otherwise, r: refuses.
ON_LLAMA = {
    "rope": "ssss",
    "linear": "ssss",
    "ntk": "ssss",
    "dynamic": "ssss",
    "yarn": "ssss",
    "yarn-betas": "ssws",
    "yarn-ramp": "ssww",
    "yarn-scaled": "ssww",
    "yarn-mscales": "ssws",
    "ntk_by_parts": "ssww",
    "longrope": "ssps",
    "longrope-scaled": "swpw",
    "llama3": "ssss",
    "proportional": "ssps",
    "proportional-factor": "swps",
    "nope": "srps",
}

OTHERWISE = {("qwen2", "llama3", "llama.cpp"): "p"}
"""Where a model type differs from LLaMA."""


def model_of(model_type: str, **options: Any) -> Any:
    wide = {"hidden_size": 4 * HEAD_DIM} if model_type in LLAMAS else {}
    return tiny(model_type, seed=torch.randint(1000, ()).item(), **wide, **options)


def written(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def logits(model: Any, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval()(tokens).logits


ALONE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
for folder in sys.argv[1:]:
    auto = AutoModelForMaskedLM if "bert" in folder else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        torch.save(model.eval()(torch.load(folder + "/tokens.pt")).logits, folder + "/logits.pt")
assert not any(name.startswith("hf_posswap") for name in sys.modules)
"""


def test_stock_models_in_a_process_without_us_give_the_same_logits(tmp_path: Path) -> None:
    expected: dict[str, Tensor] = {}

    def add(name: str, model: Any, length: int, compat: str) -> None:
        tokens = torch.randint(3, VOCAB, (2, length))
        expected[name] = logits(model, tokens)
        hp.export(model, tmp_path / name, compat=compat)  # type: ignore[arg-type]
        torch.save(tokens, tmp_path / name / "tokens.pt")

    for i, (name, scheme) in enumerate(EXPORTED.items()):
        for model_type in LLAMAS:
            for length in (LENGTH // 3, 3 * LENGTH):
                model = hp.patch(model_of(model_type), scheme)
                add(f"{model_type}-{name}-{length}", model, length, COMPATS[i % 2])
    for model_type in ("gpt2", "bert"):
        grown = hp.extend(model_of(model_type), 3 * LENGTH)
        add(f"{model_type}-grown", grown, 3 * LENGTH, "v5")
        add(f"{model_type}-sinusoidal", hp.patch(model_of(model_type), "sinusoidal", base=500.0), LENGTH, "v4+v5")
        add(f"{model_type}-unpatched", model_of(model_type), LENGTH, "v5")
    folders = [str(tmp_path / name) for name in expected]
    subprocess.run([sys.executable, "-c", ALONE, *folders], check=True, capture_output=True)
    for name, right in expected.items():
        found = torch.load(tmp_path / name / "logits.pt")
        torch.testing.assert_close(found, right, atol=2e-4, rtol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("model_type", LLAMAS)
@pytest.mark.parametrize("name", EXPORTED)
def test_report_is_true_of_the_file(name: str, model_type: str, tmp_path: Path) -> None:
    """The file is read by each reader's rules and compared with the float64 frequencies of the scheme."""
    model = hp.patch(model_of(model_type), EXPORTED[name])
    scheme, geometry = hp.scheme_of(model), family_of(model.config).geometry(model.config)
    nope = scheme.name == "nope"
    frequencies = torch.zeros(0, dtype=torch.float64) if nope else scheme.inv_freq(geometry)  # type: ignore[attr-defined]
    right = torch.cat((frequencies, torch.zeros(PAIRS - len(frequencies), dtype=torch.float64)))
    scaling = 1.0 if nope else scheme.scaling(geometry)  # type: ignore[attr-defined]
    for compat in COMPATS:
        report = hp.export(model, tmp_path / compat, compat=compat)  # type: ignore[arg-type]
        for reader, verdict in zip(READERS, report.readers, strict=True):
            found = reader.read(written(tmp_path / compat))
            assert (verdict.verdict == "same") == is_right(found, right, scaling), (reader.name, compat)
            assert verdict.verdict.startswith("refuses") == (found.refuses is not None)
            if compat == "v4+v5":
                other = OTHERWISE.get((model_type, name, reader.name))
                assert short(verdict.verdict) == (other or ON_LLAMA[name][READERS.index(reader)]), reader.name


def is_right(found: Reading, right: Tensor, scaling: float) -> bool:
    if found.refuses is not None or found.inv_freq is None or found.depends_on_length:
        return False
    inv_freq = torch.tensor(found.inv_freq, dtype=torch.float64)
    close = inv_freq.shape == right.shape and torch.allclose(inv_freq, right, rtol=1e-5, atol=0)
    return close and math.isclose(found.attention_scaling, scaling, rel_tol=1e-5)


def short(verdict: str) -> str:
    return "p" if verdict == PLAIN else {"same": "s", "WRONG": "w", "refuses": "r"}[verdict.split(":")[0]]


@pytest.mark.parametrize("name", EXPORTED)
def test_lengths(name: str, tmp_path: Path) -> None:
    """vLLM, which multiplies, must end at the length that the model has; nobody may end beyond it."""
    model = hp.patch(model_of("llama"), EXPORTED[name])
    length = model.config.max_position_embeddings
    report = hp.export(model, tmp_path / "out", compat="v4+v5")
    assert report.length == length
    derived = {r.reader: r.max_length for r in report.readers if r.verdict == "same"}
    assert derived.get("vLLM", length) == length
    for reader in report.readers:
        assert reader.max_length is None or reader.max_length <= length
        shorter = reader.max_length is not None and reader.max_length < length
        assert (reader.note is not None) == shorter
        assert not shorter or f"tell it {length}" in str(reader.note)
    told = {"linear": {"transformers", "llama.cpp"}, "proportional-factor": {"transformers"}}
    assert shorter_readers(report) == told.get(name, set())


def shorter_readers(report: Any) -> set[str]:
    return {r.reader for r in report.readers if r.note}


def test_vllm_gets_a_factor_that_is_no_integer_type(tmp_path: Path) -> None:
    hp.export(hp.patch(model_of("llama"), hp.LinearRoPE(factor=4)), tmp_path / "out")
    assert isinstance(written(tmp_path / "out")["rope_parameters"]["factor"], float)


@pytest.mark.parametrize("compat", COMPATS)
def test_the_file_has_nothing_of_ours(compat: Any, tmp_path: Path) -> None:
    hp.export(hp.patch(model_of("llama"), "yarn", factor=4.0), tmp_path / "out", compat=compat)
    config = written(tmp_path / "out")
    assert "posswap" not in json.dumps(config).lower()
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    old = {"type": "yarn", "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": LENGTH}
    assert ("rope_scaling" in config) == ("rope_theta" in config) == (compat == "v4+v5")
    if compat == "v4+v5":
        assert old.items() <= config["rope_scaling"].items()
    # Read again by us: what was exported, and one style of keys does not contradict the other.
    assert hp.scheme_of(hp.load(tmp_path / "out")) == hp.scheme_of(hp.patch(model_of("llama"), "yarn", factor=4.0))


@pytest.mark.parametrize("name", EXPORTED)
@pytest.mark.parametrize("compat", COMPATS)
def test_load_reads_it_back(name: str, compat: Any, tmp_path: Path) -> None:
    model = hp.patch(model_of("qwen2"), EXPORTED[name])
    hp.export(model, tmp_path / "out", compat=compat)
    tokens = torch.randint(3, VOCAB, (1, 2 * LENGTH))
    torch.testing.assert_close(logits(hp.load(tmp_path / "out"), tokens), logits(model, tokens), atol=2e-4, rtol=2e-4)


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    model = hp.patch(model_of("llama", tie_word_embeddings=True), "yarn", factor=4.0)
    config, state = model.config.to_dict(), {k: v.clone() for k, v in model.state_dict().items()}
    places = {name: p.data_ptr() for name, p in model.named_parameters()}
    hp.export(model, tmp_path / "out", compat="v4+v5")
    assert model.config.to_dict() == config
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == places
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert hp.scheme_of(hp.unpatch(model)).name == "rope"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dtype_and_generation_config(dtype: torch.dtype, tmp_path: Path) -> None:
    model = hp.patch(model_of("llama").to(dtype), "linear", factor=2.0)
    model.generation_config.max_new_tokens = 7
    hp.export(model, tmp_path / "out")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert stock.dtype == dtype
    assert stock.generation_config.max_new_tokens == 7
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in stock.state_dict().items())


def test_a_head_of_another_task(tmp_path: Path) -> None:
    model = tiny("llama", "sequence", num_labels=3)
    report = hp.export(hp.patch(model, "ntk", factor=2.0), tmp_path / "out")
    assert report.architecture == "LlamaForSequenceClassification"
    assert [short(r.verdict) if "unknown" not in r.verdict else "u" for r in report.readers][:3] == ["s", "u", "u"]


def test_gpt2_says_its_length_under_both_names(tmp_path: Path) -> None:
    model = model_of("gpt2")
    model.config.n_ctx = LENGTH  # as in the checkpoints of old
    report = hp.export(hp.extend(model, 2 * LENGTH), tmp_path / "out")
    config = written(tmp_path / "out")
    assert config["n_ctx"] == config["n_positions"] == 2 * LENGTH
    assert [r.verdict for r in report.readers] == ["same"] * 4
    stale = {**config, "n_ctx": LENGTH}
    assert [reader.read(stale).refuses is None for reader in READERS] == [True, True, False, True]


def test_tokenizer_is_raised_in_the_file_alone(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=LENGTH)
    report = hp.export(hp.patch(model_of("llama"), "yarn", factor=4.0), tmp_path / "out", tokenizer=tokenizer)
    assert {r.reader: r.max_length for r in report.readers}["vLLM"] == 4 * LENGTH
    assert tokenizer.model_max_length == LENGTH
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "out").model_max_length == 4 * LENGTH


REFUSED = {
    "alibi": ("llama", hp.ALiBi(), "no words for it"),
    "t5": ("qwen2", hp.T5Bias(), "no words for it"),
    "xpos": ("llama", hp.XPos(), "no words for it"),
    "sinusoidal": ("llama", hp.Sinusoidal(), "RoPE, its rescalings and nope"),
    "learned": ("mistral", hp.Learned(init="zeros"), "RoPE, its rescalings and nope"),
    "rope on gpt2": ("gpt2", hp.RoPE(), "a table: learned or sinusoidal"),
    "yarn on bert": ("bert", hp.YaRN(factor=4.0), "a table: learned or sinusoidal"),
    "static on gpt2": ("gpt2", hp.DynamicNTKRoPE(factor=4.0, mode="static"), "a table: learned or sinusoidal"),
    "partial": ("llama", hp.RoPE(partial_rotary_factor=0.5), "ignores the factor on llama.*proportional"),
    "dynamic call": ("llama", hp.DynamicNTKRoPE(factor=4.0, mode="call"), "mode='static'"),
    "longrope call": ("llama", hp.LongRoPE(factor=4.0, long_factor=(1.0,) * PAIRS, mode="call"), "mode='static'"),
    "dynamic segment": ("llama", hp.DynamicNTKRoPE(factor=4.0), "mode='static'"),
    "longrope segment": ("llama", hp.LongRoPE(factor=4.0, long_factor=(1.0,) * PAIRS), "mode='static'"),
    "yarn segment": ("llama", hp.YaRN(factor=4.0, mode="segment"), "mode='static'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_and_nothing_written(case: str, tmp_path: Path) -> None:
    model_type, scheme, message = REFUSED[case]
    with pytest.raises(hp.SchemeError, match=message):
        hp.export(hp.patch(model_of(model_type), scheme), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_other_refusals(tmp_path: Path) -> None:
    model = model_of("llama")
    with pytest.raises(hp.CheckpointError, match=r"v5, v4\+v5"):
        hp.export(model, tmp_path / "out", compat="v4")  # type: ignore[arg-type]
    (tmp_path / "file").write_text("here")
    with pytest.raises(hp.CheckpointError, match="is a file"):
        hp.export(model, tmp_path / "file")
    with pytest.raises(hp.FamilyError, match="no values"):
        hp.export(model.to("meta"), tmp_path / "out")
    with pytest.raises(hp.FamilyError):
        hp.export(torch.nn.Linear(2, 2), tmp_path / "out")
    assert (tmp_path / "file").read_text() == "here"


def test_a_stock_function_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last check does not trust the config: should transformers compute yarn otherwise, yarn is refused."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    stock = ROPE_INIT_FUNCTIONS["yarn"]

    def other(*args: Any, **kwargs: Any) -> Any:
        inv_freq, scaling = stock(*args, **kwargs)
        return inv_freq * 1.0001, scaling

    model = hp.patch(model_of("llama"), "yarn", factor=4.0)
    monkeypatch.setitem(ROPE_INIT_FUNCTIONS, "yarn", other)
    with pytest.raises(hp.SchemeError, match="transformers WRONG"):
        hp.export(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_unpatched_models_of_each_type_transformers_has(tmp_path: Path) -> None:
    """A stock model that somebody else extended, in the keys of version 5, gets those of version 4."""
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": LENGTH}
    model = model_of("llama", rope_parameters=yarn, max_position_embeddings=4 * LENGTH)
    report = hp.export(model, tmp_path / "out", compat="v4+v5")
    assert [r.verdict for r in report.readers] == ["same"] * 4
    assert written(tmp_path / "out")["rope_scaling"]["type"] == "yarn"
    dynamic = model_of("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    with pytest.raises(hp.SchemeError, match="mode='static'"):
        hp.export(dynamic, tmp_path / "no")


def test_report_prints_and_serialises(tmp_path: Path) -> None:
    report = hp.export(hp.patch(model_of("llama"), hp.NoPE()), tmp_path / "out")
    values = json.loads(report.to_json())
    assert values == report.to_dict()
    assert values["scheme"]["name"] == "nope"
    table = str(report)
    assert all(reader.name in table for reader in READERS)
    assert table.count(PLAIN) == 2  # llama.cpp, and mlx-lm, which needs the old keys
    with pytest.raises(AttributeError):
        report.path = "other"  # type: ignore[misc]


def test_phi3_takes_default_and_longrope_alone() -> None:
    """Of all types; it reads "yarn" as longrope."""
    read = READERS[0].read
    shape = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256, "pad_token_id": 0}
    base = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], **shape}
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
    assert read({**base, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}).refuses is None
    assert read({**base, "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}).refuses
    assert read({**base, "rope_parameters": yarn}).refuses


OTHER_TYPES = {
    "qwen3": ("yarn", "llama3", "nope"),
    "smollm3": ("yarn", "linear", "nope", "unpatched"),
    "glm": ("yarn", "llama3", "nope", "unpatched"),
    "phi3": ("rope", "ntk", "longrope", "unpatched"),
}


@pytest.mark.parametrize(("model_type", "name"), [(t, name) for t, names in OTHER_TYPES.items() for name in names])
def test_model_types_with_ways_of_their_own(model_type: str, name: str, tmp_path: Path) -> None:
    """Norms on queries, layers that do not rotate, a part of each head that does, a config that takes two types."""
    model = tiny(model_type, seed=torch.randint(1000, ()).item())
    pairs = model.base_model.rotary_emb.inv_freq.numel()
    if name != "unpatched":
        scheme = hp.LongRoPE(factor=4.0, long_factor=LISTS[:pairs], mode="static") if name == "longrope" else None
        hp.patch(model, scheme or EXPORTED[name])
    for compat in COMPATS:
        report = hp.export(model, tmp_path / compat, compat=compat)  # type: ignore[arg-type]
        assert {r.verdict.split(":")[0] for r in report.readers} <= {"same", "unknown", "WRONG", "refuses"}
        tokens = torch.randint(3, VOCAB, (1, 3 * LENGTH))
        stock = AutoModelForCausalLM.from_pretrained(tmp_path / compat)
        torch.testing.assert_close(logits(stock, tokens), logits(model, tokens), atol=2e-4, rtol=2e-4)


def test_phi3_refuses_other_types_by_name(tmp_path: Path) -> None:
    for scheme in (hp.LinearRoPE(factor=4.0), hp.YaRN(factor=4.0), hp.Llama3RoPE(factor=4.0), hp.NoPE()):
        with pytest.raises(hp.SchemeError, match=r"on phi3 cannot be exported.*takes no rope_type"):
            hp.export(hp.patch(tiny("phi3"), scheme), tmp_path / "out")


@pytest.mark.parametrize("seed", range(8))
def test_readers_formulas_are_those_of_transformers(seed: int) -> None:
    """Drawn parameters that reach the clamps; transformers computes in float32."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    draw = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=draw).item()

    theta, factor, original = between(100, 1e6), between(1, 32), int(between(32, 8192))
    fast, slow, low = between(8, 64), between(0.1, 4), between(0.5, 2)
    yarn = {"beta_fast": fast, "beta_slow": slow, "truncate": seed % 2 == 0}
    llama3 = {"low_freq_factor": low, "high_freq_factor": low + between(0.5, 6)}
    kept = formulas.plain(64, theta)
    length = factor * original
    cases = [
        ("yarn", yarn, formulas.yarn(64, theta, factor, original, *yarn.values()), formulas.yarn_temperature(factor)),
        ("llama3", llama3, formulas.llama3(kept, factor, *llama3.values(), original), 1.0),
        ("linear", {}, formulas.divided(kept, factor), 1.0),
        ("proportional", {"partial_rotary_factor": 0.4}, None, 1.0),
    ]
    for rope_type, own, expected, scaling in cases:
        given = {"rope_type": rope_type, "rope_theta": theta, "factor": factor, **own}
        given |= {"original_max_position_embeddings": original} if rope_type in ("yarn", "llama3") else {}
        config = LlamaConfig(head_dim=64, max_position_embeddings=int(length) + 1, rope_parameters=given)
        inv_freq, found_scaling = ROPE_INIT_FUNCTIONS[rope_type](config, "cpu")
        if expected is None:
            expected = formulas.divided(formulas.proportional(64, theta, int(0.4 * 64 // 2)), factor)
        torch.testing.assert_close(inv_freq.double(), torch.tensor(expected, dtype=torch.float64), rtol=2e-5, atol=0)
        assert math.isclose(found_scaling, scaling, rel_tol=1e-6)


class TestCommand:
    """`hf-posswap export`."""

    def checkpoint(self, folder: Path, scheme: Any = None) -> str:
        model = model_of("llama")
        hp.save(hp.patch(model, scheme) if scheme else model, folder)
        return str(folder)

    def test_table(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = self.checkpoint(tmp_path / "in", hp.YaRN(factor=4.0))
        assert main(["export", model, str(tmp_path / "out"), "--compat", "v4+v5"]) == 0
        assert capsys.readouterr().out.count("same") == 4
        assert written(tmp_path / "out")["rope_scaling"]["factor"] == 4.0

    def test_json_and_overwrite(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model, out = self.checkpoint(tmp_path / "in"), tmp_path / "out"
        out.mkdir()
        (out / "note").write_text("kept")
        assert main(["export", model, str(out), "--json"]) == 2
        assert "not empty" in capsys.readouterr().err
        assert main(["export", model, str(out), "--json", "--overwrite"]) == 0
        assert {r["reader"] for r in json.loads(capsys.readouterr().out)["readers"]} == {r.name for r in READERS}
        assert (out / "note").read_text() == "kept"

    def test_refusal_before_weights_are_read(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = self.checkpoint(tmp_path / "in", hp.ALiBi())
        (tmp_path / "in" / "model.safetensors").write_bytes(b"")
        assert main(["export", model, str(tmp_path / "out")]) == 2
        message = capsys.readouterr().err
        assert "no words for it" in message
        assert message.count("\n") == 1
        assert not (tmp_path / "out").exists()

    def test_auto_class(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        model = self.checkpoint(tmp_path / "in")
        assert main(["export", model, str(tmp_path / "out"), "--auto-class", "AutoModel"]) == 0
        assert written(tmp_path / "out")["architectures"] == ["LlamaModel"]


def read_by(name: str, config: Mapping[str, Any]) -> Reading:
    return next(reader for reader in READERS if reader.name == name).read(config)


def test_what_readers_do_with_the_checkpoints_of_others() -> None:
    """Rules that no export of ours reaches."""
    shape = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": HEAD_DIM, "max_position_embeddings": 64}
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **shape}
    dynamic = {**llama, "rope_scaling": {"type": "dynamic", "factor": 4.0}, "rope_theta": 1e4}
    assert read_by("transformers", dynamic).depends_on_length
    assert read_by("mlx-lm", dynamic).depends_on_length
    assert read_by("vLLM", dynamic).max_length == 256
    assert read_by("vLLM", dynamic).inv_freq == read_by("llama.cpp", dynamic).inv_freq == formulas.plain(HEAD_DIM, 1e4)
    unknown = {**llama, "architectures": ["NobodysForCausalLM"]}
    assert all(read_by(name, unknown).unknown for name in ("vLLM", "llama.cpp"))
