"""Configs of patched models.

In memory such a config is the stock one with our block: `model_type` stays "gpt2", so that PEFT, pipelines and
generation find what they look up, while Auto classes build the patched model from it. Written to disk it is a plain
stock config, with our block beside, where transformers can express the scheme ("native"). Where it cannot, it has a
`model_type` of its own and a `hidden_size` that is no number: Auto classes without this package do not know the type,
and a stock class called by name fails in the config's own validation, instead of running with another scheme.
"""

import warnings
from typing import Any

from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, AutoConfig

from hf_posswap.errors import CheckpointError
from hf_posswap.families import MODEL_TYPES
from hf_posswap.registration import PREFIX
from hf_posswap.schemes import BY_NAME
from hf_posswap.schemes.base import scheme_from_dict
from hf_posswap.schemes.fields import MAX_POSITIONS

SENTENCE = "this checkpoint needs the package hf_posswap: import it and load with an Auto class or hf_posswap.load"


class NeedsPosswap:
    """Mixed into the stock config class of each model type."""

    stock_model_type: str
    attribute_map: dict[str, str]
    hf_posswap: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The stock fields under the stock type: what libraries look at in memory."""
        return {**super().to_dict(), "model_type": self.stock_model_type}  # type: ignore[misc]

    def to_diff_dict(self) -> dict[str, Any]:
        """What is written to disk."""
        written = super().to_diff_dict()  # type: ignore[misc]
        written["model_type"] = self.stock_model_type
        block = written["hf_posswap"]
        if block.get("native"):
            if block.get("stock_length"):
                # The patched model's own length, because stock readers look for another one in its place.
                length = self.attribute_map.get("max_position_embeddings", "max_position_embeddings")
                written["hf_posswap"] = {**block, "max_position_embeddings": written[length]}
                written[length] = block["stock_length"]
            return written
        names = written.get("architectures") or []
        written["architectures"] = [n if n.startswith("Posswap") else "Posswap" + n for n in names]
        written["model_type"] = PREFIX + self.stock_model_type
        size = self.attribute_map.get("hidden_size", "hidden_size")
        written["hf_posswap"] = {**written["hf_posswap"], "hidden_size": written[size]}
        written[size] = SENTENCE
        return written

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As stock, with a word where stock transformers will run the checkpoint otherwise."""
        block = self.hf_posswap
        scheme = scheme_from_dict(block["scheme"], BY_NAME)
        if block.get("native") and scheme.stock_differs is not None:
            warnings.warn(f"{scheme.name} is saved as a plain checkpoint: {scheme.stock_differs}.", stacklevel=2)
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Reads what `to_diff_dict` wrote; what is stock is read as stock.

        Raises:
            CheckpointError: the block is missing or damaged.
        """
        block = config_dict.get("hf_posswap")
        if block is None and config_dict.get("model_type") == cls.stock_model_type:
            # PEFT asks the class of a patched model's config to read the checkpoint that the model came from.
            return CONFIG_MAPPING[cls.stock_model_type].from_dict(config_dict, **kwargs)
        if not isinstance(block, dict) or "version" not in block:
            raise CheckpointError("The config's hf_posswap block is missing, or was edited or damaged.")
        restored, block = dict(config_dict), dict(block)
        size = cls.attribute_map.get("hidden_size", "hidden_size")
        if not isinstance(restored.get(size), int):
            restored[size] = _checked_size(block.pop("hidden_size", None))
        if "max_position_embeddings" in block:
            length = cls.attribute_map.get("max_position_embeddings", "max_position_embeddings")
            restored[length] = block.pop("max_position_embeddings")
        restored["hf_posswap"] = block
        names = restored.get("architectures") or []
        restored["architectures"] = [name.removeprefix("Posswap") for name in names]
        loaded = super().from_dict(restored, **kwargs)  # type: ignore[misc]
        (loaded[0] if isinstance(loaded, tuple) else loaded).__dict__["model_type"] = cls.stock_model_type
        return loaded


def _checked_size(size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or not 0 < size <= MAX_POSITIONS:
        raise CheckpointError(f"The config's hf_posswap block has hidden_size={size!r}, no width of a model.")
    return size


def _config_class(model_type: str) -> type[PreTrainedConfig]:
    stock = CONFIG_MAPPING[model_type]
    name = f"Posswap{stock.__name__}"
    body = {"model_type": PREFIX + model_type, "stock_model_type": model_type, "__module__": __name__}
    return type(name, (NeedsPosswap, stock), body)


CONFIG_CLASSES: dict[str, type[PreTrainedConfig]] = {t: _config_class(t) for t in MODEL_TYPES}
"""Stock model type to the config class of its models that need this package."""

# Pickling finds a class by its module and name.
globals().update({cls.__name__: cls for cls in CONFIG_CLASSES.values()})


def to_posswap_config(config: PreTrainedConfig, stock_model_type: str) -> None:
    """Turns a config that we own into one of ours."""
    config.__class__ = CONFIG_CLASSES[stock_model_type]
    config.__dict__["model_type"] = stock_model_type


def register_configs() -> None:
    """`AutoConfig` knows our model types."""
    for model_type, config_class in CONFIG_CLASSES.items():
        AutoConfig.register(PREFIX + model_type, config_class, exist_ok=True)
