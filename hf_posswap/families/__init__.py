"""Every architecture there is. Adding one is a file beside this one and a line in `FAMILIES`, nothing else."""

from typing import Any

from hf_posswap.errors import FamilyError
from hf_posswap.families.base import Family
from hf_posswap.families.bert import Bert
from hf_posswap.families.gpt2 import GPT2
from hf_posswap.families.llama import Llama

FAMILIES: tuple[Family, ...] = (GPT2(), Bert(), Llama())

MODEL_TYPES: dict[str, Family] = {model_type: family for family in FAMILIES for model_type in family.model_types}


def family_of(config: Any) -> Family:
    """The family of a model config.

    Raises:
        FamilyError: the architecture is not supported.
    """
    model_type = getattr(config, "model_type", None)
    if model_type is None:
        raise FamilyError(f"A model or a config is needed here, not {config!r:.60}: load it first.")
    if model_type not in MODEL_TYPES:
        raise FamilyError(f"Models of type {model_type!r} are not supported; these are: {', '.join(MODEL_TYPES)}.")
    return MODEL_TYPES[model_type]


__all__ = ["FAMILIES", "MODEL_TYPES", "Family", "family_of"]
