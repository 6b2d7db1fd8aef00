"""Opening and saving what the commands work on. Code that comes with a checkpoint is never run."""

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import modeling_auto
from transformers.utils import cached_file

from hf_posswap.errors import CheckpointError, PosswapError
from hf_posswap.patching.checks import saved_scheme
from hf_posswap.persistence import load_with_info
from hf_posswap.persistence.rope_keys import read_rope_keys

TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json")
"""One of them is there when a checkpoint has a tokenizer; transformers makes an empty one up when none is."""


@contextlib.contextmanager
def reading(model: str) -> Iterator[None]:
    """Whatever other libraries raise over files that they cannot make sense of becomes one error of ours."""
    try:
        yield
    except PosswapError:
        raise
    except Exception as error:
        raise CheckpointError(f"{model} cannot be read: {error or type(error).__name__}") from error


def read_config(model: str) -> Any:
    """The config of a directory or name on the Hub, its `hf_posswap` block checked.

    Raises:
        CheckpointError: there is no such model, or the config is broken.
    """
    if model.startswith((".", "/", "~")) and not Path(model).is_dir():
        raise CheckpointError(f"There is no directory {model}.")
    with reading(model):
        read_rope_keys(model)
        config = AutoConfig.from_pretrained(model, trust_remote_code=False)
    saved_scheme(config)
    return config


def read_model(args: argparse.Namespace, config: Any, **options: Any) -> Any:
    """The model at `args.model`, with the head that it was saved with or that `args.auto_class` has; `options` go to
    `load`."""
    auto_class = fitting_class(config, args.auto_class)
    with reading(args.model):
        model, info = load_with_info(args.model, auto_class, config=config, **options)
    missing = sorted(info["missing_keys"])
    if missing and args.auto_class is None:
        raise CheckpointError(
            f"{args.model} lacks {len(missing)} weights, which would be random ({', '.join(missing[:3])} ...); "
            "--auto-class NAME accepts a new head."
        )
    return model


def fitting_class(config: Any, name: str | None = None) -> Any:
    """The Auto class called `name`; without a name the first that builds the architecture that the config names.

    Raises:
        CheckpointError: there is none for this config.
    """
    built = _built_by_auto_classes(type(config))
    architecture = next(iter(config.architectures or ()), None)
    fitting = [auto for auto, classes in built.items() if (auto == name if name else architecture in classes)]
    if not fitting:
        wanted = f"is called {name}" if name else f"builds {architecture}" if architecture else "was chosen"
        raise CheckpointError(f"No Auto class for this model {wanted}; --auto-class takes one of: {', '.join(built)}.")
    return getattr(modeling_auto, fitting[0])


def _built_by_auto_classes(config_class: type) -> dict[str, set[str]]:
    """Auto class to the names of the model classes that it builds from such a config."""
    built = {}
    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and config_class in mapping:
            classes = mapping[config_class]
            classes = classes if isinstance(classes, tuple) else (classes,)
            built[name] = {cls.__name__.removeprefix("Posswap") for cls in classes}
    return built


def read_tokenizer(model: str) -> Any:
    """The tokenizer that lies beside a model; None when there is none."""
    missing_is_none = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    if not any(cached_file(model, name, **missing_is_none) for name in TOKENIZER_FILES):
        return None
    with reading(model):
        return AutoTokenizer.from_pretrained(model, trust_remote_code=False)


def scheme_in_words(scheme: dict[str, Any]) -> str:
    """Name and fields of a scheme's `to_dict`, those left None not counted."""
    given = {k: v for k, v in scheme.items() if k != "name" and v is not None}
    return " ".join([scheme["name"], *(f"{k}={_in_words(v)}" for k, v in given.items())])


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return f"({scheme_in_words(value)})"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_in_words, value))}]"
    return str(value)


def loads_with(config: Any) -> str:
    """Who can load a model that is saved with this config."""
    native = (getattr(config, "hf_posswap", None) or {}).get("native", True)
    return "transformers alone" if native else "hf_posswap"
