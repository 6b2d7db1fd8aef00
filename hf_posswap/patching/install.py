"""Puts a resolved scheme on a model, and checks that it took effect. Everything here is undone by the journal."""

import copy
from typing import Any

from torch import Tensor, nn

from hf_posswap.attention import our_backend, stock_backend
from hf_posswap.errors import FamilyError, SchemeError
from hf_posswap.families import Family
from hf_posswap.families.configs import to_posswap_config
from hf_posswap.patching.forward import (
    ENCODING,
    STATE,
    PatchState,
    add_to_hidden_states,
    after_forward,
    argument_names,
    before_forward,
)
from hf_posswap.patching.journal import Journal
from hf_posswap.schemes import Geometry, Scheme
from hf_posswap.schemes.base import NoInput, NoRotation
from hf_posswap.schemes.learned import Learned, LearnedEncoding
from hf_posswap.schemes.sinusoidal import SinusoidalEncoding

BLOCK_VERSION = 1


def install(
    model: Any,
    family: Family,
    scheme: Scheme,
    geometry: Geometry,
    *,
    max_length: int | None = None,
    encoding: nn.Module | None = None,
    reloaded: bool = False,
    put_back: Any = None,
) -> None:
    """Puts `scheme` on an unpatched model; a failure leaves the model as it was.

    `max_length` becomes the config's length (None: what the scheme makes of it), `encoding` is used instead of a new
    one, `reloaded` says that the model has no original to go back to. `put_back` is the config of a patch that was
    taken off and comes back as it was: nothing is worked out or checked anew, so that nothing can fail anew.
    """
    base = model.base_model
    journal = Journal()
    like = model.get_input_embeddings().weight
    if encoding is None:
        encoding = _build(base, family, scheme, geometry, reloaded)
    if encoding is not None:
        _cast(encoding.train(base.training), like)
    try:
        if put_back is None:
            _write_config(model, family, scheme, geometry, journal, max_length)
        else:
            journal.set_config(model, model.config, put_back)
        _fill_slots(base, family, scheme, geometry, encoding, journal, like)
        journal.add_hook(base.register_forward_pre_hook(before_forward, with_kwargs=True))
        journal.add_hook(base.register_forward_hook(after_forward, with_kwargs=True))
        state = PatchState(scheme, geometry, family, journal, reloaded, argument_names(base), base is model)
        setattr(base, STATE, state)
        if put_back is None:
            verify(base, family, scheme, geometry, encoding)
    except BaseException:
        uninstall_edits(base, model, journal)
        raise


def uninstall(model: Any) -> None:
    """Takes the patch off again; the model must be patched."""
    base = model.base_model
    uninstall_edits(base, model, getattr(base, STATE).journal)


def uninstall_edits(base: nn.Module, model: Any, journal: Journal) -> None:
    """Undoes a journal, complete or not. The config's edit is the only one that reaches outside of the base model."""
    for layer in base.modules():
        layer.__dict__.pop("hf_posswap_input", None)
    config_edits = [edit for edit in journal.edits if edit[0] == "config"]
    journal.edits = [edit for edit in journal.edits if edit[0] != "config"]
    like = model.get_input_embeddings().weight
    journal.undo(base, like)
    Journal(config_edits).undo(model, like)
    base.__dict__.pop(STATE, None)


def _build(base: Any, family: Family, scheme: Scheme, geometry: Geometry, reloaded: bool) -> nn.Module | None:
    encoding = scheme.build(geometry)
    if isinstance(scheme, Learned) and scheme.init == "original" and family.input_slot is not None and not reloaded:
        assert isinstance(encoding, LearnedEncoding)
        encoding.take(_original_rows(base.get_submodule(family.input_slot).weight, len(encoding.weight)))
    return encoding


def _original_rows(table: Tensor, rows: int) -> Tensor:
    if len(table) < rows:
        raise SchemeError(
            f"The model's own table has {len(table)} rows, fewer than {rows}: extend(model, {rows}) grows it, or start "
            "anew with init='normal' or 'zeros'."
        )
    return table[:rows]


def encoding_of(base: Any, state: PatchState) -> nn.Module | None:
    """The encoding that a patch put in; None where the scheme adds nothing."""
    slot = {"input": state.family.input_slot, "rotary": state.family.rotary_slot}.get(state.scheme.kind)
    found = base.get_submodule(slot) if slot else getattr(base, ENCODING, None)
    return None if isinstance(found, (NoInput, NoRotation)) else found


