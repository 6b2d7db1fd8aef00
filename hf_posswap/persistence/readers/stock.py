"""transformers: its own config and rotary classes are built from the mapping and asked."""

import copy
import importlib
from collections.abc import Mapping
from typing import Any

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_posswap.persistence.readers.reading import Reading, table_length


def read_transformers(config: Mapping[str, Any]) -> Reading:
    """What the installed transformers computes, and whether that changes in a long call."""
    config_class = CONFIG_MAPPING[config["model_type"]]
    try:
        loaded = config_class.from_dict(copy.deepcopy(dict(config)))
        rotary_class = _rotary_class(config_class, config["model_type"])
        if rotary_class is None:
            return Reading(max_length=table_length(config))
        rotary = rotary_class(loaded)
    except Exception as error:  # configs refuse with errors of several libraries
        return Reading(refuses=" ".join(str(error).split()))
    before = rotary.inv_freq.clone()
    rotary(torch.zeros(1), torch.tensor([[8 * loaded.max_position_embeddings]]))
    return Reading(
        inv_freq=tuple(before.double().tolist()),
        attention_scaling=float(rotary.attention_scaling),
        max_length=loaded.max_position_embeddings,
        depends_on_length=not torch.equal(before, rotary.inv_freq),
    )


def _rotary_class(config_class: type, model_type: str) -> Any:
    """The rotary module of an architecture; None where it has a table instead."""
    modeling = importlib.import_module(config_class.__module__.replace("configuration_", "modeling_"))
    return getattr(modeling, config_class.__name__.removesuffix("Config") + "RotaryEmbedding", None)
