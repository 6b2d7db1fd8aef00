"""Input encodings: what is added at each position, and how alike positions look."""

from typing import Any

import torch
from torch import Tensor

from hf_posswap.profiles.distances import spread, spread_by_ratio
from hf_posswap.profiles.inputs import cosines, input_values, refuse_zeros, similarity_by_distance
from hf_posswap.profiles.learned import has_parameters
from hf_posswap.report.picture import Picture, draw, draw_profile
from hf_posswap.report.scores import by_distance
from hf_posswap.report.style import SMALL, add_legend, name_axes
from hf_posswap.schemes.base import InputEncoding

POSITIONS, DIMENSIONS = 256, 256
"""How many rows and columns a heatmap has at most."""
VALUES = 2**24
"""Of input encodings that are compared by distance at most: 128 MB of float64."""


@draw.register
def draw_input(encoding: InputEncoding, picture: Picture) -> Any:
    """Above the values by position and dimension and the cosine between positions, below its mean by distance."""
    last = picture.longest(POSITIONS) - 1
    values = _values(encoding, spread(0, last, POSITIONS), picture)
    width = values.shape[1]
    figure, axes = picture.figure(f"input encoding, hidden size {width:,}" + _origin(encoding), 7.6, 2, 2)
    _values_panel(figure, axes[0, 0], values, last, picture)
    _cosines_panel(figure, axes[0, 1], values, last, picture)
    similarity_panel(encoding, _merged(figure, axes), picture)
    return figure


@draw_profile.register
def draw_input_profile(encoding: InputEncoding, axes: Any, picture: Picture) -> None:
    """Mean cosine by distance."""
    similarity_panel(encoding, axes, picture)
    name_axes(axes, picture.theme, f"{picture.scheme.name}: input", "distance (tokens)", "mean cosine")


def similarity_panel(encoding: InputEncoding, axes: Any, picture: Picture) -> None:
    """A line over all distances, by ratio; of fewer positions where hidden states are wide."""
    length, theme = min(picture.extended_length(), VALUES // picture.geometry.hidden_size), picture.theme
    similarity = similarity_by_distance(_values(encoding, torch.arange(length), picture))
    distances = spread_by_ratio(length - 1)
    axes.plot(distances.tolist(), similarity[distances].tolist(), color=theme.asked, linewidth=1.8)
    by_distance(axes, picture, length - 1)
    axes.set_ylim(min(-0.1, 1.1 * float(similarity.min())), 1.05)
    title = f"Similarity by distance, in {length:,} positions"
    name_axes(axes, theme, title, "distance between positions (tokens)", "mean cosine")
    if axes.get_legend_handles_labels()[0]:
        add_legend(axes, theme, loc="upper right")


def _values_panel(figure: Any, axes: Any, values: Tensor, last: int, picture: Picture) -> None:
    width = values.shape[1]
    shown = values[:, :: _odd_step(width)]
    most = float(shown.abs().max())
    extent = (-0.5, width - 0.5, last + 0.5, -0.5)
    _heatmap(figure, axes, shown, picture, cmap="cividis", extent=extent, vmin=-most, vmax=most)
    name_axes(axes, picture.theme, "Values", f"dimension{_every(width)}", "position (tokens)")


def _cosines_panel(figure: Any, axes: Any, values: Tensor, last: int, picture: Picture) -> None:
    extent = (-0.5, last + 0.5, last + 0.5, -0.5)
    _heatmap(figure, axes, cosines(values), picture, cmap="viridis", extent=extent, vmax=1.0)
    name_axes(axes, picture.theme, "Cosine between positions", "position (tokens)", "position (tokens)")


def _merged(figure: Any, axes: Any) -> Any:
    """The lower row as one panel."""
    left, right = axes[1]
    left.set_subplotspec(left.get_gridspec()[1, :])
    right.remove()
    return left


def _values(encoding: InputEncoding, positions: Tensor, picture: Picture) -> Tensor:
    return refuse_zeros(input_values(encoding, positions), picture.scheme)


def _origin(encoding: InputEncoding) -> str:
    return "; learned, drawn as it starts" if has_parameters(encoding) else ""


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
