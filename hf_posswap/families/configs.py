"""Configs of patched models.

In memory such a config is the stock one with our block: `model_type` stays "gpt2", so that PEFT, pipelines and
generation find what they look up, while Auto classes build the patched model from it. Written to disk it is a plain
stock config, with our block beside, where transformers can express the scheme ("native"). Where it cannot, it has a
`model_type` of its own and a `vocab_size` that is no number: Auto classes without this package do not know the type,
and a stock class called by name fails in the config's own validation, instead of running with another scheme.
"""

from typing import Any

from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, AutoConfig

from hf_posswap.errors import CheckpointError
from hf_posswap.families import MODEL_TYPES
from hf_posswap.registration import PREFIX

SENTENCE = "this checkpoint needs the package hf_posswap: import it and load with an Auto class or hf_posswap.load"


class NeedsPosswap:
    """Mixed into the stock config class of each model type."""

    stock_model_type: str

    def to_dict(self) -> dict[str, Any]:
        """The stock fields under the stock type: what libraries look at in memory."""
        return {**super().to_dict(), "model_type": self.stock_model_type}  # type: ignore[misc]

    def to_diff_dict(self) -> dict[str, Any]:
        """What is written to disk."""
        written = super().to_diff_dict()  # type: ignore[misc]
        written["model_type"] = self.stock_model_type
        if written["hf_posswap"].get("native"):
            return written
        names = written.get("architectures") or []
        written["architectures"] = [n if n.startswith("Posswap") else "Posswap" + n for n in names]
        written["model_type"] = PREFIX + self.stock_model_type
        written["hf_posswap"] = {**written["hf_posswap"], "vocab_size": self.vocab_size}  # type: ignore[attr-defined]
        written["vocab_size"] = SENTENCE
        return written

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Reads what `to_diff_dict` wrote."""
        restored = dict(config_dict)
        block = restored.get("hf_posswap")
        if not isinstance(block, dict) or "version" not in block:
            raise CheckpointError("The config's hf_posswap block is missing, or was edited or damaged.")
        block = dict(block)
        if not isinstance(restored.get("vocab_size"), int):
            restored["vocab_size"] = _checked_vocab_size(block.pop("vocab_size", None))
        restored["hf_posswap"] = block
        names = restored.get("architectures") or []
        restored["architectures"] = [name.removeprefix("Posswap") for name in names]
        loaded = super().from_dict(restored, **kwargs)  # type: ignore[misc]
        (loaded[0] if isinstance(loaded, tuple) else loaded).__dict__["model_type"] = cls.stock_model_type
        return loaded


def _checked_vocab_size(size: Any) -> int:
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise CheckpointError(f"The config's hf_posswap block has vocab_size={size!r}, no number of tokens.")
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
