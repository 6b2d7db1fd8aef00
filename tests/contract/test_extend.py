"""extend: what it means per scheme, that it is undone, saved, and refused where it has no meaning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pairs import CAUSAL, KINDS, build, close, example, is_carried, pairs, patched, position_parameters, tokens
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import hf_posswap as hp
from hf_posswap.schemes import SCHEMES
from hf_posswap.schemes.rope import RescaledRoPE
from hf_posswap.transfer import GROWTH

TRAINED, LONGER = 64, 256
TABLES = ("gpt2", "bert", "bert-decoder")
ROTARY = tuple(k for k in CAUSAL if type(hp.scheme_of(build(k).config)) is hp.RoPE)

RULES: list[tuple[str, dict[str, Any]]] = [
    *((rule, {}) for rule in GROWTH),
    ("interpolate", {"interpolation": "cubic"}),
    ("hierarchical", {"alpha": 0.3}),
    ("random", {"seed": 7}),
]
CHANGE_OLD_ROWS = ("interpolate", "group")

ONES, LONG = [1.0, 1.1, 1.2, 1.3], [1.5, 2.5, 3.5, 4.5]
BASE = 5e5
RESCALED: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": TRAINED},
    "llama3": {
        "factor": 4.0,
        "original_max_position_embeddings": TRAINED,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "longrope": {"short_factor": ONES, "long_factor": LONG, "original_max_position_embeddings": TRAINED},
}
"""How stock configs say that a model was extended from 64 positions, by four where they say it."""
SILENT = ("linear", "proportional")


def stock(rope_type: str, length: int, **parameters: Any) -> Any:
    """A stock model in the terms of transformers 5."""
    written = {"rope_type": rope_type, "rope_theta": BASE, **parameters}
    return build("llama", max_position_embeddings=length, rope_parameters=written)


def stock_4(rope_type: str, length: int, **parameters: Any) -> Any:
    """The same in those of transformers 4."""
    written = {"type": rope_type, **parameters}
    return build("llama", max_position_embeddings=length, rope_theta=BASE, rope_scaling=written)


def extended_length(rope_type: str) -> int:
    """transformers takes the config's length for the trained one in this type alone."""
    return TRAINED if rope_type == "dynamic" else 4 * TRAINED


def auto_class(kind: str) -> Any:
    return AutoModelForMaskedLM if kind == "bert" else AutoModelForCausalLM


@pairs()
@torch.no_grad()
def test_every_pair_extends_runs_longer_and_comes_back(pair: Any, tmp_path: Path) -> None:
    model, stock = patched(pair), build(pair[0])
    before = {k: v.clone() for k, v in position_parameters(model).items()}
    now = model.config.max_position_embeddings
    ids = tokens(1, now + 40)
    assert hp.extend(model, now * 2) is model
    assert model.config.max_position_embeddings == now * 2
    logits = model(ids).logits
    assert logits.isfinite().all()
    if hp.scheme_of(model).kind in ("bias", "score"):  # what was learned stays
        assert all(torch.equal(v, before[k]) for k, v in position_parameters(model).items())
    model.save_pretrained(tmp_path / "m")
    loaded = hp.load(tmp_path / "m", auto_class=auto_class(pair[0])).eval()
    assert loaded.config.max_position_embeddings == now * 2
    assert torch.equal(loaded(ids).logits, logits)
    short = tokens()
    assert torch.equal(hp.unpatch(model)(short).logits, stock(short).logits)
    assert model.config.max_position_embeddings == TRAINED


@pytest.mark.parametrize(("method", "fields"), RULES, ids=str)
@pytest.mark.parametrize("kind", TABLES)
@torch.no_grad()
def test_tables_grow_into_plain_checkpoints(kind: str, method: str, fields: Any, tmp_path: Path) -> None:
    model, short, long = build(kind), tokens(), tokens(1, 200)
    before = model(short).logits
    hp.extend(model, LONGER, method=method, **fields)
    assert torch.equal(model(short).logits, before) == (method not in CHANGE_OLD_ROWS)
    expected = model(long).logits
    model.save_pretrained(tmp_path / "m")
    plain = auto_class(kind).from_pretrained(tmp_path / "m").eval()
    assert not hasattr(plain.base_model, "hf_posswap")
    assert torch.equal(plain(long).logits, expected)


