"""Input encodings: what is added at each position, and how alike positions look."""

from typing import Any

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.report.picture import Picture, draw, draw_profile, spread
from hf_posswap.report.style import SMALL, name_axes
from hf_posswap.schemes.base import InputEncoding

POSITIONS, DIMENSIONS = 256, 256
"""How many rows and columns a heatmap has at most."""


@draw.register
def draw_input(encoding: InputEncoding, picture: Picture) -> Any:
    """Left the values by position and dimension, right the cosine between positions."""
    last = picture.longest(POSITIONS) - 1
    positions = spread(0, last, POSITIONS)
    values = input_values(encoding, positions, picture)
    width = values.shape[1]
    facts = f"input encoding, hidden size {width:,}" + _origin(encoding)
    figure, axes = picture.figure(facts, 4.6, 1, 2)
    shown = values[:, :: _odd_step(width)]
    left, right = axes[0]
    extent = (-0.5, width - 0.5, last + 0.5, -0.5)
    most = float(shown.abs().max())
    _heatmap(figure, left, shown, picture, cmap="cividis", extent=extent, vmin=-most, vmax=most)
    name_axes(left, picture.theme, "Values", f"dimension{_every(width)}", "position (tokens)")
    extent = (-0.5, last + 0.5, last + 0.5, -0.5)
    _heatmap(figure, right, cosines(values), picture, cmap="viridis", extent=extent, vmax=1.0)
    name_axes(right, picture.theme, "Cosine between positions", "position (tokens)", "position (tokens)")
    return figure


@draw_profile.register
def draw_input_profile(encoding: InputEncoding, axes: Any, picture: Picture) -> None:
    """Cosine with the last position, by distance."""
    positions = spread(0, picture.longest(POSITIONS) - 1, POSITIONS)
    values = input_values(encoding, positions, picture)
    axes.plot((positions[-1] - positions).tolist(), cosines(values)[-1].tolist(), color=picture.theme.asked)
    name_axes(axes, picture.theme, f"{picture.scheme.name}: input", "distance (tokens)", "cosine of positions")


def input_values(encoding: InputEncoding, positions: Tensor, picture: Picture) -> Tensor:
    """What is added at `positions [L]`: `[L, E]`, float64.

    Raises:
        SchemeError: nothing is added before a model or training gives the values.
    """
    with torch.no_grad():
        values = encoding.double()(positions[None])[0]
    if not values.any():
        name = picture.scheme.name
        start = ", unless it starts at random with init='normal'" if hasattr(picture.scheme, "init") else ""
        raise SchemeError(f"{name} is zero until a model or training fills it: there is nothing to draw{start}.")
    return values


def cosines(values: Tensor) -> Tensor:
    """Cosine between all rows of `[L, E]`: `[L, L]`; 0 with a row of zeros."""
    unit = torch.nn.functional.normalize(values, dim=-1)
    return unit @ unit.T


def _origin(encoding: Any) -> str:
    return "; learned, drawn as it starts" if any(True for _ in encoding.parameters()) else ""


def _odd_step(width: int) -> int:
    """Every how many dimensions one is drawn. Odd, or only the sines of sine-cosine pairs would be seen."""
    return -(-width // DIMENSIONS) // 2 * 2 + 1 if width > DIMENSIONS else 1


def _every(width: int) -> str:
    step = _odd_step(width)
    return "" if step == 1 else f" (one in {step} is drawn)"


def _heatmap(figure: Any, axes: Any, values: Tensor, picture: Picture, **options: Any) -> None:
    image = axes.imshow(values.numpy(), aspect="auto", interpolation="nearest", **options)
    axes.grid(False)
    bar = figure.colorbar(image, ax=axes, pad=0.02)
    bar.outline.set_edgecolor(picture.theme.faint)
    bar.ax.tick_params(colors=picture.theme.faint, labelcolor=picture.theme.ink, labelsize=SMALL)
