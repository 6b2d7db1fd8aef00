"""Rotation inside BERT's own attention, which has no rotary slot."""

from typing import Any

from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import BertSelfAttention, eager_attention_forward

from hf_posswap.attention.rotary import rotate


class RotatingBertSelfAttention(BertSelfAttention):
    """BERT's self-attention with queries and keys rotated before they reach the cache."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As the stock one; `position_embeddings` are cos and sin `[1 or B, Q, D]`."""
        assert position_embeddings is not None
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        projected = (project(hidden_states) for project in (self.query, self.key, self.value))
        query, key, value = (x.view(shape).transpose(1, 2) for x in projected)
        query, key = rotate(query, *position_embeddings), rotate(key, *position_embeddings)
        if past_key_values is not None:
            if isinstance(past_key_values, EncoderDecoderCache):
                past_key_values = past_key_values.self_attention_cache
            key, value = past_key_values.update(key, value, self.layer_idx)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.dropout.p if self.training else 0.0
        output, weights = attend(
            self, query, key, value, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return output.reshape(*hidden_states.shape[:-1], -1).contiguous(), weights
