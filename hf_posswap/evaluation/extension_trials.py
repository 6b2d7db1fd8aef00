"""What there is to try when a model is to read longer texts: the methods of `extend`, each with a few parameters."""

import json
import shlex
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hf_posswap.families import family_of
from hf_posswap.patching import patch_state, scheme_of
from hf_posswap.patching.checks import ORIGINAL, refuse_wrapped
from hf_posswap.patching.extending import extension_methods
from hf_posswap.patching.rescaling import THETA, original_length, rotary_methods, rotations
from hf_posswap.schemes import Geometry, Scheme
from hf_posswap.schemes.rope import RoPE

FURTHER: dict[str, tuple[dict[str, Any], ...]] = {
    "yarn": ({"mode": "segment"},),
    "dynamic": ({"mode": "static"},),
    "interpolate": ({"interpolation": "cubic"},),
    "hierarchical": ({"alpha": 0.2},),
}
"""What is tried of a method besides its defaults."""

ABOVE_NTK = (2, 4, 8)
"""Bases to try with "theta", as multiples of about the NTK-aware one, which "ntk" has: the base by the factor."""

NOT_TRIED = {
    "longrope": "needs factors for your text, which search_longrope finds in longer than this takes "
    "(python recipes/search_longrope.py)"
}


@dataclass(frozen=True)
class Trial:
    """One call of `extend`."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.options.items())])


def trials_for(model: Any, length: int, original: int | None = None) -> tuple[int, list[Trial]]:
    """The length that the model was trained at, and what to try for `length`: the defaults of all methods first, in the
    order of `extend`, whose first method is its default; then what else there is of each.

    Raises:
        FamilyError: the model is not supported, or is wrapped.
        SchemeError: the length before any extension is unknown, or `length` is not beyond it.
    """
    refuse_wrapped(model)
    scheme, geometry = scheme_of(model), family_of(model.config).geometry(model.config)
    turning = [part for part in [scheme, *rotations(scheme)] if isinstance(part, RoPE) and rotary_methods(part)]
    given = {} if original is None else {ORIGINAL: original}
    trained = geometry.trained_length
    if turning:
        trained = original_length(model.config, turning[0], geometry, length, original)
    of_methods = []
    for method in extension_methods(scheme):
        if method == THETA:
            of_methods.append([Trial(method, each) for each in _bases(turning[0], geometry, length / trained)])
        elif method not in NOT_TRIED:
            of_methods.append([Trial(method, {**given, **each}) for each in ({}, *FURTHER.get(method, ()))])
    return trained, [trial for layer in zip_longest(*of_methods) for trial in layer if trial is not None]


def _bases(scheme: RoPE, geometry: Geometry, factor: float) -> list[dict[str, Any]]:
    base = geometry.rope_theta or scheme.theta
    return [{"rope_theta": float(f"{base * factor * multiple:.3g}")} for multiple in ABOVE_NTK]


def hints_for(scheme: Scheme) -> list[str]:
    """Methods that fit and cannot be tried here, with the reason."""
    return [f"{name}: {NOT_TRIED[name]}" for name in extension_methods(scheme) if name in NOT_TRIED]


def command_for(model: Any, length: int, trial: Trial) -> str:
    """The command line that does the same to the checkpoint of the model.

    A model that was made or patched in memory has none yet: MODEL stands for where it is going to be saved.
    """
    name, state = getattr(model.config, "_name_or_path", ""), patch_state(model)
    if not name or (state is not None and not state.reloaded):
        name = "MODEL"
    out = f"{Path(name).name}-{length}"
    options = [part for key, value in trial.options.items() for part in (f"--{key.replace('_', '-')}", _typed(value))]
    words = ["hf-posswap", "extend", name, out, "--max-length", str(length), "--method", trial.method, *options]
    return shlex.join(words)


def _typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
