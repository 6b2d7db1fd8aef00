"""Every scheme there is. Adding one is a file beside this one and a line in `SCHEMES`; nothing else lists them."""

import sys
from types import ModuleType

from hf_posswap.schemes.alibi import ALiBi
from hf_posswap.schemes.base import Geometry, Scheme
from hf_posswap.schemes.dynamic import DynamicNTKRoPE
from hf_posswap.schemes.layered import Layered
from hf_posswap.schemes.learned import Learned
from hf_posswap.schemes.linear import LinearRoPE
from hf_posswap.schemes.llama3 import Llama3RoPE
from hf_posswap.schemes.log_scaled import LogScaled
from hf_posswap.schemes.longrope import LongRoPE
from hf_posswap.schemes.nope import NoPE
from hf_posswap.schemes.ntk import NTKRoPE
from hf_posswap.schemes.ntk_by_parts import NTKByPartsRoPE
from hf_posswap.schemes.proportional import ProportionalRoPE
from hf_posswap.schemes.rope import RoPE
from hf_posswap.schemes.sinusoidal import Sinusoidal
from hf_posswap.schemes.t5 import T5Bias
from hf_posswap.schemes.xpos import XPos
from hf_posswap.schemes.yarn import YaRN

SCHEMES: tuple[type[Scheme], ...] = (
    NoPE,
    Learned,
    Sinusoidal,
    RoPE,
    LinearRoPE,
    NTKRoPE,
    DynamicNTKRoPE,
    YaRN,
    NTKByPartsRoPE,
    LongRoPE,
    Llama3RoPE,
    ProportionalRoPE,
    XPos,
    ALiBi,
    T5Bias,
    Layered,
    LogScaled,
)

BY_NAME: dict[str, type[Scheme]] = {scheme.name: scheme for scheme in SCHEMES}


def schemes() -> dict[str, type[Scheme]]:
    """Every scheme by its name: what `patch(model, name)` takes and a config stores."""
    return dict(BY_NAME)


class _CallableModule(ModuleType):
    """`hf_posswap.schemes` is this package and the public call at once: importing the first would hide the second."""

    def __call__(self) -> dict[str, type[Scheme]]:
        return schemes()


sys.modules[__name__].__class__ = _CallableModule

__all__ = ["BY_NAME", "SCHEMES", "Geometry", "Scheme", *(scheme.__name__ for scheme in SCHEMES)]
