"""mlx-lm's rules, read in release 0.32.2 (`models/rope_utils.py`, `llama.py`, `qwen2.py`, `qwen3.py`, `gpt2.py`).

- the raw config is read, without transformers; LLaMA, Mistral, SmolLM3 and Qwen2 see the keys of version 4 alone:
  without them LLaMA rotates with theta 10000 and Qwen2 with 1000000, whatever `rope_parameters` says. Qwen3 sees both;
- `type` counts before `rope_type`; an unknown type is an error;
- yarn reads betas and mscales, not `attention_factor` nor `truncate`; longrope takes `long_factor` at every length and
  derives its scaling from the two lengths;
- GPT-2 needs `n_ctx`; no length is enforced.
"""

from collections.abc import Mapping
from typing import Any

from hf_posswap.persistence.readers import formulas
from hf_posswap.persistence.readers.reading import Reading, head_dim, not_looked_up

DEFAULT_THETA = {"llama": 10000.0, "mistral": 10000.0, "smollm3": 10000.0, "qwen2": 1000000.0}
"""Of the model types that read the old keys alone."""


def read_mlx_lm(config: Mapping[str, Any]) -> Reading:
    """What mlx-lm computes."""
    model_type = config["model_type"]
    if model_type == "bert":
        return Reading(refuses="it has no BERT")
    if model_type == "gpt2":
        return Reading() if config.get("n_ctx") else Reading(refuses="GPT-2's config must have n_ctx")
    if model_type != "qwen3" and model_type not in DEFAULT_THETA:
        return not_looked_up(config)
    scaling, theta = config.get("rope_scaling"), config.get("rope_theta")
    if model_type == "qwen3":
        parameters = config.get("rope_parameters") or {}
        scaling, theta = scaling or parameters, theta or parameters.get("rope_theta")
    theta = theta or DEFAULT_THETA.get(model_type)
    return Reading(refuses="there is no rope_theta") if theta is None else _rotation(config, scaling or {}, theta)


def _rotation(config: Mapping[str, Any], p: Mapping[str, Any], theta: float) -> Reading:
    rope_type = p.get("type") or p.get("rope_type", "default")
    dim = head_dim(config)
    plain = formulas.plain(dim, theta)
    match rope_type:
        case "default":
            return Reading(plain)
        case "linear":
            return Reading(formulas.divided(plain, p["factor"]))
        case "dynamic":
            return Reading(plain, depends_on_length=True)
        case "proportional":
            rotated = int(dim * p.get("partial_rotary_factor", 1.0))
            turning = formulas.proportional(dim, theta, -(-rotated // 2))
            return Reading(formulas.divided(turning, p.get("factor", 1.0)))
        case "llama3":
            numbers = (p["factor"], p.get("low_freq_factor", 1.0), p.get("high_freq_factor", 4.0))
            return Reading(formulas.llama3(plain, *numbers, p.get("original_max_position_embeddings", 8192)))
        case "yarn":
            return _yarn(p, dim, theta)
        case "longrope":
            original = p["original_max_position_embeddings"]
            scaling = formulas.longrope_scaling(config["max_position_embeddings"], original)
            return Reading(formulas.divided(plain, p["long_factor"]), scaling)
    return Reading(refuses=f"it does not know rope_type {rope_type!r}")


def _yarn(p: Mapping[str, Any], dim: int, theta: float) -> Reading:
    factor, original = p["factor"], p.get("original_max_position_embeddings", 4096)
    inv_freq = formulas.yarn(dim, theta, factor, original, p.get("beta_fast", 32), p.get("beta_slow", 1))
    above = formulas.yarn_temperature(factor, p.get("mscale", 1))
    return Reading(inv_freq, above / formulas.yarn_temperature(factor, p.get("mscale_all_dim", 0)))