@pytest.mark.parametrize(("method", "fields"), RULES[len(GROWTH) :], ids=str)
def test_fields_reach_the_rule(method: str, fields: Any) -> None:
    given, default = (hp.extend(build("gpt2"), LONGER, method, **f).transformer.wpe.weight for f in (fields, {}))
    assert not torch.equal(given, default)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", GROWTH)
def test_a_table_keeps_its_dtype_and_trains(method: str, dtype: torch.dtype) -> None:
    weight = hp.extend(build("gpt2").to(dtype), LONGER, method).transformer.wpe.weight
    assert (weight.dtype, weight.requires_grad, weight.is_leaf) == (dtype, True, True)


METHODS: list[tuple[str | None, dict[str, Any], Any]] = [
    (None, {}, hp.YaRN(factor=4.0)),
    ("yarn", {}, hp.YaRN(factor=4.0)),
    ("yarn", {"beta_fast": 16.0}, hp.YaRN(factor=4.0, beta_fast=16.0)),
    ("yarn", {"original_max_position_embeddings": 32}, hp.YaRN(factor=8.0, original_max_position_embeddings=32)),
    ("linear", {}, hp.LinearRoPE(factor=4.0)),
    ("ntk", {}, hp.NTKRoPE(factor=4.0)),
    ("ntk_by_parts", {"truncate": False}, hp.NTKByPartsRoPE(factor=4.0, truncate=False)),
    ("llama3", {}, hp.Llama3RoPE(factor=4.0)),
    ("dynamic", {}, hp.DynamicNTKRoPE(factor=4.0)),
    ("dynamic", {"mode": "static"}, hp.DynamicNTKRoPE(factor=4.0, mode="static")),
    ("longrope", {"long_factor": LONG}, hp.LongRoPE(factor=4.0, long_factor=LONG)),
    ("theta", {"rope_theta": BASE}, hp.RoPE(rope_theta=BASE)),
]


def test_every_rescaling_is_a_method() -> None:
    rescalings = {scheme.name for scheme in SCHEMES if issubclass(scheme, RescaledRoPE)}
    assert {method for method, _, _ in METHODS} == {None, "theta", *rescalings}
    with pytest.raises(hp.SchemeError, match=r"it has: yarn, linear, .*, theta") as refused:
        hp.extend(build("llama"), LONGER, "stretch")
    assert all(name in str(refused.value) for name in rescalings)


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.parametrize(("method", "fields", "scheme"), METHODS, ids=[f"{m}-{'-'.join(f)}" for m, f, _ in METHODS])
@torch.no_grad()
def test_rotary_methods(kind: str, method: str | None, fields: Any, scheme: Any) -> None:
    model, ids = hp.extend(build(kind), LONGER, method, **fields), tokens(1, 100)
    assert model.config.max_position_embeddings == LONGER
    assert torch.equal(model(ids).logits, hp.patch(build(kind), scheme)(ids).logits)
    again = hp.extend(hp.extend(build(kind), 128, "linear"), LONGER, method, **fields)
    assert hp.scheme_of(again) == hp.scheme_of(model), "goes on from the trained length, not from the extended one"


@pytest.mark.parametrize("make", [stock, stock_4])
@pytest.mark.parametrize("rope_type", RESCALED)
@torch.no_grad()
def test_a_rescaled_stock_model_goes_on_from_before(rope_type: str, make: Any) -> None:
    model, ids = make(rope_type, extended_length(rope_type), **RESCALED[rope_type]), tokens(1, 300)
    fields = {"original_max_position_embeddings": TRAINED} if rope_type in SILENT else {}
    hp.extend(model, 16 * TRAINED, **fields)
    expected = stock("yarn", 16 * TRAINED, factor=16.0, original_max_position_embeddings=TRAINED)
    close(model(ids).logits, expected(ids).logits, 1e-5)
    assert model.config.hf_posswap["trained_length"] == TRAINED
    assert model.config.hf_posswap["rope_theta"] == BASE
    hp.extend(model, 32 * TRAINED, "linear")
    close(model(ids).logits, stock("linear", 32 * TRAINED, factor=32.0)(ids).logits, 1e-5)


