"""Rotation inside BERT's own attention, which has no rotary slot."""

from typing import Any

from torch import Tensor
from transformers.models.bert.modeling_bert import BertSelfAttention, eager_attention_forward

from hf_posswap.attention.rotary import attend_rotated


class RotatingBertSelfAttention(BertSelfAttention):
    """BERT's self-attention with queries and keys rotated before they reach the cache."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Any = None,
        past_key_values: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock one; `position_embeddings` are cos and sin `[1 or B, Q, D]`."""
        assert position_embeddings is not None
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        query, key, value = (
            project(hidden_states).view(shape).transpose(1, 2) for project in (self.query, self.key, self.value)
        )
        output, weights = attend_rotated(
            self,
            (query, key, value),
            position_embeddings,
            past_key_values,
            attention_mask,
            self.dropout,
            eager_attention_forward,
            **kwargs,
        )
        return output.reshape(*hidden_states.shape[:-1], -1).contiguous(), weights
