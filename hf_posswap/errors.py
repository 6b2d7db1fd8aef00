"""One class tree for everything this package refuses. Each message says what is wrong and what would be right."""


class PosswapError(ValueError):
    """Base of all errors raised by `hf_posswap`."""


class SchemeError(PosswapError):
    """A scheme is unknown, has a wrong field or cannot be carried by this model, backend or call."""


class FamilyError(PosswapError):
    """The architecture, or a feature of it, is not supported, or the model is wrapped."""


class CheckpointError(PosswapError):
    """A saved model or its `hf_posswap` block is broken, from the future or contradicts itself."""


class EvaluationError(PosswapError):
    """A measurement was asked for that the model or the text cannot give."""
