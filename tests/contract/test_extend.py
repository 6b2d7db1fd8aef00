"""extend: what it means per scheme, that it is undone, saved, and refused where it has no meaning."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pairs import CAUSAL, KINDS, build, close, example, is_carried, pairs, patched, position_parameters, tokens
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

import hf_posswap as hp
from hf_posswap.schemes import SCHEMES
from hf_posswap.transfer import GROWTH

TRAINED, LONGER = 64, 256
TABLES = ("gpt2", "bert", "bert-decoder")
ROTARY = tuple(k for k in CAUSAL if k not in TABLES)


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


@pytest.mark.parametrize("method", GROWTH)
@pytest.mark.parametrize("kind", TABLES)
@torch.no_grad()
def test_tables_grow_into_plain_checkpoints(kind: str, method: str, tmp_path: Path) -> None:
    model, short, long = build(kind), tokens(), tokens(1, 200)
    before = model(short).logits
    hp.extend(model, LONGER, method=method)
    if method != "interpolate":
        assert torch.equal(model(short).logits, before)
    expected = model(long).logits
    model.save_pretrained(tmp_path / "m")
    plain = auto_class(kind).from_pretrained(tmp_path / "m").eval()
    assert not hasattr(plain.base_model, "hf_posswap")
    assert torch.equal(plain(long).logits, expected)


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.parametrize(
    ("method", "fields", "scheme"),
    [
        ("yarn", {}, hp.YaRN(factor=4.0)),
        ("yarn", {"beta_fast": 16.0}, hp.YaRN(factor=4.0, beta_fast=16.0)),
        ("linear", {}, hp.LinearRoPE(factor=4.0)),
        ("ntk", {}, hp.NTKRoPE(factor=4.0)),
        ("theta", {"rope_theta": 5e5}, hp.RoPE(rope_theta=5e5)),
        (None, {}, hp.YaRN(factor=4.0)),
    ],
)
@torch.no_grad()
def test_rotary_methods(kind: str, method: str | None, fields: Any, scheme: Any) -> None:
    model, ids = hp.extend(build(kind), LONGER, method, **fields), tokens(1, 100)
    assert model.config.max_position_embeddings == LONGER
    assert torch.equal(model(ids).logits, hp.patch(build(kind), scheme)(ids).logits)
    again = hp.extend(hp.extend(build(kind), 128, "linear"), LONGER, method, **fields)
    assert hp.scheme_of(again) == hp.scheme_of(model), "goes on from the trained length, not from the extended one"


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
    ]
    if kind in ROTARY:
        wrong.append((LONGER, {"method": "theta"}, "rope_theta=500000"))
        wrong.append((LONGER, {"method": "yarn", "no_field": 1}, "no field 'no_field'"))
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
