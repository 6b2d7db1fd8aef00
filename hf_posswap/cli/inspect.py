"""`hf-posswap inspect MODEL`: which scheme a model has, from its config; no weights are read."""

import argparse
import json
from typing import Any

import torch

from hf_posswap.attention import BACKENDS, our_backend, stock_backend
from hf_posswap.cli.checkpoints import loads_with, read_config, scheme_in_words
from hf_posswap.families import Family, family_of
from hf_posswap.patching import scheme_of
from hf_posswap.patching.forward import ENCODING
from hf_posswap.schemes import Geometry, Scheme


def run(args: argparse.Namespace) -> str:
    """A line per fact, or with `--json` an object."""
    facts = facts_of(read_config(args.model))
    return json.dumps(facts, indent=2) if args.json else _table(facts)


def facts_of(config: Any) -> dict[str, Any]:
    """What a config says of positions, as plain JSON values."""
    scheme, family = scheme_of(config), family_of(config)
    geometry = family.geometry(config)
    return {
        "family": family.name,
        "model_type": config.model_type,
        "architectures": config.architectures or [],
        "scheme": scheme.to_dict(),
        "trained_length": geometry.trained_length,
        "length": config.max_position_embeddings,
        "attention": _attention(config, family, scheme),
        "position_parameters": _position_parameters(family, scheme, geometry),
        "loads_with": loads_with(config),
    }


def _attention(config: Any, family: Family, scheme: Scheme) -> str:
    backend = stock_backend(config._attn_implementation)
    if scheme.kind in BACKENDS:
        path = our_backend(scheme.kind, backend, scheme.name)
        return f"{backend}, as {path}; {scheme.name} runs on {', '.join(BACKENDS[scheme.kind])}"
    if scheme.kind == "rotary" and family.rotary_slot is None:
        return f"{backend}, stock, with queries and keys rotated before it"
    return f"{backend}, stock"


def _position_parameters(family: Family, scheme: Scheme, geometry: Geometry) -> dict[str, list[int]]:
    """Shape by name, below the base model, of what training would change; built without memory."""
    with torch.device("meta"):
        encoding = scheme.build(geometry)
    if encoding is None:
        return {}
    place = {"input": family.input_slot, "rotary": family.rotary_slot}.get(scheme.kind) or ENCODING
    return {f"{place}.{name}": list(parameter.shape) for name, parameter in encoding.named_parameters()}


def _table(facts: dict[str, Any]) -> str:
    shown = {**facts, "scheme": scheme_in_words(facts["scheme"])}
    shown["architectures"] = ", ".join(facts["architectures"]) or "not said"
    shown["position_parameters"] = ", ".join(f"{k} {v}" for k, v in facts["position_parameters"].items()) or "none"
    return "\n".join(f"{key.replace('_', ' '):21}{value}" for key, value in shown.items())
