"""Makes Auto classes know our checkpoints, without importing transformers for it.

Our model types get an entry in transformers' table of configs as soon as that table exists: now, or when the module
that holds it is imported. The entry is a stand-in that finishes the registration when a checkpoint of ours is really
loaded, because building the true classes inside of transformers' own imports would run in circles.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

AUTO_CONFIG = "transformers.models.auto.configuration_auto"
PREFIX = "hf_posswap_"


def register_when_transformers_is_imported() -> None:
    """Registers now or at the import of transformers' table of configs."""
    if hasattr(sys.modules.get(AUTO_CONFIG), "AutoConfig"):
        register_stand_ins(sys.modules[AUTO_CONFIG])
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


def register_stand_ins(configuration_auto: Any) -> None:
    """Every model type of ours that the table does not know yet."""
    from hf_posswap.families import MODEL_TYPES

    for model_type in MODEL_TYPES:
        if PREFIX + model_type not in configuration_auto.CONFIG_MAPPING:
            configuration_auto.AutoConfig.register(PREFIX + model_type, _StandIn)


class _StandIn:
    """What the table holds until a checkpoint of ours is loaded."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        importlib.import_module("hf_posswap.persistence")
        true_class = sys.modules[AUTO_CONFIG].CONFIG_MAPPING[config_dict["model_type"]]
        assert true_class is not cls
        return true_class.from_dict(config_dict, **kwargs)


class _Waiting(MetaPathFinder):
    """Finds that one module as anybody would, and registers after it was executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != AUTO_CONFIG:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        # Only now: looking for the module, as tools do, is not importing it.
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Waiting)]
        register_stand_ins(module)