def _write_config(
    model: Any, family: Family, scheme: Scheme, geometry: Geometry, journal: Journal, max_length: int | None
) -> None:
    old = model.config
    new = copy.deepcopy(old)
    model_type = old.model_type
    if scheme.kind in ("bias", "score"):
        new._attn_implementation = our_backend(scheme.kind, old._attn_implementation, scheme.name)
    else:
        new._attn_implementation = stock_backend(old._attn_implementation)
    length = max_length or scheme.max_length(geometry)
    if length is not None:
        new.max_position_embeddings = length
    native = family.write_native(new, scheme, geometry)
    new.hf_posswap = config_block(scheme, geometry, native)
    to_posswap_config(new, model_type)
    journal.set_config(model, old, new)


def config_block(scheme: Scheme, geometry: Geometry, native: bool) -> dict[str, Any]:
    """What a config remembers of a patch; `native`: stock transformers can express it."""
    block: dict[str, Any] = {"version": BLOCK_VERSION, "scheme": scheme.to_dict(), "native": native}
    block["trained_length"] = geometry.trained_length
    if geometry.rope_theta is not None:
        block["rope_theta"] = geometry.rope_theta
    return block


def _fill_slots(
    base: Any,
    family: Family,
    scheme: Scheme,
    geometry: Geometry,
    encoding: nn.Module | None,
    journal: Journal,
    like: Tensor,
) -> None:
    """Every slot of the family gets the encoding of its kind, or the module that does nothing."""
    at_input = encoding if scheme.kind == "input" else None
    rotary = encoding if scheme.kind == "rotary" else None
    if family.input_slot is not None:
        journal.set_module(base, family.input_slot, at_input or _cast(NoInput(), like))
    if family.rotary_slot is not None:
        journal.set_module(base, family.rotary_slot, rotary or _cast(NoRotation(geometry.head_dim), like))
    if encoding is not None and not _has_slot(family, scheme):
        journal.set_module(base, ENCODING, encoding)
        if scheme.kind == "input":
            _add_at_first_layer(base, family, encoding, journal)
        if scheme.kind == "rotary":
            _rotate_in_attention(base, family, journal)
    _fit_length(base, family, encoding, journal)


def _cast(module: nn.Module, like: Tensor) -> nn.Module:
    return module.to(device=like.device, dtype=like.dtype)


def _has_slot(family: Family, scheme: Scheme) -> bool:
    slots = {"input": family.input_slot, "rotary": family.rotary_slot}
    return slots.get(scheme.kind) is not None


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


def verify(base: Any, family: Family, scheme: Scheme, geometry: Geometry, encoding: nn.Module | None) -> None:
    """Asks what will reach the network, the way the network will ask.

    Raises:
        FamilyError: it is not what was asked for; nothing else would show it.
    """
    expected_input = encoding if scheme.kind == "input" and encoding else NoInput
    expected_rotary = encoding if scheme.kind == "rotary" and encoding else NoRotation
    checks = [(family.input_slot, expected_input), (family.rotary_slot, expected_rotary)]
    for path, expected in checks:
        if path is None:
            continue
        found = base.get_submodule(path)
        same = found is expected if isinstance(expected, nn.Module) else isinstance(found, expected)
        if not same or "forward" in found.__dict__:
            raise FamilyError(f"{type(base).__name__}.{path} did not take the encoding of {scheme.name}.")
    for attention in family.attentions(base):
        _verify_attention(base, attention, family, scheme)


def _verify_attention(base: Any, attention: Any, family: Family, scheme: Scheme) -> None:
    if attention.config is not base.config:
        raise FamilyError(f"{type(attention).__name__} holds another config than its model; patch a model as loaded.")
    if scheme.kind == "rotary" and family.rotary_slot is None:
        rotating = family.rotating_attention()
        assert rotating is not None
        if not isinstance(attention, rotating):
            raise FamilyError(f"{type(attention).__name__} does not rotate queries and keys.")
    if scheme.kind in ("bias", "score"):
        our_backend(scheme.kind, attention.config._attn_implementation, scheme.name)
