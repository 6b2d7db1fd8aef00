"""Two styles of keys for rotary positions in a `config.json`, and which one transformers takes.

transformers 5 writes `rope_parameters`; version 4 wrote `rope_scaling` and a top-level `rope_theta`. Where both are
there transformers 5 takes `rope_scaling` whole and forgets the other, without a word: a model that was extended by
editing one style then runs with the other. Only the file still shows it, so this is asked of the raw mapping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_posswap.errors import CheckpointError
from hf_posswap.registration import PREFIX

Style = Literal["none", "v4", "v5", "v4+v5", "per layer type"]

SYNONYMS = {"su": "longrope", "mrope": "default"}
"""Older names of rope types."""

DEFAULTS: dict[str, dict[str, Any]] = {"yarn": {"beta_fast": 32, "beta_slow": 1, "truncate": True}}
"""What transformers reads where a key of a rope type is absent."""

NEEDS_ORIGINAL = ("yarn", "longrope", "llama3")
"""Types with an `original_max_position_embeddings`, which transformers fills in from the rest of the config."""


@dataclass(frozen=True)
class RopeKeys:
    """What a raw config says of rotary positions."""

    style: Style
    parameters: dict[str, Any] | None
    """What transformers takes, with `rope_type` and `rope_theta`; None: there is nothing, or one set a layer type."""

    def __str__(self) -> str:
        if self.parameters is None:
            return self.style
        taken = {"v5": "rope_parameters", "v4": "rope_scaling and rope_theta"}.get(self.style, "both, which agree")
        return f"{taken}: {_shown(self.parameters)}"


def rope_keys(config: Mapping[str, Any]) -> RopeKeys:
    """Which style the raw `config` has, and what transformers takes of it.

    Raises:
        CheckpointError: two keys disagree; the message has both values.
    """
    v5, v4 = (_mapping(config, name) for name in ("rope_parameters", "rope_scaling"))
    if any(isinstance(value, Mapping) for value in v5.values()):
        return RopeKeys("per layer type", None)
    theta = config.get("rope_theta")
    for name, keys in (("rope_parameters", v5), ("rope_scaling", v4)):
        _refuse_two_types(name, keys)
        if None not in (theta, keys.get("rope_theta")) and keys["rope_theta"] != theta:
            raise _disagreement(f"{name} has rope_theta={keys['rope_theta']}", f"rope_theta is {theta} beside it")
    if not v5 and not v4 and theta is None:
        return RopeKeys("none", None)
    if v5 and v4:
        _refuse_difference(_complete(config, v5), _complete(config, v4))
    style: Style = "v4+v5" if v5 and (v4 or theta is not None) else "v5" if v5 else "v4"
    return RopeKeys(style, _complete(config, v4 or v5))


def read_rope_keys(path_or_name: Any, **options: Any) -> RopeKeys:
    """Those of the raw config of a checkpoint; `options` go to `PreTrainedConfig.get_config_dict`.

    Raises:
        CheckpointError: its two styles of rope keys disagree.
    """
    config, _ = PreTrainedConfig.get_config_dict(path_or_name, **options)
    # Of a config that is no mapping transformers says what is wrong.
    return rope_keys(config if isinstance(config, Mapping) else {})


def rope_type_of(keys: Mapping[str, Any]) -> str:
    """The rope type, in its present name; "default" where none is given."""
    name = keys.get("rope_type") or keys.get("type") or "default"
    return SYNONYMS.get(name, name)


def _mapping(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise CheckpointError(f"The config's {name} is {value!r:.80}, no mapping with a 'rope_type'.")
    return value


def _complete(config: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with every default filled in, under one name each."""
    given = {k: v for k, v in keys.items() if k != "type" and v is not None}
    given["rope_type"] = rope_type = rope_type_of(keys)
    outside = {k: config[k] for k in ("rope_theta", "partial_rotary_factor") if config.get(k) is not None}
    complete = {"rope_theta": _default_theta(config), **DEFAULTS.get(rope_type, {}), **outside, **given}
    if rope_type in NEEDS_ORIGINAL:
        # transformers gives a length beside the keys precedence over the one among them.
        original = config.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
        complete["original_max_position_embeddings"] = original or config.get("max_position_embeddings")
    return complete


def _default_theta(config: Mapping[str, Any]) -> float:
    model_type = str(config.get("model_type")).removeprefix(PREFIX)
    return CONFIG_MAPPING[model_type].default_theta if model_type in CONFIG_MAPPING else 10000.0


def _refuse_two_types(name: str, keys: Mapping[str, Any]) -> None:
    old, new = (SYNONYMS.get(keys.get(k, ""), keys.get(k)) for k in ("type", "rope_type"))
    if None not in (old, new) and old != new:
        raise _disagreement(f"{name} has type={keys['type']!r}", f"rope_type={keys['rope_type']!r}")


def _refuse_difference(v5: dict[str, Any], v4: dict[str, Any]) -> None:
    for key in sorted({*v5, *v4}, key=lambda k: (k != "rope_type", k)):
        if v5.get(key) != v4.get(key):
            raise _disagreement(
                f"rope_parameters says {key}={v5.get(key)!r:.200}",
                f"rope_scaling (with rope_theta) {key}={v4.get(key)!r:.200}",
            )


def _disagreement(one: str, other: str) -> CheckpointError:
    return CheckpointError(
        f"The config says two things of its rotary positions: {one}, but {other}. Remove the one that is wrong from "
        "config.json; transformers would take rope_scaling, or else rope_parameters, without a word."
    )


def _shown(parameters: dict[str, Any]) -> str:
    ordered = sorted(parameters.items(), key=lambda item: (item[0] != "rope_type", item[0]))
    return " ".join(f"{key}={value!r:.60}" for key, value in ordered)
