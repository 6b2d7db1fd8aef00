"""`plot_scheme`: a picture of any scheme, from its formula alone; no model is needed."""

from typing import Any

from hf_posswap.errors import SchemeError

# Importing the kinds of pictures registers them.
from hf_posswap.report import biases, buckets, inputs, rotations, scores  # noqa: F401
from hf_posswap.report.compositions import draw_scheme
from hf_posswap.report.picture import Picture
from hf_posswap.report.style import DARK, LIGHT, fixed_style, require_matplotlib
from hf_posswap.schemes import BY_NAME
from hf_posswap.schemes.base import Geometry, Scheme, make_scheme
from hf_posswap.schemes.fields import MAX_POSITIONS

EXAMPLE = Geometry(
    num_attention_heads=8,
    num_key_value_heads=8,
    head_dim=128,
    hidden_size=128,
    num_hidden_layers=32,
    trained_length=4096,
    causal=True,
)
"""LLaMA 2's lengths, layers and head_dim; fewer heads and a smaller hidden size, so that they can be told apart."""
SMALLEST = {"num_attention_heads": 1, "trained_length": 16, "max_length": 16}
LARGEST = {"num_attention_heads": 256, "head_dim": 512, "hidden_size": 65536, "trained_length": MAX_POSITIONS}

LARGEST_TABLE = 2**27
"""Values of a table that is built to be drawn: half a gigabyte."""


def plot_scheme(
    scheme: Scheme | str, geometry: Geometry = EXAMPLE, *, max_length: int | None = None, dark: bool = False
) -> Any:
    """A `matplotlib.figure.Figure` of what a scheme does for a model of this geometry.

    What there is to be seen depends on the kind of its encoding. Input: values, and how alike positions are. Rotary:
    frequencies beside those of all other rotary schemes, and inner products by distance. Score: those products. Bias:
    what is added by distance. `max_length` is how many positions are drawn (None: as many as show the scheme's point).
    pyplot is not imported; what matplotlib is set to stays as it is.

    Raises:
        SchemeError: the scheme has no meaning for this geometry, or nothing can be drawn of it.
        PosswapError: matplotlib is not installed.
    """
    if isinstance(scheme, str):
        scheme = make_scheme(scheme, {}, BY_NAME)
    _refuse_sizes(geometry, max_length)
    if not geometry.causal and scheme.causal_only is not None:
        raise SchemeError(f"{scheme.name} does not work on an encoder: {scheme.causal_only}.")
    resolved = scheme.resolve(geometry)
    if (resolved.limit() or 0) * geometry.hidden_size > LARGEST_TABLE:
        raise SchemeError(f"A table of {resolved.limit()} x {geometry.hidden_size} is too large to draw: shorten it.")
    require_matplotlib()
    with fixed_style():
        return draw_scheme(resolved, Picture(resolved, geometry, max_length, DARK if dark else LIGHT))


def _refuse_sizes(geometry: Geometry, max_length: int | None) -> None:
    sizes = {name: getattr(geometry, name) for name in LARGEST}
    asked = {} if max_length is None else {"max_length": max_length}
    for name, size in {**sizes, **asked}.items():
        low, high = SMALLEST.get(name, 2), LARGEST.get(name, MAX_POSITIONS)
        if not low <= size <= high:
            raise SchemeError(f"A picture needs {name} from {low} to {high}, not {size}.")
