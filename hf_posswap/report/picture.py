"""What every picture is drawn from, and the dispatch: by the kind of encoding, so that new schemes are drawn too."""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import singledispatch
from typing import Any

from hf_posswap.errors import SchemeError
from hf_posswap.profiles.without_model import shown_length
from hf_posswap.report.style import Theme, new_figure
from hf_posswap.schemes.base import Geometry, Scheme


@dataclass(frozen=True)
class Picture:
    """A resolved scheme for one geometry. `asked_longest` is the length to draw up to, if one was asked for."""

    scheme: Scheme
    geometry: Geometry
    asked_longest: int | None
    theme: Theme

    def of(self, scheme: Scheme) -> "Picture":
        """The same for another scheme, which is resolved already."""
        return replace(self, scheme=scheme)

    def forms(self) -> list["Picture"]:
        """The same for a decoder and for an encoder of this size; those that the scheme has."""
        found = []
        for causal in (True, False):
            geometry = replace(self.geometry, causal=causal)
            with suppress(SchemeError):
                if causal or self.scheme.causal_only is None:
                    found.append(replace(self, scheme=self.scheme.resolve(geometry), geometry=geometry))
        return found

    def only(self) -> str:
        """Words for a scheme that has one form only."""
        missing = {True, False} - {form.geometry.causal for form in self.forms()}
        return f"; there is no form for {'decoders' if True in missing else 'encoders'}" if missing else ""

    def longest(self, default: int) -> int:
        """How many positions to draw; never past the end of a scheme that has one."""
        return self.asked_longest or min(default, self.scheme.limit() or default)

    def extended_length(self) -> int:
        """The default where it shows what an extension does."""
        return self.longest(shown_length(self.scheme, self.geometry))

    def figure(self, what: str, height: float, rows: int, columns: int) -> tuple[Any, Any]:
        """A figure titled with the scheme, and its axes `[rows][columns]`."""
        return new_figure(self.theme, in_words(self.scheme), what, height, rows, columns)


@singledispatch
def draw(encoding: Any, picture: Picture) -> Any:
    """The figure for one kind of encoding; each kind registers its own.

    Raises:
        SchemeError: nobody knows how to draw this one, or there is nothing to be seen.
    """
    raise SchemeError(f"There is no picture for {picture.scheme.name}, whose encoding is a {type(encoding).__name__}.")


@singledispatch
def draw_profile(encoding: Any, axes: Any, picture: Picture) -> None:
    """The one panel by distance that stands for an encoding in the picture of a composition.

    Raises:
        SchemeError: nobody knows how to draw this one.
    """
    raise SchemeError(f"There is no panel for {picture.scheme.name}, whose encoding is a {type(encoding).__name__}.")


def in_words(scheme: Scheme) -> str:
    """Name and fields, those left None not counted: `yarn(factor=4, beta_fast=32, ...)`."""
    values = {f.name: getattr(scheme, f.name) for f in fields(scheme)}
    said = ", ".join(f"{name}={_value(value)}" for name, value in values.items() if value is not None)
    return f"{scheme.name}({said})"


def _value(value: Any) -> str:
    if isinstance(value, Scheme):
        return in_words(value)
    if isinstance(value, tuple) and isinstance(value[0], Scheme):
        return "[" + ", ".join(map(in_words, value)) + "]"
    if isinstance(value, tuple):
        shown = [f"{x:.3g}" for x in value]
        return "[" + ", ".join(shown if len(shown) <= 4 else [*shown[:2], "...", shown[-1]]) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)
