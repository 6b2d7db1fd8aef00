"""Inner products by distance, for whatever turns or replaces them: rotary and score encodings.

"Long-term decay" is a property of equal queries and keys; arbitrary ones have none. Both are drawn.
"""

from typing import Any

import torch
from torch import Tensor

from hf_posswap.report.picture import Picture, draw, draw_profile, spread_by_ratio
from hf_posswap.report.style import Theme, add_legend, mark, name_axes, shades
from hf_posswap.report.variants import base_label, plain_rope
from hf_posswap.schemes.base import Geometry, RotaryEncoding, ScoreEncoding, rotated
from hf_posswap.schemes.rope import RoPE

DRAWS, SEED = 96, 0
"""How many random queries and keys the band is made of, and the seed they come from."""
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


def inner_products(encoding: Any, geometry: Geometry, query: Tensor, key: Tensor, distances: Tensor) -> Tensor:
    """`query [B, H, 1, D]` at the position of the largest distance with `key`, of the same shape, at `distances [R]`
    before it: `[B, H, R]`."""
    # Attention's order: keys from the first position to the query's own.
    order = distances.argsort(descending=True)
    positions = distances.max() - torch.cat((distances[order], distances.new_zeros(1)))
    keys = key.expand(-1, -1, len(positions), -1)
    with torch.no_grad():
        found = _scores(encoding.double(), geometry, query, keys, positions)[..., 0, :-1]
    return found[..., order.argsort()]


def _scores(encoding: Any, geometry: Geometry, query: Tensor, keys: Tensor, positions: Tensor) -> Tensor:
    """`[B, H, 1, K]` for keys `[B, H, K, D]` at `positions [K]`, the last of which is the query's."""
    if isinstance(encoding, RotaryEncoding):
        cos, sin = (table[..., : table.shape[-1] // 2] for table in encoding.rotation(positions[None], torch.float64))
        turned = rotated(query, cos[:, -1:], sin[:, -1:], geometry.pairing)
        return turned @ rotated(keys, cos, sin, geometry.pairing).transpose(-1, -2)
    at = positions.expand(len(query), -1)
    own = torch.tensor([len(positions) - 1])
    return encoding(query, keys, encoding.tables(at[:, -1:]), encoding.tables(at), own)


def profile_of_ones(encoding: Any, geometry: Geometry, distances: Tensor) -> Tensor:
    """The inner product of a query and a key of ones, by head_dim: `[R]`, the mean over pairs of `cos(r theta_i)` for
    RoPE; over heads too where they differ."""
    heads = 1 if isinstance(encoding, RotaryEncoding) else geometry.num_attention_heads
    ones = torch.ones(1, heads, 1, geometry.head_dim, dtype=torch.float64)
    return inner_products(encoding, geometry, ones, ones, distances).mean(dim=(0, 1)) / geometry.head_dim


def profiles_of_random(encoding: Any, geometry: Geometry, distances: Tensor) -> Tensor:
    """Inner products of standard normal queries and keys by `sqrt(head_dim)`: `[DRAWS, R]`."""
    heads = 1 if isinstance(encoding, RotaryEncoding) else geometry.num_attention_heads
    shape = (-(-DRAWS // heads), heads, 1, geometry.head_dim)
    generator = torch.Generator().manual_seed(SEED)
    query, key = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    found = inner_products(encoding, geometry, query, key, distances).flatten(0, 1)[:DRAWS]
    return found / geometry.head_dim**0.5


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
    _by_distance(axes, picture, longest)
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
    draws = profiles_of_random(encoding, picture.geometry, distances)
    low, middle, high = (draws.quantile(share, dim=0).tolist() for share in (BAND[0], 0.5, BAND[1]))
    at = distances.tolist()
    axes.fill_between(at, low, high, color=theme.asked, alpha=0.22, linewidth=0, label="5 to 95% of draws")
    for i, row in enumerate(draws[:3].tolist()):
        axes.plot(at, row, color=theme.others[0], linewidth=0.6, alpha=0.8, label=None if i else "three draws")
    axes.plot(at, middle, color=theme.asked, linewidth=1.8, label="median")
    _by_distance(axes, picture, last)
    name_axes(axes, theme, f"Random vectors ({DRAWS} draws)", "distance (tokens)", "q·k / √head_dim")
    add_legend(axes, theme, loc="upper center", ncols=2)
    _make_room(axes, 2)


def _make_room(axes: Any, rows: int) -> None:
    """For a legend of so many rows above what is drawn."""
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top + (0.08 + 0.08 * rows) * (top - bottom))


def _by_distance(axes: Any, picture: Picture, longest: int) -> None:
    axes.set_xscale("log")
    axes.set_xlim(1, longest)
    axes.axhline(0, color=picture.theme.faint, linewidth=0.7, zorder=1.5)
    if picture.geometry.trained_length < longest:
        mark(axes, picture.theme, picture.geometry.trained_length, TRAINED, vertical=True)


def line_colours(theme: Theme, count: int) -> list[Any]:
    """One colour for one line of the scheme; shades in order for several."""
    return [theme.asked] if count == 1 else shades(theme, count, "plasma")
