"""Measurements: functions on a model, patched or not, that return tensors or frozen results."""

from hf_posswap.evaluation.perplexity import LengthPerplexity, PerplexityResult, perplexity
from hf_posswap.evaluation.token_nll import token_nll

__all__ = ["LengthPerplexity", "PerplexityResult", "perplexity", "token_nll"]
