"""GPT-2: a learned table `wpe`, fused projections, no rotary slot."""

from typing import Any, ClassVar

from torch import nn

from hf_posswap.families.base import Family, trained_length
from hf_posswap.schemes import Learned, Scheme, Sinusoidal
from hf_posswap.schemes.base import Geometry


class GPT2(Family):
    """GPT-2 and its heads."""

    name: ClassVar[str] = "gpt2"
    model_types: ClassVar[tuple[str, ...]] = ("gpt2",)
    input_slot: ClassVar[str | None] = "wpe"
    layers: ClassVar[str] = "h"
    attention: ClassVar[str] = "attn"
    guesses_packing: ClassVar[bool] = True

    def geometry(self, config: Any) -> Geometry:
        return Geometry(
            num_attention_heads=config.n_head,
            num_key_value_heads=config.n_head,
            head_dim=config.n_embd // config.n_head,
            hidden_size=config.n_embd,
            num_hidden_layers=config.n_layer,
            trained_length=trained_length(config),
            causal=getattr(config, "is_causal", True),
            initializer_range=config.initializer_range,
        )

    def stock_scheme(self, config: Any) -> Scheme:
        return Learned(max_position_embeddings=config.n_positions)

    def refusal(self, config: Any) -> str | None:
        if config.add_cross_attention:
            return "it has cross-attention (add_cross_attention), whose keys have no position in this sequence"
        if config.reorder_and_upcast_attn:
            return "reorder_and_upcast_attn computes attention inside GPT-2 itself; set it to False in the config"
        return None

    def write_native(self, config: Any, scheme: Scheme, geometry: Geometry) -> bool:
        return isinstance(scheme, (Learned, Sinusoidal))

    def rotating_attention(self) -> type[nn.Module]:
        from hf_posswap.attention.gpt2 import RotatingGPT2Attention

        return RotatingGPT2Attention
