"""Swap and extend the positional scheme of a Hugging Face model that already exists.

Importing this package loads neither torch nor transformers: names are resolved at first use, and checkpoints of ours
are registered with the Auto classes when transformers is there.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_posswap.registration import register_when_transformers_is_imported

if TYPE_CHECKING:
    from hf_posswap.errors import CheckpointError, EvaluationError, FamilyError, PosswapError, SchemeError
    from hf_posswap.extending import extend
    from hf_posswap.patching import check, patch, scheme_of, unpatch
    from hf_posswap.persistence import load, save
    from hf_posswap.persistence.export import export
    from hf_posswap.schemes import *  # noqa: F403
    from hf_posswap.schemes import schemes

__version__ = "0.1.0"

_CALLS = {
    "patch": "patching",
    "unpatch": "patching",
    "scheme_of": "patching",
    "check": "patching",
    "extend": "extending",
    "export": "persistence.export",
    "load": "persistence",
    "save": "persistence",
    "PosswapError": "errors",
    "SchemeError": "errors",
    "FamilyError": "errors",
    "CheckpointError": "errors",
    "EvaluationError": "errors",
}

__all__ = [
    "CheckpointError",
    "EvaluationError",
    "FamilyError",
    "PosswapError",
    "SchemeError",
    "check",
    "export",
    "extend",
    "load",
    "patch",
    "save",
    "scheme_of",
    "schemes",
    "unpatch",
]


def __getattr__(name: str) -> Any:
    if name == "schemes":
        return import_module(f"{__name__}.schemes")
    if name in _CALLS:
        if _CALLS[name] != "errors":
            # Whoever patches may also build from the patched config: Auto classes know it from here on.
            import_module(f"{__name__}.persistence")
        return getattr(import_module(f"{__name__}.{_CALLS[name]}"), name)
    if not name.startswith("_"):
        listed = import_module(f"{__name__}.schemes")
        if name in listed.__all__:
            return getattr(listed, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *import_module(f"{__name__}.schemes").__all__})


register_when_transformers_is_imported()
