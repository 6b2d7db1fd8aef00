"""The edits of a family's slots, and what is asked afterwards: whether they took effect."""

from typing import Any

from torch import Tensor, nn

from hf_posswap.attention import our_backend
from hf_posswap.errors import FamilyError
from hf_posswap.families import Family
from hf_posswap.patching.forward import ENCODING, INPUT, ROTATION, add_to_hidden_states, take_own_rotation
from hf_posswap.patching.journal import Journal
from hf_posswap.schemes import Geometry, Scheme
from hf_posswap.schemes.base import Encodings, NoInput, NoRotation
from hf_posswap.schemes.layered import LayeredRotation
from hf_posswap.schemes.learned import LearnedEncoding
from hf_posswap.schemes.sinusoidal import SinusoidalEncoding


def fill_slots(
    base: Any, family: Family, geometry: Geometry, encodings: Encodings, journal: Journal, like: Tensor
) -> None:
    """Every slot of the family gets the encoding of its kind, or the module that does nothing."""
    for encoding in (encodings.input, encodings.rotary, encodings.scores):
        if encoding is not None:
            _like(encoding, base, like)
    if family.input_slot is not None:
        journal.set_module(base, family.input_slot, encodings.input or _like(NoInput(), base, like))
    elif encodings.input is not None:
        journal.set_module(base, INPUT, encodings.input)
        _add_at_first_layer(base, family, encodings.input, journal)
    if family.rotary_slot is not None:
        journal.set_module(
            base, family.rotary_slot, encodings.rotary or _like(NoRotation(geometry.head_dim), base, like)
        )
        _rotate_everywhere(base, family, journal)
    elif encodings.rotary is not None:
        journal.set_module(base, ROTATION, encodings.rotary)
        _rotate_in_attention(base, family, journal)
    if encodings.scores is not None:
        journal.set_module(base, ENCODING, encodings.scores)
    if isinstance(encodings.rotary, LayeredRotation):
        for attention in family.attentions(base):
            journal.add_hook(attention.register_forward_pre_hook(take_own_rotation, with_kwargs=True))
    _fit_length(base, family, encodings.input, journal)


def _like(module: nn.Module, base: nn.Module, like: Tensor) -> nn.Module:
    """In the model's dtype, on its device and in its training mode."""
    return module.to(device=like.device, dtype=like.dtype).train(base.training)


def _rotate_everywhere(base: Any, family: Family, journal: Journal) -> None:
    """Attention that can leave the rotation out (SmolLM3) does not: what each layer gets is decided by the slot."""
    for index, attention in enumerate(family.attentions(base)):
        if not getattr(attention, "use_rope", True):
            journal.set_attribute(base, f"{family.layers}.{index}.{family.attention}", "use_rope", 1)


def _add_at_first_layer(base: Any, family: Family, encoding: nn.Module, journal: Journal) -> None:
    first = family.decoder_layers(base)[0]
    # In a tuple, so that the encoding is not registered a second time below the layer.
    first.hf_posswap_input = (encoding,)  # type: ignore[assignment]
    journal.add_hook(first.register_forward_pre_hook(add_to_hidden_states, with_kwargs=True))


def _rotate_in_attention(base: Any, family: Family, journal: Journal) -> None:
    rotating = family.rotating_attention()
    assert rotating is not None
    for index, attention in enumerate(family.attentions(base)):
        if "forward" in attention.__dict__:
            raise FamilyError(
                "An attention module's forward was replaced (accelerate does so to spread a model over devices): "
                "patch the model first, then dispatch it."
            )
        journal.set_class(base, f"{family.layers}.{index}.{family.attention}", rotating)


def _fit_length(base: Any, family: Family, encoding: nn.Module | None, journal: Journal) -> None:
    """Buffers of the family and the saved form of a formula are as long as the config says."""
    length = base.config.max_position_embeddings
    if isinstance(encoding, LearnedEncoding):
        for module, name, value in family.resize_buffers(base, len(encoding.weight)):
            journal.set_buffer(base, module, name, value)
    if isinstance(encoding, SinusoidalEncoding) and family.input_slot is not None:
        encoding.table_length = length


def verify(base: Any, family: Family, scheme: Scheme, encodings: Encodings) -> None:
    """Asks what will reach the network, the way the network will ask.

    Raises:
        FamilyError: it is not what was asked for; nothing else would show it.
    """
    checks = [
        (family.input_slot, encodings.input or NoInput),
        (family.rotary_slot, encodings.rotary or NoRotation),
        (INPUT if encodings.input is not None and family.input_slot is None else None, encodings.input),
        (ENCODING if encodings.scores is not None else None, encodings.scores),
    ]
    for path, expected in checks:
        if path is None:
            continue
        found = base.get_submodule(path)
        same = found is expected if isinstance(expected, nn.Module) else isinstance(found, expected)  # type: ignore[arg-type]
        if not same or "forward" in found.__dict__:
            raise FamilyError(f"{type(base).__name__}.{path} did not take the encoding of {scheme.name}.")
    for attention in family.attentions(base):
        _verify_attention(base, attention, family, scheme, encodings)


def _verify_attention(base: Any, attention: Any, family: Family, scheme: Scheme, encodings: Encodings) -> None:
    name = type(attention).__name__
    if attention.config is not base.config:
        raise FamilyError(f"{name} holds another config than its model; patch a model as loaded.")
    if family.rotary_slot is not None and not getattr(attention, "use_rope", True):
        raise FamilyError(f"{name} leaves the rotation out.")
    if encodings.rotary is not None and family.rotary_slot is None:
        rotating = family.rotating_attention()
        assert rotating is not None
        if not isinstance(attention, rotating):
            raise FamilyError(f"{name} does not rotate queries and keys.")
    if scheme.kind in ("bias", "score"):
        our_backend(scheme.kind, attention.config._attn_implementation, scheme.name)