@torch.no_grad()
def test_phi3_goes_on_from_the_length_beside_its_parameters() -> None:
    """Half of a head turns; transformers has no YaRN for this model, but its formula."""

    def phi3(length: int, **parameters: Any) -> Any:
        written = {"rope_type": "longrope", "rope_theta": BASE, **factors, **parameters}
        lengths = {"max_position_embeddings": length, "original_max_position_embeddings": TRAINED}
        return build("phi3", **lengths, rope_parameters=written, partial_rotary_factor=0.5)

    ids, factors = tokens(1, 300), {"short_factor": ONES[:2], "long_factor": LONG[:2]}
    model = hp.extend(phi3(4 * TRAINED), 16 * TRAINED)
    yarn = stock("yarn", 16 * TRAINED, factor=16.0, original_max_position_embeddings=TRAINED).config
    yarn.head_dim = 4
    expected, scaling = ROPE_INIT_FUNCTIONS["yarn"](yarn)
    rotary = model.model.rotary_emb
    close(rotary.inv_freq, expected, 1e-6)
    assert rotary.attention_scaling == pytest.approx(scaling, rel=1e-12)
    hp.extend(model, 32 * TRAINED, "longrope", **factors, mode="call")
    close(model(ids, use_cache=False).logits, phi3(32 * TRAINED, factor=32.0)(ids, use_cache=False).logits, 1e-5)


@torch.no_grad()
def test_a_stock_model_by_its_own_method() -> None:
    """The result as transformers computes it from a config that says so."""
    ids = tokens(1, 300)
    for rope_type in ("llama3", "yarn"):
        parameters = {**RESCALED[rope_type], "factor": 16.0}
        model = hp.extend(stock(rope_type, 4 * TRAINED, **RESCALED[rope_type]), 16 * TRAINED, rope_type)
        close(model(ids).logits, stock(rope_type, 16 * TRAINED, **parameters)(ids).logits, 1e-5)
    model = stock("proportional", TRAINED, partial_rotary_factor=0.5)
    hp.extend(model, 16 * TRAINED)
    assert hp.scheme_of(model) == hp.ProportionalRoPE(partial_rotary_factor=0.5, factor=16.0, rope_theta=BASE)
    expected = stock("proportional", 16 * TRAINED, partial_rotary_factor=0.5, factor=16.0)
    close(model(ids).logits, expected(ids).logits, 1e-5)
    hp.extend(model, 17 * TRAINED, "theta", rope_theta=1e6)
    assert hp.scheme_of(model) == hp.ProportionalRoPE(partial_rotary_factor=0.5, rope_theta=1e6)
    for method in ("yarn", "linear"):
        with pytest.raises(hp.SchemeError, match=f"no extension method '{method}'; it has: proportional, theta"):
            hp.extend(model, 32 * TRAINED, method)


@pytest.mark.parametrize("rope_type", SILENT)
def test_a_length_that_no_config_records_is_asked_for(rope_type: str) -> None:
    half = {"partial_rotary_factor": 0.5} if rope_type == "proportional" else {}
    model = stock(rope_type, 256, factor=4.0, **half)
    config = model.config
    with pytest.raises(hp.SchemeError, match=r"scaling by 4 and .* its 256 positions are.*=64 if .* or 256 if"):
        hp.extend(model, 1024)
    assert model.config is config
    for original, factor in ((64, 16.0), (256, 4.0)):
        model = stock(rope_type, 256, factor=4.0, **half)
        hp.extend(model, 1024, original_max_position_embeddings=original)
        assert hp.scheme_of(model).factor == factor
        hp.extend(model, 2048)
        assert hp.scheme_of(model).factor == 2 * factor, "remembered"
    hp.extend(stock(rope_type, 256, factor=4.0, **half), 1024, "theta", rope_theta=1e6)
    hp.extend(stock(rope_type, 256, factor=1.0, **half), 1024)
    recorded = stock(rope_type, 256, factor=4.0, original_max_position_embeddings=64, **half)
    assert hp.scheme_of(hp.extend(recorded, 1024)).factor == 16.0


