"""vLLM's rules, read in release 0.33.0.

From `model_executor/layers/rotary_embedding/__init__.py` (`get_rope`) and the modules beside it, `config/model.py`
(`_get_and_verify_max_len`) and `model_executor/models/registry.py`:

- the config is loaded by transformers 5, so what it takes of two styles is what vLLM sees;
- the length is `max_position_embeddings` times `factor`, but for llama3, yarn and longrope, whose length counts as
  scaled already (up to 0.24 yarn's was `original_max_position_embeddings * factor`, which is the same number here);
  longrope starts at a top-level `original_max_position_embeddings` where there is one;
- a tokenizer's `model_max_length` caps the length before it is multiplied;
- dynamic takes the length of the config for the trained one and for the longest: plain RoPE at every length;
- yarn reads betas, mscales, `attention_factor` and `truncate`; longrope derives its scaling from the two lengths and
  takes `attention_factor` for nothing; proportional takes `factor` for nothing;
- `partial_rotary_factor` must be above 0; an unknown rope type is an error.
"""

from collections.abc import Mapping
from typing import Any

from hf_posswap.persistence.readers import formulas
from hf_posswap.persistence.readers.reading import Reading, architecture, head_dim, not_looked_up, table_length
from hf_posswap.persistence.readers.stock import read_transformers
from hf_posswap.persistence.rope_keys import rope_keys

OWN_ROTATION = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "LlamaModel",
    "MistralModel",
    "Qwen2Model",
)
"""Models whose rotation is vLLM's."""

OF_TRANSFORMERS = ("GlmForCausalLM", "SmolLM3ForCausalLM")
"""Models that vLLM runs with transformers' modules."""

TABLES = ("GPT2LMHeadModel", "BertModel", "BertForMaskedLM", "BertForSequenceClassification")

SCALED_ALREADY = ("llama3", "yarn", "longrope")


def read_vllm(config: Mapping[str, Any]) -> Reading:
    """What vLLM computes. `tokenizer_max_length`, if the mapping has it, is that of the tokenizer beside the config."""
    name = architecture(config)
    if name in TABLES:
        return Reading(max_length=table_length(config))
    if name not in (*OWN_ROTATION, *OF_TRANSFORMERS):
        return not_looked_up(config)
    parameters = rope_keys(config).parameters or {"rope_type": "default", "rope_theta": 10000.0}
    length = _length(config, parameters)
    if name in OF_TRANSFORMERS:
        stock = read_transformers(config)
        return Reading(stock.inv_freq, stock.attention_scaling, length, stock.refuses)
    return _rotation(config, parameters, length)


def _length(config: Mapping[str, Any], parameters: Mapping[str, Any]) -> int:
    rope_type = parameters["rope_type"]
    length = min(config["max_position_embeddings"], config.get("tokenizer_max_length") or float("inf"))
    if rope_type == "longrope" and config.get("original_max_position_embeddings"):
        return int(config["original_max_position_embeddings"])
    return int(length * (1 if rope_type in SCALED_ALREADY else parameters.get("factor", 1)))


def _rotation(config: Mapping[str, Any], p: Mapping[str, Any], length: int) -> Reading:
    partial, theta = p.get("partial_rotary_factor", 1.0), p["rope_theta"]
    if not 0 < partial <= 1:
        return Reading(refuses=f"partial_rotary_factor={partial} is not above 0")
    dim = int(head_dim(config) * partial)
    plain = formulas.plain(dim, theta)
    match p["rope_type"]:
        case "default" | "dynamic":
            return Reading(plain, max_length=length)
        case "linear":
            return Reading(formulas.divided(plain, p["factor"]), max_length=length)
        case "proportional":
            return Reading(formulas.proportional(head_dim(config), theta, dim // 2), max_length=length)
        case "llama3":
            low, high = p["low_freq_factor"], p["high_freq_factor"]
            return Reading(formulas.llama3(plain, p["factor"], low, high, _original(p)), max_length=length)
        case "yarn":
            betas = (p["beta_fast"], p["beta_slow"], p["truncate"])
            inv_freq = formulas.yarn(dim, theta, p["factor"], _original(p), *betas)
            return Reading(inv_freq, _yarn_scaling(p), length)
        case "longrope":
            # Which list it is depends on the length that vLLM is started with; one that it is told not to exceed is no
            # other model, so both have to be right.
            both = [formulas.divided(plain, p[k]) for k in ("long_factor", "short_factor")]
            scaling = formulas.longrope_scaling(config["max_position_embeddings"], _original(p))
            return Reading(both[0], scaling, length, depends_on_length=both[0] != both[1])
    return Reading(refuses=f"it does not know rope_type {p['rope_type']!r}")


def _original(p: Mapping[str, Any]) -> float:
    return p["original_max_position_embeddings"]


def _yarn_scaling(p: Mapping[str, Any]) -> float:
    if p.get("attention_factor") is not None:
        return float(p["attention_factor"])
    mscale, all_dim = p.get("mscale"), p.get("mscale_all_dim")
    if mscale and all_dim:
        return formulas.yarn_temperature(p["factor"], mscale) / formulas.yarn_temperature(p["factor"], all_dim)
    return formulas.yarn_temperature(p["factor"])
