"""Schemes that are made of schemes: a panel for each member, and what the composition itself adds."""

from functools import singledispatch
from typing import Any

import torch

from hf_posswap.errors import SchemeError
from hf_posswap.profiles.distances import spread
from hf_posswap.report.picture import Picture, draw, draw_profile
from hf_posswap.report.style import LABEL, add_legend, mark, name_axes
from hf_posswap.schemes.base import Scheme
from hf_posswap.schemes.layered import Layered
from hf_posswap.schemes.log_scaled import LogScaled


@singledispatch
def draw_scheme(scheme: Scheme, picture: Picture) -> Any:
    """The figure for a resolved scheme: that of its encoding, but for compositions.

    Raises:
        SchemeError: there is nothing to be seen, or nobody knows how to draw it.
    """
    parts = _parts(scheme, picture)
    if not parts:
        raise SchemeError(f"{scheme.name} adds no positions: there is nothing to draw.")
    if len(parts) > 1:
        raise SchemeError(f"There is no picture for {scheme.name}, which has encodings at {len(parts)} places.")
    return draw(parts[0], picture)


@draw_scheme.register
def _(scheme: Layered, picture: Picture) -> Any:
    count = len(scheme.schemes)
    columns = min(2, count)
    rows = -(-count // columns)
    layers = scheme.assignment(picture.geometry.num_hidden_layers)
    figure, axes = picture.figure(_which_layers(scheme, layers), 1.4 + 3.2 * rows, rows, columns)
    for member, panel in zip(scheme.schemes, axes.flat, strict=False):
        draw_member(member, panel, picture)
    for panel in axes.flat[count:]:
        panel.set_axis_off()
    return figure


@draw_scheme.register
def _(scheme: LogScaled, picture: Picture) -> Any:
    figure, axes = picture.figure("queries times a factor; beside it the scheme inside", 4.2, 1, 2)
    query_scale_panel(scheme, axes[0, 0], picture)
    draw_member(scheme.inner, axes[0, 1], picture)
    return figure


def draw_member(scheme: Scheme, axes: Any, picture: Picture) -> None:
    """The panel of a scheme in a composition."""
    inside = picture.of(scheme.inner if isinstance(scheme, LogScaled) else scheme)
    parts = _parts(inside.scheme, inside)
    if parts:
        draw_profile(parts[0], axes, inside)
    else:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no positions", ha="center", color=picture.theme.faint, fontsize=LABEL + 2)
        axes.set_title(inside.scheme.name, color=picture.theme.ink, fontsize=LABEL + 0.5, loc="left")
    if isinstance(scheme, LogScaled):
        title = f"{scheme.name}: {axes.get_title(loc='left')}"
        axes.set_title(title, color=picture.theme.ink, fontsize=LABEL + 0.5, loc="left")


def query_scale_panel(scheme: LogScaled, axes: Any, picture: Picture) -> None:
    """The factor on the query by position; on an encoder by the number of tokens of its row."""
    longest, causal = picture.extended_length(), picture.geometry.causal
    tokens = spread(1, longest)[:, None]
    positions = tokens - 1 if causal else torch.zeros_like(tokens)
    scale = scheme.build(picture.geometry).double().query_scale(positions, tokens)[:, 0]
    at = (positions if causal else tokens)[:, 0].tolist()
    axes.plot(at, scale.tolist(), color=picture.theme.asked, linewidth=1.8)
    mark(axes, picture.theme, scheme.original_max_position_embeddings or 0, "original length", vertical=True)
    add_legend(axes, picture.theme, loc="upper left")
    where = "query position (tokens)" if causal else "tokens of the row"
    name_axes(axes, picture.theme, "Factor on queries", where, "factor")


def _parts(scheme: Scheme, picture: Picture) -> list[Any]:
    encodings = scheme.encodings(picture.geometry)
    return [part for part in (encodings.scores, encodings.rotary, encodings.input) if part is not None]


def _which_layers(scheme: Layered, layers: tuple[int, ...]) -> str:
    """`24 of 32 layers rope, 8 nope`."""
    counted = [f"{layers.count(i)} {member.name}" for i, member in enumerate(scheme.schemes)]
    return f"pattern {scheme.pattern} over {len(layers)} layers: {', '.join(counted)}"
