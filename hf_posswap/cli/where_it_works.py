"""What each scheme can do on each model type, asked of the package itself: no list here is written by hand."""

import copy
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from transformers import AutoConfig

from hf_posswap.attention import BACKENDS
from hf_posswap.errors import PosswapError, SchemeError
from hf_posswap.families import FAMILIES, Family
from hf_posswap.patching import check
from hf_posswap.schemes import Geometry, Scheme

FLASH = "flash_attention_2"
EXAMPLE_NUMBER = 4.0
EXAMPLE_MEMBERS = ("rope", "nope")


@dataclass(frozen=True)
class Sample:
    """A stock config to ask: that of a model type, with transformers' own default sizes."""

    name: str
    family: Family
    config: Any

    @property
    def geometry(self) -> Geometry:
        """The facts that schemes may know."""
        return self.family.geometry(self.config)


def samples(family: str | None) -> list[Sample]:
    """Every supported model type, encoders as decoders too, of one family or of all.

    Raises:
        PosswapError: there is no such family.
    """
    names = [f.name for f in FAMILIES]
    if family is not None and family not in names:
        raise PosswapError(f"There is no family {family!r}; there are {', '.join(names)}.")
    chosen = [f for f in FAMILIES if family in (None, f.name)]
    return [sample for f in chosen for model_type in f.model_types for sample in _samples(f, model_type)]


def _samples(family: Family, model_type: str) -> Iterator[Sample]:
    stock = Sample(model_type, family, AutoConfig.for_model(model_type))
    yield stock
    if not stock.geometry.causal:
        yield Sample(f"{model_type} decoder", family, AutoConfig.for_model(model_type, is_decoder=True))


def variants(scheme: type[Scheme], asked: list[Sample]) -> list[dict[str, Any]]:
    """What `facts` says of a scheme: once, or once for each option of a field that makes a difference."""
    plain = facts(scheme, {}, asked)
    for declared in fields(scheme):
        options = declared.metadata.get("options", ())
        found = [facts(scheme, {declared.name: option}, asked) for option in options]
        if any(_said(other) != _said(plain) for other in found):
            return found
    return [plain]


def _said(found: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in found.items() if k != "fields"}


def facts(scheme: type[Scheme], values: dict[str, Any], asked: list[Sample]) -> dict[str, Any]:
    """Kind, cache, attention and what becomes of each model, of examples of a scheme with these field values."""
    shown = example(scheme, values, asked[0].geometry)
    backends = list(BACKENDS[shown.kind]) if shown.kind in BACKENDS else None
    return {
        "fields": values,
        "kind": shown.kind,
        "cache": {"works": shown.refuses_cache is None, "reason": shown.refuses_cache},
        "flash_attention": backends is None or FLASH in backends,
        "backends": backends,
        "stock_differs": shown.stock_differs,
        "models": {sample.name: _on(sample, example(scheme, values, sample.geometry)) for sample in asked},
    }


def _on(sample: Sample, scheme: Scheme) -> dict[str, Any]:
    """Whether a scheme works on a model, and as what it is saved."""
    try:
        check(sample.config, scheme)
    except PosswapError as refusal:
        return {"works": False, "reason": str(refusal), "native": False}
    geometry, config = sample.geometry, copy.deepcopy(sample.config)
    native = sample.family.write_native(config, scheme.resolve(geometry), geometry)
    return {"works": True, "reason": None, "native": native}


def example(scheme: type[Scheme], values: dict[str, Any], geometry: Geometry) -> Scheme:
    """A scheme with these field values, and something that fits this model for the others that it needs."""
    needed = [f for f in fields(scheme) if f.default is MISSING and f.name not in values]
    return scheme(**values, **{f.name: _example_value(f, geometry) for f in needed})


def _example_value(declared: Field, geometry: Geometry) -> Any:
    rules = declared.metadata
    if rules["kind"] == "scheme":
        return EXAMPLE_MEMBERS[0]
    if rules["kind"] == "schemes":
        return EXAMPLE_MEMBERS
    if rules["kind"] is tuple:  # a number for each pair that turns
        return [EXAMPLE_NUMBER] * (int(geometry.head_dim * geometry.partial_rotary_factor) // 2)
    if rules["kind"] in (int, float):
        return min(max(EXAMPLE_NUMBER, rules["low"]), rules["high"])
    raise SchemeError(f"There is no example of {declared.name}, which takes {rules['kind']}.")
