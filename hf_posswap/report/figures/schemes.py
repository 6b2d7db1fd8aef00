"""The schemes that occur in results, each drawn from its formula."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hf_posswap.errors import SchemeError
from hf_posswap.evaluation.decay import Decay
from hf_posswap.evaluation.properties import Properties
from hf_posswap.evaluation.results import ModelResult, Result, Subject
from hf_posswap.profiles.without_model import EXAMPLE, resolved_alone
from hf_posswap.report.figures.section import Section
from hf_posswap.report.plot import plot_scheme
from hf_posswap.report.style import LIGHT, Theme
from hf_posswap.schemes import BY_NAME
from hf_posswap.schemes.base import Geometry, Scheme, scheme_from_dict

LONGEST_LIST = 4
SHORTEST = 16
"""Positions that a picture needs."""

FILLED_IN = {"partial_rotary_factor": 1.0}
UNSAID = ("name", "original_max_position_embeddings")
"""The latter is the trained length, which stands beside the scheme."""

SEEN = {
    "input": "Left what is added at each position by dimension, right how alike positions are (cosine).",
    "rotary": "How fast each pair of dimensions turns, its full turns in the trained length (the wavelengths that fit) "
    "and how much slower it is than plain RoPE, beside all other rotary schemes; below, inner products by distance.",
    "bias": "What is added to attention scores by distance, head by head.",
    "score": "What becomes of attention scores by distance.",
}


def scheme_label(block: Mapping[str, Any]) -> str:
    """Name and the fields that are not at their defaults, nor what every model fills in: `yarn (factor=4)`."""
    cls = BY_NAME.get(block["name"])
    usual = {name: field.default for name, field in getattr(cls, "__dataclass_fields__", {}).items()} | FILLED_IN
    changed = {k: v for k, v in block.items() if k not in UNSAID and v is not None and v != usual.get(k)}
    said = ", ".join(f"{name}={in_short(value)}" for name, value in changed.items())
    return block["name"] + (f" ({said})" if said else "")


def scheme_sections(results: Sequence[Result]) -> list[Section]:
    """One for each scheme that was measured on a model of other sizes."""
    return [_section(block, sizes) for block, sizes in _schemes_of(results)]


def _schemes_of(results: Sequence[Result]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Schemes and sizes: those of models, then what was looked at without one and is not among them."""
    subjects = [result.subject for result in results if isinstance(result, ModelResult)]
    found = [(each.scheme, _sizes(each)) for each in subjects if each.scheme]
    measured = [block for block, _ in found]
    alone = [result.scheme for result in results if isinstance(result, (Decay, Properties))]
    found += [(block, {}) for block in alone if block not in measured]
    return [each for i, each in enumerate(found) if each not in found[:i] and each[0]["name"] in BY_NAME]


def _sizes(subject: Subject) -> dict[str, Any]:
    """Fields of a geometry, those that are known."""
    sizes = {
        "trained_length": subject.trained_length and max(SHORTEST, subject.trained_length),
        "head_dim": subject.head_dim,
        "num_attention_heads": subject.heads,
        "num_key_value_heads": subject.heads,
        "hidden_size": subject.hidden_size,
        "num_hidden_layers": subject.layers,
    }
    return {name: size for name, size in sizes.items() if size}


def _section(block: Mapping[str, Any], sizes: Mapping[str, Any]) -> Section:
    label, scheme = scheme_label(block), scheme_from_dict(block, BY_NAME)
    geometry, whose = _geometry(scheme, block, sizes)
    return Section(
        name=f"scheme-{scheme.name.replace('_', '-')}",
        title=f"Scheme: {label}",
        caption=(
            f"{SEEN.get(scheme.kind, 'What the scheme does by position.')} Drawn from the formula for a trained length "
            f"of {geometry.trained_length:,}, {geometry.num_attention_heads} heads, a head_dim of {geometry.head_dim} "
            f"and a hidden_size of {geometry.hidden_size:,}, {whose}; not from weights."
        ),
        draw=lambda theme: _figure(scheme, geometry, theme),
        alt=f"What {label} does, drawn from its formula.",
    )


def _figure(scheme: Scheme, geometry: Geometry, theme: Theme) -> Any:
    return plot_scheme(scheme, geometry, dark=theme is not LIGHT)


def _geometry(scheme: Scheme, block: Mapping[str, Any], sizes: Mapping[str, Any]) -> tuple[Geometry, str]:
    """The model's where its sizes are known and can be drawn, else the example's at its trained length; and whose."""
    example = replace(EXAMPLE, head_dim=_head_dim(block))
    if "head_dim" in sizes:
        with suppress(SchemeError):
            geometry = replace(example, **sizes)
            resolved_alone(scheme, geometry, {})
            return geometry, "those of the model"
    length = sizes.get("trained_length")
    if length is None:
        return example, "those of an example"
    return replace(example, trained_length=length), "of which only the first is the model's, the others an example's"


def _head_dim(block: Mapping[str, Any]) -> int:
    """That which lists of factors for pairs are made for, else the example's."""
    counts = [len(value) for value in block.values() if isinstance(value, (list, tuple)) and _are_numbers(value)]
    return 2 * counts[0] if counts else EXAMPLE.head_dim


def _are_numbers(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def in_short(value: Any) -> str:
    """A field's value, long lists by their length."""
    if isinstance(value, Mapping):
        return scheme_label(value)
    if isinstance(value, (list, tuple)):
        numbers = _are_numbers(value) and len(value) > LONGEST_LIST
        return f"{len(value)} numbers" if numbers else f"[{', '.join(map(in_short, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
