"""LLaMA-style decoders: one rotary module for all layers, no input slot.

Mistral and Qwen2 differ in a window and in biases of projections, not in where position is: they are entries here.
"""

from typing import Any, ClassVar

from hf_posswap.errors import SchemeError
from hf_posswap.families.base import Family, trained_length
from hf_posswap.schemes import SCHEMES, NoPE, Scheme
from hf_posswap.schemes.base import Geometry
from hf_posswap.schemes.rope import RoPE

READABLE = {scheme.rope_type: scheme for scheme in SCHEMES if issubclass(scheme, RoPE) and scheme.rope_type}
"""transformers' `rope_type` to the scheme that it is."""


class Llama(Family):
    """LLaMA, Mistral, Qwen2 and their heads."""

    name: ClassVar[str] = "llama"
    model_types: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2")
    rotary_slot: ClassVar[str | None] = "rotary_emb"
    layers: ClassVar[str] = "layers"
    attention: ClassVar[str] = "self_attn"
    guesses_packing: ClassVar[bool] = True

    def geometry(self, config: Any) -> Geometry:
        heads = config.num_attention_heads
        return Geometry(
            num_attention_heads=heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            trained_length=trained_length(config),
            causal=getattr(config, "is_causal", True),
            rope_theta=original_theta(config),
            initializer_range=config.initializer_range,
        )

    def stock_scheme(self, config: Any) -> Scheme:
        parameters = config.rope_parameters
        rope_type = parameters.get("rope_type", "default")
        if rope_type == "proportional" and parameters.get("partial_rotary_factor") == 0.0:
            return NoPE()
        if rope_type not in READABLE:
            known = ", ".join(READABLE)
            raise SchemeError(
                f"rope_type {rope_type!r} is not known here; known are: {known}. Replacing it is possible."
            )
        return READABLE[rope_type].from_rope_parameters(parameters).resolve(self.geometry(config))

    def refusal(self, config: Any) -> str | None:
        parameters = config.rope_parameters or {}
        if "rope_theta" not in parameters:
            return "its rope_parameters are given per layer type"
        return None

    def write_native(self, config: Any, scheme: Scheme, geometry: Geometry) -> bool:
        parameters = scheme.rope_parameters(geometry)
        if parameters is None:
            return False
        config.rope_parameters = parameters
        return True


def original_theta(config: Any) -> float | None:
    """The base that the model was trained with: remembered by us, else what the config has."""
    block = getattr(config, "hf_posswap", None)
    if isinstance(block, dict) and block.get("rope_theta"):
        return float(block["rope_theta"])
    theta = (config.rope_parameters or {}).get("rope_theta")
    return None if theta is None else float(theta)
