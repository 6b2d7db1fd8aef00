"""Rotation inside GPT-2's own attention, which has no rotary slot."""

from typing import Any

from torch import Tensor
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, eager_attention_forward

from hf_posswap.attention.rotary import attend_rotated


class RotatingGPT2Attention(GPT2Attention):
    """GPT-2's self-attention with queries and keys rotated before they reach the cache."""

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Any = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        output_attentions: bool | None = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock one; `position_embeddings` are cos and sin `[1 or B, Q, D]`."""
        assert position_embeddings is not None
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            x.view(shape).transpose(1, 2) for x in self.c_attn(hidden_states).split(self.split_size, dim=2)
        )
        output, weights = attend_rotated(
            self,
            (query, key, value),
            position_embeddings,
            past_key_values,
            attention_mask,
            self.attn_dropout,
            eager_attention_forward,
            **kwargs,
        )
        output = self.c_proj(output.reshape(*output.shape[:-2], -1).contiguous())
        return self.resid_dropout(output), weights
