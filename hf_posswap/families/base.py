"""What there is to know of an architecture: where position meets the network, as data.

Nothing here or in the families imports transformers: its Auto classes learn our model types while it is being imported.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from hf_posswap.schemes.base import Geometry, Scheme


class Family(ABC):
    """Paths are relative to the base model (`model.base_model`).

    A slot is a submodule that can be replaced: `input_slot` maps `position_ids [B, Q]` to what is added to token
    embeddings, `rotary_slot` maps positions to cos and sin for all layers. Where a family has no such slot the path is
    None, and the layers at `layers` with their attention at `attention` below them serve instead.
    """

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    input_slot: ClassVar[str | None] = None
    rotary_slot: ClassVar[str | None] = None
    layers: ClassVar[str]
    attention: ClassVar[str]
    native_fields: ClassVar[tuple[str, ...]] = ()
    """What `write_native` writes, where it writes more than the length of a table."""
    guesses_packing: ClassVar[bool] = False
    """transformers takes jumps in `position_ids` for borders between packed documents, when mask and cache allow it."""

    @abstractmethod
    def geometry(self, config: Any) -> Geometry:
        """The facts that schemes may know."""

    @abstractmethod
    def stock_scheme(self, config: Any) -> Scheme:
        """The scheme that a stock model with this config has, fields resolved.

        Raises:
            SchemeError: transformers knows it and this package does not.
        """

    @abstractmethod
    def refusal(self, config: Any) -> str | None:
        """Why no scheme can be put on a model with this config; None when it can."""

    def write_native(self, config: Any, scheme: Scheme, geometry: Geometry) -> bool:
        """Writes the scheme into the config in transformers' own terms; False, and no change, if it has none."""
        return False

    def rotating_attention(self) -> type[nn.Module] | None:
        """The subclass of stock attention that rotates queries and keys; None for a family with a rotary slot."""
        return None

    def complete_call(self, base: nn.Module, call: dict[str, Any], offset: int | Tensor) -> None:
        """Fills in arguments whose defaults would limit the length; `call` are the arguments of the base model."""
        return

    def resize_buffers(self, base: nn.Module, length: int) -> Iterator[tuple[nn.Module, str, Tensor]]:
        """Buffers as long as the learned table: (module, name, buffer for `length`)."""
        yield from ()

    def attentions(self, base: nn.Module) -> list[nn.Module]:
        """The self-attention module of every layer."""
        return [layer.get_submodule(self.attention) for layer in self.decoder_layers(base)]

    def decoder_layers(self, base: nn.Module) -> list[nn.Module]:
        """The layers, first to last."""
        layers = base.get_submodule(self.layers)
        assert isinstance(layers, nn.ModuleList)
        return list(layers)


def trained_length(config: Any) -> int:
    """The length before any extension: remembered by us, else by the config, else what the config has now."""
    block = getattr(config, "hf_posswap", None)
    if isinstance(block, dict) and block.get("trained_length"):
        return int(block["trained_length"])
    parameters = getattr(config, "rope_parameters", None) or {}
    original = getattr(config, "original_max_position_embeddings", None) or parameters.get(
        "original_max_position_embeddings"
    )
    return int(original or config.max_position_embeddings)


def accepted_length(config: Any) -> int:
    """How many positions the model accepts; a plain checkpoint of ours may show stock readers another length."""
    block = getattr(config, "hf_posswap", None) or {}
    return block.get("max_position_embeddings", config.max_position_embeddings)
