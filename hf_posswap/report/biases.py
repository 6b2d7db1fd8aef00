"""Bias encodings: what is added to scores, by distance, head by head, in a decoder and in an encoder."""

from typing import Any

import torch
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.profiles.by_distance import bias_by_distance
from hf_posswap.profiles.distances import dense_near_zero, spread
from hf_posswap.profiles.learned import drawn_if_zero, has_parameters
from hf_posswap.report.picture import Picture, draw, draw_profile
from hf_posswap.report.style import SMALL, add_legend, mark, name_axes, shades
from hf_posswap.schemes.base import BiasEncoding

DEEPEST = -20.0
"""Where the axis ends: e^-20 of the weight of an unbiased key is none at all."""


@draw.register
def draw_bias(encoding: BiasEncoding, picture: Picture) -> Any:
    """A panel for the decoder and, unless the scheme has no such form, one for the encoder."""
    geometry, forms = picture.geometry, picture.forms()
    seen = [_visible(form.scheme.build(form.geometry), form) for form in forms]
    facts = (
        f"bias on attention scores, {geometry.num_attention_heads} heads, trained length {geometry.trained_length:,}"
    )
    figure, axes = picture.figure(f"{facts}{seen[0][1]}{picture.only()}", 4.4, 1, len(forms))
    for form, (built, _), panel in zip(forms, seen, axes.flat, strict=True):
        bias_panel(built, panel, form)
    _name_heads(figure, axes, picture)
    return figure


@draw_profile.register
def draw_bias_profile(encoding: BiasEncoding, axes: Any, picture: Picture) -> None:
    """The form that the geometry has."""
    seen, note = _visible(encoding, picture)
    bias_panel(seen, axes, picture)
    name_axes(axes, picture.theme, f"{picture.scheme.name}: bias{note}", "distance (tokens)", "added to scores")


def _visible(encoding: Any, picture: Picture) -> tuple[BiasEncoding, str]:
    """The encoding, or where it starts at zero the same with parameters from N(0, 1), and the words that say so.

    Raises:
        SchemeError: it is zero and has no parameters.
    """
    shown, drawn = drawn_if_zero(encoding, _nearest)
    if drawn:
        return shown, "; learned, starts at zero: an example with parameters from N(0, 1)"
    if not _nearest(shown).any():
        raise SchemeError(f"{picture.scheme.name} adds nothing to the scores with these fields: nothing to draw.")
    return shown, "; learned, drawn as it starts" if has_parameters(shown) else ""


def _nearest(encoding: BiasEncoding) -> Tensor:
    return bias_by_distance(encoding, torch.arange(64))


def bias_panel(encoding: BiasEncoding, axes: Any, picture: Picture) -> None:
    """A line for each head."""
    longest = picture.longest(picture.geometry.trained_length) - 1
    causal = picture.geometry.causal
    distances = dense_near_zero(longest, causal)
    values = bias_by_distance(encoding, distances)
    for head, colour in zip(values.tolist(), shades(picture.theme, len(values)), strict=True):
        axes.plot(distances.tolist(), head, color=colour, linewidth=1.4)
    title = "Decoder" if causal else "Encoder: keys on both sides"
    cut = f" (cut at {DEEPEST:g})" if values.min() < DEEPEST else ""
    if cut:
        axes.set_ylim(DEEPEST, max(1.0, 1.05 * float(values.max())))
    name_axes(axes, picture.theme, title, "query position - key position (tokens)", f"added to the score{cut}")
    _mark_trained(axes, picture, longest)


def _mark_trained(axes: Any, picture: Picture, longest: int) -> None:
    if picture.geometry.trained_length < longest:
        mark(axes, picture.theme, picture.geometry.trained_length, "trained length", vertical=True)
        add_legend(axes, picture.theme)


def _name_heads(figure: Any, axes: Any, picture: Picture) -> None:
    """A bar of the heads' colours: a legend of 32 lines would hide them."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    heads, theme = picture.geometry.num_attention_heads, picture.theme
    colours = ScalarMappable(Normalize(0.5, heads + 0.5), ListedColormap(shades(theme, heads)))
    bar = figure.colorbar(colours, ax=axes, pad=0.02, ticks=spread(1, heads, 8).tolist())
    bar.set_label("head", color=theme.ink)
    bar.outline.set_edgecolor(theme.faint)
    bar.ax.tick_params(colors=theme.faint, labelcolor=theme.ink, labelsize=SMALL)
