"""`hf-posswap inspect MODEL`: which scheme a model has, from its config; no weights are read."""

import argparse
import json
from typing import Any

import torch

from hf_posswap.attention import BACKENDS, our_backend, stock_backend
from hf_posswap.cli.checkpoints import loads_with, read_config, reading, scheme_in_words
from hf_posswap.cli.turns import rope_turns
from hf_posswap.cli.wrapping import wrapped
from hf_posswap.families import Family, family_of
from hf_posswap.families.base import accepted_length
from hf_posswap.patching import scheme_of
from hf_posswap.patching.forward import ENCODING, INPUT, ROTATION
from hf_posswap.persistence.rope_keys import RopeKeys, read_rope_keys
from hf_posswap.schemes import Geometry, Scheme
from hf_posswap.schemes.base import Encodings

COLUMN = 21


def run(args: argparse.Namespace) -> str:
    """A line per fact, or with `--json` an object."""
    config = read_config(args.model)
    with reading(args.model):
        keys = read_rope_keys(args.model)
    facts = facts_of(config, keys)
    return json.dumps(facts, indent=2) if args.json else _table(facts, keys)


def facts_of(config: Any, keys: RopeKeys) -> dict[str, Any]:
    """What a config says of positions, as plain JSON values."""
    family = family_of(config)
    geometry = family.geometry(config)
    scheme = scheme_of(config).resolve(geometry)
    with torch.device("meta"):
        encodings = scheme.encodings(geometry)
    length = accepted_length(config)
    return {
        "family": family.name,
        "model_type": config.model_type,
        "architectures": config.architectures or [],
        "scheme": scheme.to_dict(),
        "trained_length": geometry.trained_length,
        "length": length,
        "attention": _attention(config, family, scheme, encodings),
        "backends": list(BACKENDS[scheme.kind]) if scheme.kind in BACKENDS else None,
        "cache": _cache(scheme, geometry),
        "position_parameters": _position_parameters(family, encodings),
        "loads_with": loads_with(config),
        "rope_keys": {"style": keys.style, "parameters": keys.parameters},
        "rope_turns": rope_turns(scheme, geometry, length),
    }


def _attention(config: Any, family: Family, scheme: Scheme, encodings: Encodings) -> str:
    """The function that attention takes, and on which backends there is one."""
    backend = stock_backend(config._attn_implementation)
    before = encodings.rotary is not None and family.rotary_slot is None
    path, runs_on = "stock", ""
    if scheme.kind in BACKENDS:
        path = "as " + our_backend(scheme.kind, backend, scheme.name)
        runs_on = f"; {scheme.name} runs on {', '.join(BACKENDS[scheme.kind])}"
    return f"{backend}, {path}{', with queries and keys rotated before it' if before else ''}{runs_on}"


def _cache(scheme: Scheme, geometry: Geometry) -> str:
    if not geometry.causal:
        return "none: the model is an encoder"
    return f"refused: {scheme.refuses_cache}" if scheme.refuses_cache else "works"


def _position_parameters(family: Family, encodings: Encodings) -> dict[str, list[int]]:
    """Shape by name, below the base model, of what training would change."""
    places = {
        family.input_slot or INPUT: encodings.input,
        family.rotary_slot or ROTATION: encodings.rotary,
        ENCODING: encodings.scores,
    }
    there = {place: encoding for place, encoding in places.items() if encoding is not None}
    return {f"{place}.{n}": list(p.shape) for place, encoding in there.items() for n, p in encoding.named_parameters()}


def _table(facts: dict[str, Any], keys: RopeKeys) -> str:
    shown = {**facts, "scheme": scheme_in_words(facts["scheme"]), "rope_keys": str(keys)}
    shown["architectures"] = ", ".join(facts["architectures"]) or "not said"
    shown["backends"] = ", ".join(facts["backends"] or ["all that the stock model runs on"])
    shown["position_parameters"] = ", ".join(f"{k} {v}" for k, v in facts["position_parameters"].items()) or "none"
    del shown["rope_turns"]
    lines = [line for name, value in shown.items() for line in _lines(name, str(value))]
    return "\n".join([*lines, *_turns_lines(facts)])


def _turns_lines(facts: dict[str, Any]) -> list[str]:
    """Each set of frequencies: how many pairs make a full turn in the trained length, and the turns of all."""
    if not facts["rope_turns"]:
        return _lines("rope_turns", "none: nothing rotates")
    lines = []
    for row in facts["rope_turns"]:
        full = sum(turns >= 1 for turns in row["turns"])
        layers = row["layers"] and "layers " + " ".join(map(str, row["layers"]))
        of = [row["scheme"], layers, row["where"]]
        head = f"{', '.join(filter(None, of))}: {full} of {len(row['turns'])} pairs turn at least once"
        lines += _lines("rope_turns", f"{head} in {facts['trained_length']} positions; turns by pair:")
        lines += _lines("", " ".join(f"{turns:.3g}" for turns in row["turns"]))
    return lines


def _lines(name: str, value: str) -> list[str]:
    """`value` beside its name, wrapped to the width of a terminal."""
    first, other = f"{name.replace('_', ' '):{COLUMN}}", " " * COLUMN
    return wrapped(value, first, other)
