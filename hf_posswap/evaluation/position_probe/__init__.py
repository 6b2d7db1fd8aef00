"""What hidden states know of absolute positions: a linear probe for every layer."""

from hf_posswap.evaluation.position_probe.measuring import position_probe
from hf_posswap.evaluation.position_probe.results import PositionProbe, ProbedLayer

__all__ = ["PositionProbe", "ProbedLayer", "position_probe"]
