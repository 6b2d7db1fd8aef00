"""`plot_scheme`: a picture of any scheme, from its formula alone; no model is needed."""

from typing import Any

from hf_posswap.profiles.without_model import EXAMPLE, resolved_alone

# Importing the kinds of pictures registers them.
from hf_posswap.report import biases, buckets, inputs, rotations, scores  # noqa: F401
from hf_posswap.report.compositions import draw_scheme
from hf_posswap.report.picture import Picture
from hf_posswap.report.style import DARK, LIGHT, fixed_style, require_matplotlib
from hf_posswap.schemes.base import Geometry, Scheme


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
    resolved = resolved_alone(scheme, geometry, {"max_length": max_length})
    require_matplotlib()
    with fixed_style():
        return draw_scheme(resolved, Picture(resolved, geometry, max_length, DARK if dark else LIGHT))
