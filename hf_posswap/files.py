"""Files: written whole or not at all, and in few words why one could not be."""

import os
import secrets
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> Path:
    """Writes a file, over what was there, so that nobody ever sees a part of it; returns where it is.

    A link stands for what it points to. Raises OSError or ValueError, as `open` does; what was there is then as it was.
    """
    target = Path(path).resolve()
    scratch = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    try:
        scratch.write_bytes(content)
        os.replace(scratch, target)
    finally:
        scratch.unlink(missing_ok=True)
    return target


def reason(error: Exception) -> str:
    """Why, in one line without its stop, and without the path and the number that an OSError brings along."""
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return said.splitlines()[0].rstrip(".")
