"""Puts a resolved scheme on a model, and checks that it took effect. Everything here is undone by the journal."""

import copy
from typing import Any

from torch import Tensor, nn

from hf_posswap.attention import our_backend, stock_backend
from hf_posswap.errors import SchemeError
from hf_posswap.families import Family
from hf_posswap.families.configs import to_posswap_config
from hf_posswap.patching.forward import (
    ENCODING,
    INPUT,
    ROTATION,
    STATE,
    PatchState,
    after_forward,
    argument_names,
    before_forward,
)
from hf_posswap.patching.journal import Journal
from hf_posswap.patching.slots import fill_slots, verify
from hf_posswap.schemes import Geometry, Scheme
from hf_posswap.schemes.base import Encodings, NoInput, NoRotation
from hf_posswap.schemes.learned import LearnedEncoding

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
    try:
        if put_back is None:
            _write_config(model, family, scheme, geometry, journal, max_length)
        else:
            journal.set_config(model, model.config, put_back)
        fill_slots(base, family, geometry, encodings, journal, like)
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