@pytest.mark.parametrize("load", [hp.load, AutoModelForCausalLM.from_pretrained], ids=["hp.load", "stock"])
def test_linear_scaling_of_ours_is_recorded(load: Any, tmp_path: Path) -> None:
    hp.patch(build("llama"), "linear", factor=4.0).save_pretrained(tmp_path / "m")
    assert hp.scheme_of(hp.extend(load(tmp_path / "m"), 512)).factor == 8.0


def test_its_own_method_keeps_the_fields() -> None:
    def extended(scheme: Any, method: str | None = None, **fields: Any) -> Any:
        return hp.scheme_of(hp.extend(hp.patch(build("llama"), scheme), 1024, method, **fields))

    own = {"beta_fast": 16.0, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.3}
    made = extended(hp.YaRN(factor=2.0, **own, attention_factor=1.5, mode="call"))
    assert made == extended(hp.RoPE(), **own, mode="call")
    assert made.attention_factor is None, "was made for the former factor"
    assert extended(hp.YaRN(factor=2.0, beta_fast=16.0), beta_fast=8.0) == extended(hp.RoPE(), beta_fast=8.0)
    for mode in ("segment", "static", "call"):
        dynamic = hp.DynamicNTKRoPE(factor=2.0, mode=mode)
        assert extended(dynamic, "dynamic").mode == mode
        assert extended(dynamic, "dynamic", mode="static").mode == "static"
        assert extended(dynamic) == extended(hp.RoPE()), "another scheme has modes of its own"
    longrope = hp.LongRoPE(factor=4.0, long_factor=LONG, short_factor=ONES)
    assert extended(longrope, "longrope", long_factor=ONES).short_factor == tuple(ONES)
    with pytest.raises(hp.SchemeError, match="needs long_factor"):
        extended(longrope, "longrope")
    halved = hp.RoPE(partial_rotary_factor=0.5)
    for method in ("yarn", "linear", "dynamic"):
        assert extended(halved, method).partial_rotary_factor == 0.5
    assert extended(halved, "theta", rope_theta=1e6) == hp.RoPE(partial_rotary_factor=0.5, rope_theta=1e6)


@pytest.mark.parametrize("scheme", [hp.YaRN, hp.LinearRoPE, hp.DynamicNTKRoPE])
def test_a_length_that_the_scheme_was_given_is_the_one_from_before(scheme: Any) -> None:
    model = hp.patch(build("llama"), scheme(factor=2.0, original_max_position_embeddings=32))
    assert model.config.max_position_embeddings == TRAINED
    extended = hp.scheme_of(hp.extend(model, LONGER))
    assert (extended.factor, extended.original_max_position_embeddings) == (8.0, 32)


def test_a_raised_base_is_not_the_one_from_before() -> None:
    model = hp.extend(hp.extend(build("llama"), 128, "theta", rope_theta=BASE), LONGER)
    assert hp.scheme_of(model) == hp.scheme_of(hp.patch(build("llama"), hp.YaRN(factor=4.0)))


def test_a_base_that_the_architecture_does_not_have_is_kept() -> None:
    model = hp.extend(hp.patch(build("gpt2"), hp.RoPE(rope_theta=BASE)), LONGER)
    assert hp.scheme_of(model) == hp.scheme_of(hp.patch(build("gpt2"), hp.YaRN(factor=4.0, rope_theta=BASE)))
    assert hp.scheme_of(hp.extend(model, 2 * LONGER, rope_theta=1e6)).rope_theta == 1e6


