"""Registration with transformers' Auto classes: a checkpoint that needs this package loads like any other.

The class registered for a model only builds: it makes the stock model, puts the scheme on and then *is* the stock
class, so that a loaded model and one patched in memory are the same kind of thing.
"""

import functools
from typing import Any

from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_posswap.errors import CheckpointError
from hf_posswap.families import family_of
from hf_posswap.families.configs import CONFIG_CLASSES
from hf_posswap.patching import patch_state
from hf_posswap.patching.checks import checked_scheme, scheme_in_block
from hf_posswap.patching.forward import ENCODING, INPUT, ROTATION
from hf_posswap.patching.install import install, uninstall


def register_models() -> None:
    """Every Auto class that knows a supported stock model knows ours."""
    from transformers.models.auto import modeling_auto

    for name, auto_class in vars(modeling_auto).items():
        mapping = getattr(auto_class, "_model_mapping", None)
        if not name.startswith("AutoModel") or mapping is None:
            continue
        for model_type in CONFIG_CLASSES:
            config_class: Any = CONFIG_CLASSES[model_type]
            stock_config: Any = CONFIG_MAPPING[model_type]
            if stock_config in mapping and config_class not in mapping:
                stock = mapping[stock_config]
                stock_classes = stock if isinstance(stock, tuple) else (stock,)
                built = tuple(building_class(cls, config_class) for cls in stock_classes)
                mapping.register(config_class, built if isinstance(stock, tuple) else built[0])


@functools.cache
def building_class(stock: Any, config_class: Any) -> Any:
    """A subclass of a stock model class that puts the config's scheme on what it builds."""

    def build(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        scheme, geometry = checked_config(config)
        length = config.max_position_embeddings
        stock.__init__(self, config, *args, **kwargs)
        self.__class__ = stock
        if patch_state(self) is not None:  # some heads of transformers build their base model with AutoModel
            uninstall(self.base_model)
        install(self, family_of(config), scheme, geometry, max_length=length, reloaded=True)

    def from_pretrained(cls: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        if kwargs.setdefault("use_safetensors", True) is not True:
            raise CheckpointError("Only safetensors are read: a pickle can run code when it is loaded.")
        loaded, info = stock.from_pretrained.__func__(cls, *args, output_loading_info=True, **kwargs)
        refuse_missing(loaded, info)
        return (loaded, info) if output_loading_info else loaded

    body = {
        "__init__": build,
        "__module__": __name__,
        "config_class": config_class,
        "from_pretrained": classmethod(from_pretrained),
    }
    return type("Posswap" + stock.__name__, (stock,), body)


def checked_config(config: Any) -> tuple[Any, Any]:
    """Scheme and geometry of a saved config, checked before anything is built.

    Raises:
        CheckpointError: the block is missing, broken, from the future, or does not fit the model.
    """
    scheme = scheme_in_block(config)
    if scheme is None:
        raise CheckpointError("The config has no hf_posswap block, so nothing says which scheme the model has.")
    return checked_scheme(config, scheme)


def refuse_missing(model: Any, info: dict[str, Any]) -> None:
    """A position parameter that is not in the checkpoint must not be left to chance.

    Raises:
        CheckpointError: such a parameter is missing.
    """
    state = patch_state(model)
    if state is None:
        return
    own_places = (INPUT, ROTATION, ENCODING)
    foreign = [key for key in info["unexpected_keys"] if any(f"{place}." in key for place in own_places)]
    if foreign:
        raise CheckpointError(
            f"The checkpoint has {', '.join(sorted(foreign))}, which {state.scheme.name} has not: it was edited."
        )
    slots = [name for name in (*own_places, state.family.input_slot) if name]
    own = dict(model.named_parameters())  # the saved table of a formula is none
    missing = [key for key in info["missing_keys"] if key in own and any(f"{slot}." in key for slot in slots)]
    if missing:
        raise CheckpointError(f"The checkpoint lacks {', '.join(sorted(missing))}, which {state.scheme.name} needs.")
