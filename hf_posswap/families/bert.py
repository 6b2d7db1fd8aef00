"""BERT: a learned table in the embeddings, buffers as long as it, no rotary slot, attention in both directions."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_posswap.families.base import Family, trained_length
from hf_posswap.positions import consecutive
from hf_posswap.schemes import Learned, Scheme, Sinusoidal
from hf_posswap.schemes.base import Geometry


class Bert(Family):
    """BERT and its heads, as an encoder or (`is_decoder=True`) a decoder."""

    name: ClassVar[str] = "bert"
    model_types: ClassVar[tuple[str, ...]] = ("bert",)
    input_slot: ClassVar[str | None] = "embeddings.position_embeddings"
    layers: ClassVar[str] = "encoder.layer"
    attention: ClassVar[str] = "attention.self"

    def geometry(self, config: Any) -> Geometry:
        return Geometry(
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_attention_heads,
            head_dim=config.hidden_size // config.num_attention_heads,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            trained_length=trained_length(config),
            causal=bool(config.is_decoder) and getattr(config, "is_causal", True),
            initializer_range=config.initializer_range,
        )

    def stock_scheme(self, config: Any) -> Scheme:
        return Learned(max_position_embeddings=config.max_position_embeddings)

    def refusal(self, config: Any) -> str | None:
        if config.add_cross_attention:
            return "it has cross-attention (add_cross_attention), whose keys have no position in this sequence"
        relative = getattr(config, "position_embedding_type", "absolute")
        if relative not in ("absolute", None):
            return f"position_embedding_type={relative!r} was dropped by transformers 5, which reads it as absolute"
        return None

    def write_native(self, config: Any, scheme: Scheme, geometry: Geometry) -> bool:
        return isinstance(scheme, (Learned, Sinusoidal))

    def rotating_attention(self) -> type[nn.Module]:
        from hf_posswap.attention.bert import RotatingBertSelfAttention

        return RotatingBertSelfAttention

    def complete_call(self, base: nn.Module, call: dict[str, Any], offset: int | Tensor) -> None:
        tokens = call.get("input_ids") if call.get("input_ids") is not None else call.get("inputs_embeds")
        assert tokens is not None
        batch, length = tokens.shape[:2]
        if call.get("position_ids") is None:
            call["position_ids"] = consecutive(length, offset, tokens.device)
        if call.get("token_type_ids") is None:
            call["token_type_ids"] = torch.zeros((batch, length), dtype=torch.long, device=tokens.device)

    def resize_buffers(self, base: nn.Module, length: int) -> Iterator[tuple[nn.Module, str, Tensor]]:
        embeddings = base.get_submodule("embeddings")
        device = base.get_buffer("embeddings.position_ids").device
        yield embeddings, "position_ids", torch.arange(length, device=device)[None]
        yield embeddings, "token_type_ids", torch.zeros((1, length), dtype=torch.long, device=device)
