"""T5's bias: which bucket a distance falls into. The numbers in the buckets are learned, and zero before that."""

from typing import Any

from hf_posswap.profiles.distances import spread
from hf_posswap.report.picture import Picture, draw, draw_profile
from hf_posswap.report.style import add_legend, mark, name_axes
from hf_posswap.schemes.t5 import T5Encoding, t5_bucket

POINTS = 4096
"""Steps are drawn as steps, so as good as every distance is looked up."""


@draw.register
def draw_buckets(encoding: T5Encoding, picture: Picture) -> Any:
    """Left of a decoder, right of an encoder, which splits the buckets between the two sides."""
    facts = f"bias, learned for each bucket and head ({picture.geometry.num_attention_heads} heads), zero at the start"
    facts += picture.only()
    forms = picture.forms()
    figure, axes = picture.figure(facts, 4.2, 1, len(forms))
    for form, panel in zip(forms, axes.flat, strict=True):
        buckets_panel(encoding, panel, form)
    return figure


@draw_profile.register
def draw_buckets_profile(encoding: T5Encoding, axes: Any, picture: Picture) -> None:
    """The form that the geometry has."""
    buckets_panel(encoding, axes, picture)
    name_axes(axes, picture.theme, f"{picture.scheme.name}: bias", "distance (tokens)", "bucket")


def buckets_panel(encoding: T5Encoding, axes: Any, picture: Picture) -> None:
    """Bucket by distance."""
    scheme, theme, causal = encoding.scheme, picture.theme, picture.geometry.causal
    longest = picture.longest(2 * scheme.max_distance) - 1
    distances = spread(0 if causal else -longest, longest, POINTS)
    buckets = t5_bucket(distances, scheme.num_buckets, scheme.max_distance, causal)
    axes.plot(distances.tolist(), buckets.tolist(), color=theme.asked, linewidth=1.8, drawstyle="steps-mid")
    axes.yaxis.get_major_locator().set_params(integer=True)
    if scheme.max_distance <= longest:
        mark(axes, theme, scheme.max_distance, "max_distance", vertical=True)
        add_legend(axes, theme, loc="lower right" if causal else "upper right")
    title = "Decoder" if causal else "Encoder: keys on both sides"
    name_axes(axes, theme, title, "query position - key position (tokens)", "bucket")
