"""Where attention goes: score and weight by distance, and which rotary frequencies make the scores."""

from hf_posswap.evaluation.attention_profile.measuring import attention_profile
from hf_posswap.evaluation.attention_profile.results import AttentionProfile, HeadProfile

__all__ = ["AttentionProfile", "HeadProfile", "attention_profile"]
