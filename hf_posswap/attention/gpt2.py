"""Rotation inside GPT-2's own attention, which has no rotary slot."""

from typing import Any

from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, eager_attention_forward

from hf_posswap.attention.rotary import rotate


class RotatingGPT2Attention(GPT2Attention):
    """GPT-2's self-attention with queries and keys rotated before they reach the cache."""

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        output_attentions: bool | None = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock one; `position_embeddings` are cos and sin `[1 or B, Q, D]`."""
        assert position_embeddings is not None
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        projected = self.c_attn(hidden_states).split(self.split_size, dim=2)
        query, key, value = (x.view(shape).transpose(1, 2) for x in projected)
        query, key = rotate(query, *position_embeddings), rotate(key, *position_embeddings)
        if past_key_values is not None:
            if isinstance(past_key_values, EncoderDecoderCache):
                past_key_values = past_key_values.self_attention_cache
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.attn_dropout.p if self.training else 0.0
        output, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        output = self.c_proj(output.reshape(*output.shape[:-2], -1).contiguous())
        return self.resid_dropout(output), weights
