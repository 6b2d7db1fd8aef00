"""What an exported `config.json` will say, decided from the model's config alone, and what readers make of it."""

import copy
import json
import os
from dataclasses import dataclass
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_posswap.errors import SchemeError
from hf_posswap.families import Family, family_of
from hf_posswap.patching.checks import checked
from hf_posswap.persistence.export_report import SAME, ExportReport, Rotation, verdict_of, verdicts
from hf_posswap.persistence.readers import READERS
from hf_posswap.schemes import Geometry, NoPE, Scheme
from hf_posswap.schemes.layered import Layered
from hf_posswap.schemes.length_dependent import LengthDependentRoPE
from hf_posswap.schemes.rope import RoPE


@dataclass(frozen=True)
class ExportPlan:
    """A stock config with the scheme in transformers' words, what `config.json` has beside it, and the report."""

    config: Any
    keys: dict[str, Any]
    report: ExportReport


def plan_export(
    config: Any, scheme: Scheme, architecture: str, path: str | os.PathLike[str], compat: str, tokenizer: Any
) -> ExportPlan:
    """How a model of class `architecture` with this config, patched or not, is exported; nothing is written.

    Raises:
        SchemeError: transformers cannot express the scheme exactly.
        FamilyError: the model is not supported.
    """
    family, length = family_of(config), config.max_position_embeddings
    scheme, geometry = checked(config, scheme, allow_unordered=True)
    if family.rotary_slot is not None:
        _refuse_length_dependent(scheme)
    stock = _stock_config(config, family, scheme, geometry)
    # A model that never was ours keeps the length that its config has, by whichever convention.
    patched = getattr(config, "hf_posswap", None) is not None
    keys = _keys(stock, family, compat, _length_written(stock, length) if patched else length)
    raw = {**json.loads(stock.to_json_string(use_diff=True)), "architectures": [architecture], **keys}
    wanted = rotation_of(scheme, geometry) if _rotates(stock, family) else None
    found = verdict_of(READERS[0], raw, wanted, length)
    if found.verdict != SAME:
        raise SchemeError(
            f"{scheme.name} on {raw['model_type']} cannot be exported: transformers {found.verdict}. hf_posswap.save "
            "keeps it, for those who have this package."
        )
    cap = None if tokenizer is None else max(tokenizer.model_max_length, length)
    report = ExportReport(
        path=str(path),
        architecture=architecture,
        scheme=scheme.to_dict(),
        length=length,
        compat=compat,
        rope_parameters=raw.get("rope_parameters"),
        readers=verdicts({**raw, "tokenizer_max_length": cap}, wanted, length),
    )
    return ExportPlan(stock, keys, report)


MULTIPLIED = ("linear", "proportional")
"""Rope types by whose factor vLLM multiplies the config's length: there the length before it is written. Of all others
every reader takes the length as it stands.

A program that is told too short a length only has to be told more, while one that multiplies twice runs past what the
model can do without a word.
"""


def _refuse_length_dependent(scheme: Scheme) -> None:
    for member in scheme.schemes if isinstance(scheme, Layered) else (scheme,):
        if isinstance(member, LengthDependentRoPE) and member.mode != "static":
            raise SchemeError(
                f"{member.name} with mode={member.mode!r} cannot be exported: transformers takes its frequencies from "
                "the length of the call, and under a cache computes something else. mode='static' can be: one set of "
                "frequencies, for the longest length."
            )


def _stock_config(config: Any, family: Family, scheme: Scheme, geometry: Geometry) -> Any:
    """The stock config with the scheme in transformers' own terms, and nothing of ours."""
    stock = {k: v for k, v in config.to_dict().items() if k != "hf_posswap"}
    stock_config = CONFIG_MAPPING[config.model_type].from_dict(copy.deepcopy(stock))
    if not family.write_native(stock_config, scheme, geometry):
        raise SchemeError(_no_native_form(config.model_type, scheme, family, geometry))
    return stock_config


def _no_native_form(model_type: str, scheme: Scheme, family: Family, geometry: Geometry) -> str:
    parameters = None if family.rotary_slot is None else scheme.rope_parameters(geometry)
    if parameters is not None:
        return (
            f"{scheme.name} on {model_type} cannot be exported: there transformers takes no rope_type "
            f"{parameters['rope_type']!r}. rope, ntk and longrope with mode='static' can be."
        )
    if isinstance(scheme, RoPE) and family.rotary_slot is not None and scheme.rope_type and scheme.part != 1:
        return (
            f"{scheme.name} with partial_rotary_factor={scheme.part} cannot be exported: transformers ignores the "
            f"factor on {model_type}. Full rotation can be, or proportional, whose frequencies are those of full RoPE."
        )
    can = "a table: learned or sinusoidal" if family.rotary_slot is None else "RoPE, its rescalings and nope"
    return (
        f"{scheme.name} on {model_type} cannot be exported: transformers has no words for it there, only for {can}. "
        "hf_posswap.save keeps it, for those who have this package."
    )


def _length_written(config: Any, length: int) -> int:
    parameters = getattr(config, "rope_parameters", None) or {}
    factor = parameters.get("factor") or 1.0
    return max(1, round(length / factor)) if parameters.get("rope_type") in MULTIPLIED else length


def _keys(config: Any, family: Family, compat: str, length: int) -> dict[str, Any]:
    """Top-level keys beside or instead of those that the config writes itself."""
    if family.rotary_slot is None:
        # GPT-2's other name for its length: llama.cpp and mlx-lm read nothing else, and an old one may be left over.
        return {"n_ctx": config.n_positions} if config.model_type == "gpt2" else {}
    parameters = config.rope_parameters
    rope_type = parameters["rope_type"]
    keys: dict[str, Any] = {"max_position_embeddings": length}
    original = parameters.get("original_max_position_embeddings")
    if original and (rope_type == "llama3" or hasattr(config, "original_max_position_embeddings")):
        # llama.cpp reads it here only, and transformers prefers it to the one among the parameters.
        keys["original_max_position_embeddings"] = original
    return keys if compat == "v5" else keys | _old_keys(parameters)


def _old_keys(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same in transformers 4's words."""
    rope_type = parameters["rope_type"]
    keys: dict[str, Any] = {k: parameters[k] for k in ("rope_theta", "partial_rotary_factor") if k in parameters}
    if rope_type == "default":
        return keys
    rest = {k: v for k, v in parameters.items() if k not in ("rope_type", "rope_theta")}
    # "type" is what the first readers look for; where both are there they have to agree.
    return {**keys, "rope_scaling": {"type": rope_type, "rope_type": rope_type, **rest}}


def _rotates(config: Any, family: Family) -> bool:
    """False for a table, and for a SmolLM3 in which no layer rotates, whatever `rope_parameters` says."""
    return family.rotary_slot is not None and any(getattr(config, "no_rope_layers", None) or [True])


def rotation_of(scheme: Scheme, geometry: Geometry) -> Rotation:
    """What a resolved scheme rotates by, in the layers where it does.

    Raises:
        SchemeError: the scheme is no single rotation.
    """
    if isinstance(scheme, Layered) and scheme.rotation is not None:
        return rotation_of(scheme.rotation, geometry)
    if isinstance(scheme, NoPE):
        return Rotation((0.0,) * (geometry.head_dim // 2))
    if not isinstance(scheme, RoPE):
        raise SchemeError(f"{scheme.name} cannot be exported: it is no single rotation.")
    inv_freq = (*scheme.inv_freq(geometry).tolist(), *(0.0,) * scheme.still(geometry))
    return Rotation(inv_freq, scheme.scaling(geometry))
