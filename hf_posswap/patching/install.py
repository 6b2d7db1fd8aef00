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
    INPUT,
    ROTATION,
    STATE,
    PatchState,
    add_to_hidden_states,
    after_forward,
    argument_names,
    before_forward,
    take_own_rotation,
)
from hf_posswap.patching.journal import Journal
from hf_posswap.schemes import Geometry, Scheme
from hf_posswap.schemes.base import Encodings, NoInput, NoRotation
from hf_posswap.schemes.layered import LayeredRotation
from hf_posswap.schemes.learned import LearnedEncoding
from hf_posswap.schemes.sinusoidal import SinusoidalEncoding

BLOCK_VERSION = 1


def install(
    model: Any,
    family: Family,
    scheme: Scheme,
    geometry: Geometry,
    *,
    max_length: int | None = None,
    encodings: Encodings | None = None,
    reloaded: bool = False,
    put_back: Any = None,
) -> None:
    """Puts `scheme` on an unpatched model; a failure leaves the model as it was.

    `max_length` becomes the config's length (None: what the scheme makes of it), `encodings` are used instead of new
    ones, `reloaded` says that the model has no original to go back to. `put_back` is the config of a patch that was
    taken off and comes back as it was: nothing is worked out or checked anew, so that nothing can fail anew.
    """
    base = model.base_model
    journal = Journal()
    like = model.get_input_embeddings().weight
    if encodings is None:
        encodings = _build(base, family, scheme, geometry, reloaded)
    for encoding in (encodings.input, encodings.rotary, encodings.scores):
        if encoding is not None:
            _cast(encoding.train(base.training), like)
    try:
        if put_back is None:
            _write_config(model, family, scheme, geometry, journal, max_length)
        else:
            journal.set_config(model, model.config, put_back)
        _fill_slots(base, family, geometry, encodings, journal, like)
        journal.add_hook(base.register_forward_pre_hook(before_forward, with_kwargs=True))
        journal.add_hook(base.register_forward_hook(after_forward, with_kwargs=True))
        state = PatchState(scheme, geometry, family, journal, reloaded, argument_names(base), base is model)
        setattr(base, STATE, state)
        if put_back is None:
            verify(base, family, scheme, encodings)
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


def _build(base: Any, family: Family, scheme: Scheme, geometry: Geometry, reloaded: bool) -> Encodings:
    encodings = scheme.encodings(geometry)
    table = encodings.input
    takes_rows = isinstance(table, LearnedEncoding) and table.starts_from_original
    if takes_rows and family.input_slot is not None and not reloaded:
        assert isinstance(table, LearnedEncoding)
        table.take(_original_rows(base.get_submodule(family.input_slot).weight, len(table.weight)))
    return encodings


def _original_rows(table: Tensor, rows: int) -> Tensor:
    if len(table) < rows:
        raise SchemeError(
            f"The model's own table has {len(table)} rows, fewer than {rows}: extend(model, {rows}) grows it, or start "
            "anew with init='normal' or 'zeros'."
        )
    return table[:rows]


def encodings_of(base: Any, state: PatchState) -> Encodings:
    """The encodings that a patch put in."""
    places = {
        "input": state.family.input_slot or INPUT,
        "rotary": state.family.rotary_slot or ROTATION,
        "scores": ENCODING,
    }
    there = dict(base.named_modules())
    found = {place: there.get(path) for place, path in places.items()}
    return Encodings(**{k: None if isinstance(m, (NoInput, NoRotation)) else m for k, m in found.items()})


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
    if geometry.rotates_prefix:
        block["partial_rotary_factor"] = geometry.partial_rotary_factor
    if native and scheme.stock_length() is not None:
        block["stock_length"] = scheme.stock_length()
    return block


def _fill_slots(
    base: Any, family: Family, geometry: Geometry, encodings: Encodings, journal: Journal, like: Tensor
) -> None:
    """Every slot of the family gets the encoding of its kind, or the module that does nothing."""
    if family.input_slot is not None:
        journal.set_module(base, family.input_slot, encodings.input or _cast(NoInput(), like))
    elif encodings.input is not None:
        journal.set_module(base, INPUT, encodings.input)
        _add_at_first_layer(base, family, encodings.input, journal)
    if family.rotary_slot is not None:
        journal.set_module(base, family.rotary_slot, encodings.rotary or _cast(NoRotation(geometry.head_dim), like))
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


def _rotate_everywhere(base: Any, family: Family, journal: Journal) -> None:
    """Attention that can leave the rotation out (SmolLM3) does not: what each layer gets is decided by the slot."""
    for index, attention in enumerate(family.attentions(base)):
        if not getattr(attention, "use_rope", True):
            journal.set_attribute(base, f"{family.layers}.{index}.{family.attention}", "use_rope", 1)


def _cast(module: nn.Module, like: Tensor) -> nn.Module:
    return module.to(device=like.device, dtype=like.dtype)


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
