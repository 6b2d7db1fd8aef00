"""Measurements: functions on a model, patched or not, that return tensors or frozen results."""

from hf_posswap.evaluation.advice import Advice, Candidate, advise
from hf_posswap.evaluation.attention_profile import AttentionProfile, HeadProfile, attention_profile
from hf_posswap.evaluation.comparison import compare
from hf_posswap.evaluation.decay import Decay, decay
from hf_posswap.evaluation.documents import Document
from hf_posswap.evaluation.long_ppl import LongPpl, long_ppl
from hf_posswap.evaluation.nll_by_position import NllByPosition, PositionBucket, nll_by_position
from hf_posswap.evaluation.perplexity import LengthPerplexity, PerplexityResult, perplexity
from hf_posswap.evaluation.position_probe import PositionProbe, ProbedLayer, position_probe
from hf_posswap.evaluation.properties import Properties, properties
from hf_posswap.evaluation.property_checks import Property
from hf_posswap.evaluation.pseudo_perplexity import PseudoPerplexityResult, pseudo_perplexity
from hf_posswap.evaluation.results import Result, load_results, save_results
from hf_posswap.evaluation.retrieval.needle import needle
from hf_posswap.evaluation.retrieval.passkey import passkey
from hf_posswap.evaluation.retrieval.results import Cell, RetrievalResult
from hf_posswap.evaluation.retrieval.ruler_lite import ruler_lite
from hf_posswap.evaluation.sources import read_documents
from hf_posswap.evaluation.token_nll import token_nll

__all__ = [
    "Advice",
    "AttentionProfile",
    "Candidate",
    "Cell",
    "Decay",
    "Document",
    "HeadProfile",
    "LengthPerplexity",
    "LongPpl",
    "NllByPosition",
    "PerplexityResult",
    "PositionBucket",
    "PositionProbe",
    "ProbedLayer",
    "Properties",
    "Property",
    "PseudoPerplexityResult",
    "Result",
    "RetrievalResult",
    "advise",
    "attention_profile",
    "compare",
    "decay",
    "load_results",
    "long_ppl",
    "needle",
    "nll_by_position",
    "passkey",
    "perplexity",
    "position_probe",
    "properties",
    "pseudo_perplexity",
    "read_documents",
    "ruler_lite",
    "save_results",
    "token_nll",
]
