"""Pictures on disk: checked before anything is drawn, written whole or not at all, the same bytes every time."""

import io
import warnings
from pathlib import Path
from typing import Any

from hf_posswap.errors import PosswapError
from hf_posswap.files import write_whole
from hf_posswap.report.style import fixed_style, require_matplotlib

FORMATS = ("png", "svg")
DOTS_PER_INCH = 200
"""Pictures are 9 inches wide, so that a PNG is sharp where it is shown at 900 pixels."""


def checked_target(path: str | Path, *, overwrite: bool = False) -> Path:
    """Where a picture may be written; a link stands for what it points to.

    Raises:
        PosswapError: another format, no such directory, or something is there already.
    """
    target = Path(path)
    if target.suffix[1:].lower() not in FORMATS:
        raise PosswapError(f"A picture is saved as .png or .svg, not as {target.name!r}.")
    target = target.resolve()
    if target.is_dir():
        raise PosswapError(f"{path} is a directory; name a file that ends with .png or .svg.")
    if not target.parent.is_dir():
        raise PosswapError(f"There is no directory {target.parent} to save {target.name} in.")
    if target.exists() and not overwrite:
        raise PosswapError(f"{path} exists already; --overwrite (overwrite=True) replaces it.")
    return target


def save_figure(figure: Any, path: str | Path, *, overwrite: bool = False) -> Path:
    """Writes a figure as PNG or SVG, by the name's ending, and returns where it is.

    Raises:
        PosswapError: as `checked_target`; nothing was written.
    """
    target = checked_target(path, overwrite=overwrite)
    return write_whole(target, _rendered(figure, target.suffix[1:].lower()))


def _rendered(figure: Any, kind: str) -> bytes:
    """The file's bytes: no date, no version, and ids that do not change from run to run."""
    require_matplotlib()
    import matplotlib

    nothing = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    buffer = io.BytesIO()
    with fixed_style(), matplotlib.rc_context({"svg.hashsalt": "hf_posswap"}), warnings.catch_warnings():
        # Labels may be of any script, and the tables beside a picture have them in full.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=nothing[kind])
    return buffer.getvalue()