@pytest.mark.parametrize("kind", TABLES)
@torch.no_grad()
def test_rotation_on_families_without_a_rotary_slot_extends_too(kind: str) -> None:
    model = hp.extend(hp.patch(build(kind), hp.RoPE()), LONGER)
    assert hp.scheme_of(model) == hp.scheme_of(hp.patch(build(kind), hp.YaRN(factor=4.0)))


@pytest.mark.parametrize("scheme", [s for s in SCHEMES if is_carried("bert", s) and s.name != "learned"])
@torch.no_grad()
def test_bert_takes_more_than_512_tokens(scheme: Any) -> None:
    model = hp.patch(build("bert", max_position_embeddings=512), example(scheme))
    ids = tokens(1, 700)
    assert model(ids).logits.isfinite().all()
    types = torch.randint(0, 2, (1, 700))
    assert (model(ids, token_type_ids=types).logits - model(ids).logits).abs().max() > 1e-3


def test_a_second_growth_starts_from_the_trained_table() -> None:
    model = hp.extend(build("gpt2"), 128, "tile")
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(2.0)
    trained = model.transformer.wpe.weight.clone()
    hp.extend(model, 256, "repeat_last")
    assert torch.equal(model.transformer.wpe.weight[:128], trained)
    assert torch.equal(model.transformer.wpe.weight[128:], trained[-1:].expand(128, -1))


def test_the_tokenizer_goes_along() -> None:
    class Tokenizer:
        model_max_length = TRAINED

    tokenizer = Tokenizer()
    hp.extend(build("llama"), LONGER, tokenizer=tokenizer)
    assert tokenizer.model_max_length == LONGER


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_no_meaning_is_refused_and_changes_nothing(kind: str) -> None:
    model, ids = build(kind), tokens()
    config, logits = model.config, model(ids).logits
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (TRAINED, {}, "longer than the 64"),
        (10, {}, "longer than the 64"),
        (10**12, {}, "at most"),
        (100.5, {}, "number of positions"),
        (True, {}, "number of positions"),
        (LONGER, {"method": "stretch"}, "no extension method 'stretch'.*it has: "),
        (LONGER, {"factor": 2.0}, "factor"),
        (LONGER, {"no_field": 2.0}, "no_field"),
    ]
    if kind in TABLES:
        wrong.append((LONGER, {"method": "hierarchical", "alpha": 0.5}, "alpha=0.5"))
        wrong.append((TRAINED**2 + 1, {"method": "hierarchical"}, "reaches 4096 positions"))
        wrong.append((LONGER, {"method": "tile", "seed": 0}, "tile has no field 'seed'; its fields are: none"))
    if kind in ROTARY:
        wrong.append((LONGER, {"method": "theta"}, "rope_theta=500000"))
        wrong.append((LONGER, {"method": "longrope"}, "needs long_factor"))
        wrong += [
            (LONGER, {"original_max_position_embeddings": n}, "positions before any") for n in (0, 0.5, "64", True)
        ]
        wrong.append((LONGER, {"original_max_position_embeddings": LONGER}, "no extension of the 256 positions"))
        wrong.append((LONGER, {"method": "tile"}, "no extension method 'tile'"))
    for length, options, message in wrong:
        with pytest.raises(hp.SchemeError, match=message):
            hp.extend(model, length, **options)
    assert model.config is config
    assert torch.equal(model(ids).logits, logits)


@pytest.mark.parametrize("kind", TABLES)
def test_beyond_a_table_is_refused_with_the_way_out(kind: str) -> None:
    model = hp.extend(build(kind), 128)
    with pytest.raises(hp.SchemeError, match=r"extend\(model, 150\)"):
        model(tokens(1, 150))
    positions = torch.arange(5)[None] + 130
    with pytest.raises(hp.SchemeError, match=r"Position 134 is beyond the learned table of 128"):
        model(tokens(1, 5), position_ids=positions, attention_mask=torch.ones(1, 5))
    close(model(tokens(1, 128)).logits.isfinite().float(), torch.ones(1, 128, 64), 0)
