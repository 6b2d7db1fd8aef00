"""How other programs read positions from a `config.json`: for each a function from the raw mapping to a `Reading`.

transformers is asked itself. The others are described here, each with the release that was read; their rules change
with releases, which is why a report names them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_posswap.persistence.readers.llama_cpp import read_llama_cpp
from hf_posswap.persistence.readers.mlx_lm import read_mlx_lm
from hf_posswap.persistence.readers.reading import Reading
from hf_posswap.persistence.readers.stock import read_transformers
from hf_posswap.persistence.readers.vllm import read_vllm


@dataclass(frozen=True)
class Reader:
    """A program that runs checkpoints."""

    name: str
    read: Callable[[Mapping[str, Any]], Reading]
    release: str
    """The release whose rules `read` has."""


READERS: tuple[Reader, ...] = (
    Reader("transformers", read_transformers, "the installed one"),
    Reader("vLLM", read_vllm, "0.33.0"),
    Reader("llama.cpp", read_llama_cpp, "convert_hf_to_gguf.py as of its split into conversion/, 2026"),
    Reader("mlx-lm", read_mlx_lm, "0.32.2"),
)

__all__ = ["READERS", "Reader", "Reading"]
