"""Inner products by distance, for whatever turns or replaces them: rotary and score encodings.

"Long-term decay" is a property of equal queries and keys; arbitrary ones have none. Both are drawn.
"""

from typing import Any

from hf_posswap.profiles.by_distance import profile_of_ones, profiles_of_random
from hf_posswap.profiles.distances import spread_by_ratio
from hf_posswap.report.picture import Picture, draw, draw_profile
from hf_posswap.report.style import Theme, add_legend, mark, name_axes, shades
from hf_posswap.report.variants import base_label, plain_rope
from hf_posswap.schemes.base import RotaryEncoding, ScoreEncoding
from hf_posswap.schemes.rope import RoPE

DRAWS = 96
"""How many random queries and keys the band is made of."""
BAND = (0.05, 0.95)
MOST_NAMED = 2
TRAINED = "trained length"


@draw.register
def draw_score(encoding: ScoreEncoding, picture: Picture) -> Any:
    """Left for equal vectors, right for random ones."""
    heads = f"{picture.geometry.num_attention_heads} heads of {picture.geometry.head_dim}"
    facts = f"score encoding, {heads}, trained length {picture.geometry.trained_length:,}"
    figure, axes = picture.figure(facts, 4.2, 1, 2)
    equal_vectors(axes[0, 0], picture, [(picture.scheme.name, picture.extended_length())], encoding)
    random_vectors(axes[0, 1], picture, encoding, picture.extended_length())
    return figure


@draw_profile.register(ScoreEncoding)
@draw_profile.register(RotaryEncoding)
def draw_score_profile(encoding: Any, axes: Any, picture: Picture) -> None:
    """Equal vectors."""
    equal_vectors(axes, picture, [(picture.scheme.name, picture.extended_length())], encoding)
    title = f"{picture.scheme.name}: q = k = ones"
    name_axes(axes, picture.theme, title, "distance (tokens)", "q·k / head_dim")


def equal_vectors(axes: Any, picture: Picture, lines: list[tuple[str, int]], encoding: Any) -> None:
    """A line for each label and position of the query, above that of plain RoPE where the scheme is a kind of RoPE."""
    geometry, theme = picture.geometry, picture.theme
    longest = max(last for _, last in lines)
    if isinstance(picture.scheme, RoPE) and type(picture.scheme) is not RoPE:
        distances = spread_by_ratio(longest)
        plain = plain_rope(picture.scheme, geometry)
        values = profile_of_ones(plain.build(geometry), geometry, distances)
        style = {"color": theme.others[0], "linewidth": 1.0, "label": base_label(plain)}
        axes.plot(distances.tolist(), values.tolist(), **style)
    colours = line_colours(theme, len(lines))
    for (label, last), colour in zip(lines, colours, strict=True):
        distances = spread_by_ratio(last)
        values = profile_of_ones(encoding, geometry, distances)
        width = 1.8 if len(lines) == 1 else 1.1
        axes.plot(distances.tolist(), values.tolist(), color=colour, linewidth=width, label=label)
    by_distance(axes, picture, longest)
    name_axes(axes, theme, "Equal vectors: q = k = ones", "distance (tokens)", "q·k / head_dim")
    handles = axes.get_legend_handles_labels()[0]
    # More lines than a few are named where their frequencies are drawn.
    shown = handles if len(lines) <= MOST_NAMED else [h for h in handles if h.get_label() == TRAINED]
    if shown:
        _make_room(axes, len(shown))
        add_legend(axes, theme, handles=shown, loc="upper right")


def random_vectors(axes: Any, picture: Picture, encoding: Any, last: int) -> None:
    """Median and band over random draws, and three of them."""
    distances, theme = spread_by_ratio(last), picture.theme
    draws = profiles_of_random(encoding, picture.geometry, distances, DRAWS)
    low, middle, high = (draws.quantile(share, dim=0).tolist() for share in (BAND[0], 0.5, BAND[1]))
    at = distances.tolist()
    axes.fill_between(at, low, high, color=theme.asked, alpha=0.22, linewidth=0, label="5 to 95% of draws")
    for i, row in enumerate(draws[:3].tolist()):
        axes.plot(at, row, color=theme.others[0], linewidth=0.6, alpha=0.8, label=None if i else "three draws")
    axes.plot(at, middle, color=theme.asked, linewidth=1.8, label="median")
    by_distance(axes, picture, last)
    name_axes(axes, theme, f"Random vectors ({DRAWS} draws)", "distance (tokens)", "q·k / √head_dim")
    add_legend(axes, theme, loc="upper center", ncols=2)
    _make_room(axes, 2)


def _make_room(axes: Any, rows: int) -> None:
    """For a legend of so many rows above what is drawn."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top + (0.08 + 0.08 * rows) * (top - bottom))


def by_distance(axes: Any, picture: Picture, longest: int) -> None:
    """An axis of distances by ratio, zero and the trained length marked."""
    axes.set_xscale("log")
    axes.set_xlim(1, longest)
    axes.axhline(0, color=picture.theme.faint, linewidth=0.7, zorder=1.5)
    if picture.geometry.trained_length < longest:
        mark(axes, picture.theme, picture.geometry.trained_length, TRAINED, vertical=True)


def line_colours(theme: Theme, count: int) -> list[Any]:
    """One colour for one line of the scheme; shades in order for several."""
    return [theme.asked] if count == 1 else shades(theme, count, "plasma")
