"""LLaMA-style decoders: one rotary module for all layers, no input slot.

Other models of this style differ in a window, in norms and biases of projections, in the part of a head that they
rotate and in how its dimensions pair; what concerns position is a row of data here.
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from hf_posswap.errors import CheckpointError, SchemeError
from hf_posswap.families.base import Family, trained_length
from hf_posswap.schemes import SCHEMES, Layered, NoPE, Scheme
from hf_posswap.schemes.base import Geometry, Pairing
from hf_posswap.schemes.layered import layered_pattern
from hf_posswap.schemes.rope import RoPE

READABLE = {s.rope_type: s for s in SCHEMES if issubclass(s, RoPE) and s.rope_type and s.reads_native}
"""transformers' `rope_type` to the scheme that it is."""


@dataclass(frozen=True)
class Rotation:
    """How a model type rotates, as in `Geometry`. `rope_types`: what its config accepts; None: all."""

    pairing: Pairing = "half"
    rotates_prefix: bool = False
    rope_types: tuple[str, ...] | None = None


ROTATIONS: dict[str, Rotation] = {
    "llama": Rotation(),
    "mistral": Rotation(),
    "qwen2": Rotation(),
    "qwen3": Rotation(),
    "smollm3": Rotation(),
    "phi3": Rotation(rotates_prefix=True, rope_types=("default", "longrope")),
    "glm": Rotation(rotates_prefix=True, pairing="interleaved"),
}


class Llama(Family):
    """LLaMA, Mistral, Qwen2, Qwen3, SmolLM3, Phi-3, GLM and their heads."""

    name: ClassVar[str] = "llama"
    model_types: ClassVar[tuple[str, ...]] = tuple(ROTATIONS)
    rotary_slot: ClassVar[str | None] = "rotary_emb"
    layers: ClassVar[str] = "layers"
    attention: ClassVar[str] = "self_attn"
    guesses_packing: ClassVar[bool] = True
    native_fields: ClassVar[tuple[str, ...]] = ("rope_parameters", "no_rope_layers")

    def geometry(self, config: Any) -> Geometry:
        heads, rotation = config.num_attention_heads, ROTATIONS[config.model_type]
        return Geometry(
            num_attention_heads=heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            trained_length=trained_length(config),
            causal=getattr(config, "is_causal", True),
            rope_theta=original(config, "rope_theta"),
            initializer_range=config.initializer_range,
            pairing=rotation.pairing,
            partial_rotary_factor=original(config, "partial_rotary_factor") or 1.0 if rotation.rotates_prefix else 1.0,
            rotates_prefix=rotation.rotates_prefix,
        )

    def stock_scheme(self, config: Any) -> Scheme:
        rotated, geometry = rotated_layers(config), self.geometry(config)
        if not any(rotated):
            return NoPE()
        scheme = _stock_rotation(config, geometry)
        if all(rotated):
            return scheme
        pattern = layered_pattern(["R" if turns else "N" for turns in rotated])
        members = (scheme, NoPE()) if rotated[0] else (NoPE(), scheme)
        return Layered(schemes=members, pattern=pattern).resolve(geometry)

    def refusal(self, config: Any) -> str | None:
        parameters = config.rope_parameters or {}
        if "rope_theta" not in parameters:
            return "its rope_parameters are given per layer type"
        return None

    def write_native(self, config: Any, scheme: Scheme, geometry: Geometry) -> bool:
        rotation, rotated = _rotation_and_layers(scheme, geometry)
        if hasattr(config, "no_rope_layers") and not any(rotated):
            rotation = RoPE().resolve(geometry)
        parameters = None if rotation is None else rotation.rope_parameters(geometry)
        accepted = ROTATIONS[config.model_type].rope_types
        if parameters is None or (accepted is not None and parameters["rope_type"] not in accepted):
            return False
        if hasattr(config, "no_rope_layers"):
            config.no_rope_layers = [int(turns) for turns in rotated]
        elif not all(rotated) and isinstance(scheme, Layered):
            return False
        config.rope_parameters = parameters
        if hasattr(config, "original_max_position_embeddings") and "original_max_position_embeddings" in parameters:
            # Phi-3 keeps this beside `rope_parameters`, where it has the last word.
            config.original_max_position_embeddings = parameters["original_max_position_embeddings"]
        return True


def rotated_layers(config: Any) -> list[bool]:
    """Whether each layer rotates: SmolLM3 lists those that do, all others do everywhere."""
    listed = getattr(config, "no_rope_layers", None)
    return [bool(turns) for turns in listed] if listed else [True] * config.num_hidden_layers


def _stock_rotation(config: Any, geometry: Geometry) -> Scheme:
    # Only a model that is built moves a length from the config's top level into `rope_parameters`.
    config = copy.deepcopy(config)
    config.standardize_rope_params()
    parameters = dict(config.rope_parameters)
    rope_type = parameters.get("rope_type", "default")
    if rope_type == "proportional" and parameters.get("partial_rotary_factor") == 0.0:
        return NoPE()
    if rope_type not in READABLE:
        known = ", ".join(READABLE)
        raise SchemeError(f"rope_type {rope_type!r} is not known here; known are: {known}. Replacing it is possible.")
    if rope_type != "proportional" and not geometry.rotates_prefix:
        # transformers passes it to the formula on models whose attention then ignores it, or fails.
        parameters.pop("partial_rotary_factor", None)
    length = {"max_position_embeddings": config.max_position_embeddings}
    return READABLE[rope_type].from_rope_parameters({**parameters, **length}).resolve(geometry)


def _rotation_and_layers(scheme: Scheme, geometry: Geometry) -> tuple[Scheme | None, list[bool]]:
    """The one rotation that a scheme consists of and the layers that have it; None when it is more than that."""
    layers = geometry.num_hidden_layers
    if not isinstance(scheme, Layered):
        return scheme, [not isinstance(scheme, NoPE)] * layers
    chosen = [scheme.schemes[i] for i in scheme.assignment(layers)]
    return scheme.rotation, [not isinstance(s, NoPE) for s in chosen]


def original(config: Any, name: str) -> float | None:
    """What the model was trained with: remembered by us, else what the config's `rope_parameters` have.

    Raises:
        CheckpointError: it is no number.
    """
    block = getattr(config, "hf_posswap", None)
    remembered = block.get(name) if isinstance(block, dict) else None
    value = remembered or (config.rope_parameters or {}).get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise CheckpointError(f"The config has {name}={value!r:.80}, which is no number.")
    return None if value is None else float(value)
