"""llama.cpp's rules, read in `conversion/` (base, llama, qwen, gpt2, bert), `llama-context.cpp` and `llama-model.cpp`.

- the converter loads the config with transformers and writes `max_position_embeddings` as the context length, on GPT-2
  `n_ctx`, which it must find; nothing is multiplied;
- linear and yarn are written for every architecture; of yarn the program then takes factor and original length only:
  betas are 32 and 1 on these architectures, the ramp is rounded to whole pairs, and the scaling is always
  `0.1 ln(factor) + 1`, because `attention_factor` is written and then replaced;
- llama3 becomes a tensor of factors for LLaMA and Mistral, with the *top-level* `original_max_position_embeddings`
  (8192 where there is none); Qwen runs plain RoPE;
- longrope is announced, but only Phi-3 gets the factors: the others run plain RoPE;
- of any other type it says that it is unknown, and runs plain RoPE with its `rope_theta`, over the whole head.
"""

from collections.abc import Mapping
from typing import Any

from hf_posswap.persistence.readers import formulas
from hf_posswap.persistence.readers.reading import Reading, architecture, head_dim, not_looked_up, table_length
from hf_posswap.persistence.rope_keys import rope_keys

WITH_LLAMA3_TENSOR = ("LlamaForCausalLM", "MistralForCausalLM", "LlamaModel")
ROTATION = (*WITH_LLAMA3_TENSOR, "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen2Model", "Qwen3Model")
TABLES = ("GPT2LMHeadModel", "BertModel", "BertForMaskedLM", "BertForSequenceClassification")
REFUSED = ("BertLMHeadModel", "GPT2Model", "GPT2ForSequenceClassification")

LLAMA3_ORIGINAL = 8192


def read_llama_cpp(config: Mapping[str, Any]) -> Reading:
    """What llama.cpp computes with a GGUF file that its converter made of this config."""
    name = architecture(config)
    if name in REFUSED:
        return Reading(refuses=f"the converter has no {name}")
    if name in TABLES:
        return _table(config, name)
    if name not in ROTATION:
        return not_looked_up(config)
    parameters = rope_keys(config).parameters or {"rope_type": "default", "rope_theta": 10000.0}
    return _rotation(config, parameters, name)


def _table(config: Mapping[str, Any], name: str) -> Reading:
    if name == "GPT2LMHeadModel" and config.get("n_ctx") != config["n_positions"]:
        return Reading(refuses="the converter takes GPT-2's length from n_ctx, which is missing or another")
    return Reading(max_length=table_length(config))


def _rotation(config: Mapping[str, Any], p: Mapping[str, Any], name: str) -> Reading:
    dim, theta, length = head_dim(config), p["rope_theta"], config["max_position_embeddings"]
    plain = formulas.plain(dim, theta)
    match p["rope_type"]:
        case "linear":
            return Reading(formulas.divided(plain, p["factor"]), max_length=length)
        case "yarn":
            inv_freq = formulas.yarn(dim, theta, p["factor"], p["original_max_position_embeddings"])
            return Reading(inv_freq, formulas.yarn_temperature(p["factor"]), length)
        case "llama3" if name in WITH_LLAMA3_TENSOR:
            original = config.get("original_max_position_embeddings", LLAMA3_ORIGINAL)
            low, high = p["low_freq_factor"], p["high_freq_factor"]
            return Reading(formulas.llama3(plain, p["factor"], low, high, original), max_length=length)
    return Reading(plain, max_length=length)
