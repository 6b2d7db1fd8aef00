"""patch, unpatch, scheme_of and check: the public calls that change or read a model's scheme."""

import math
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_posswap.attention import our_backend
from hf_posswap.errors import CheckpointError, FamilyError, SchemeError
from hf_posswap.families import Family, family_of
from hf_posswap.families.configs import NeedsPosswap
from hf_posswap.patching.forward import STATE, PatchState
from hf_posswap.patching.install import BLOCK_VERSION, encoding_of, install, uninstall
from hf_posswap.schemes import BY_NAME, Geometry, Learned, Scheme, Sinusoidal
from hf_posswap.schemes.base import make_scheme, scheme_from_dict
from hf_posswap.schemes.fields import MAX_POSITIONS

Model = TypeVar("Model", bound=nn.Module)


def patch(model: Model, scheme: Scheme | str, *, allow_unordered: bool = False, **fields: Any) -> Model:
    """Gives the model another positional scheme, in place, and returns it.

    `scheme` is a scheme or a name with `fields`: `patch(model, "yarn", factor=4.0)`. A patched model is first taken
    back to its original; a model that has the scheme already is left alone. `allow_unordered=True` admits a scheme
    under which an encoder cannot tell word order.

    Raises:
        FamilyError: the model is not supported, or is wrapped (PEFT, torch.compile, DDP, FSDP): patch it before.
        SchemeError: unknown scheme or field, or a scheme that this model cannot carry. The model is unchanged.
    """
    _refuse_wrapped(model)
    family = family_of(model.config)
    resolved, geometry = _checked(model.config, make(scheme, **fields), allow_unordered)
    if current_scheme(model) == resolved:
        return model
    replace_scheme(model, family, resolved, geometry)
    return model


def unpatch(model: Model) -> Model:
    """Takes the patch off: outputs, `state_dict` keys, config and module types are the original ones again.

    Weights that were trained meanwhile stay trained; only positions come back. An unpatched model is left alone.

    Raises:
        CheckpointError: the model was loaded with its scheme, so there is no original.
    """
    _refuse_wrapped(model)
    state = patch_state(model)
    if state is None:
        return model
    if state.reloaded:
        raise CheckpointError(
            f"This model was loaded with {state.scheme.name}, so there is no original to go back to: load the original "
            "checkpoint, or patch() to another scheme."
        )
    uninstall(model)
    return model


def scheme_of(model_or_config: Any) -> Scheme:
    """The scheme of a model or config, patched or not, with its fields resolved.

    Raises:
        FamilyError: the architecture is not supported.
        SchemeError: transformers knows the scheme and this package does not.
        CheckpointError: the config's `hf_posswap` block is broken.
    """
    if isinstance(model_or_config, nn.Module):
        _refuse_wrapped(model_or_config)
        state = patch_state(model_or_config)
        if state is not None:
            return state.scheme
        family, config = family_of(model_or_config.config), model_or_config.config
        if isinstance(config, NeedsPosswap):
            raise CheckpointError(
                f"This {type(model_or_config).__name__} was built without the scheme that its config names: build it "
                "with an Auto class or hf_posswap.load."
            )
        saved = scheme_in_block(config)
        if saved is not None and contradiction(model_or_config, saved) is None:
            return saved
        return family.stock_scheme(config)
    family = family_of(model_or_config)
    saved = saved_scheme(model_or_config)
    return saved if saved is not None else family.stock_scheme(model_or_config)


def check(model_or_config: Any, scheme: Scheme | str, *, allow_unordered: bool = False, **fields: Any) -> None:
    """Raises what `patch` would raise for this model or config; otherwise returns None and changes nothing."""
    config = model_or_config
    if isinstance(model_or_config, nn.Module):
        _refuse_wrapped(model_or_config)
        config = model_or_config.config
    _checked(config, make(scheme, **fields), allow_unordered)


def make(scheme: Scheme | str, **fields: Any) -> Scheme:
    """A scheme from an instance, or from a name with fields.

    Raises:
        SchemeError: unknown name or field, or fields beside an instance.
    """
    if isinstance(scheme, str):
        return make_scheme(scheme, fields, BY_NAME)
    if not isinstance(scheme, Scheme):
        raise SchemeError(f"A scheme is a name or an instance such as ALiBi(), not {scheme!r:.80}.")
    if fields:
        raise SchemeError(f"Fields go into the scheme itself: {type(scheme).__name__}({', '.join(fields)}=...).")
    return scheme


def replace_scheme(model: Any, family: Family, scheme: Scheme, geometry: Geometry, **options: Any) -> None:
    """Takes off what is there and installs `scheme`; if that fails, the former patch is put back as it was."""
    state = patch_state(model)
    if state is None:
        install(model, family, scheme, geometry, **options)
        return
    former = encoding_of(_base(model), state)
    config = model.config
    uninstall(model)
    if not state.reloaded and not options and current_scheme(model) == scheme:
        return
    try:
        install(model, family, scheme, geometry, reloaded=state.reloaded, **options)
    except BaseException:
        install(model, family, state.scheme, state.geometry, encoding=former, reloaded=state.reloaded, put_back=config)
        raise


def patch_state(model: nn.Module) -> PatchState | None:
    """The state of a patched model; None for an unpatched one."""
    return getattr(_base(model), STATE, None)


def current_scheme(model: Any) -> Scheme | None:
    """`scheme_of` without refusal: None where a stock scheme is not known here."""
    try:
        return scheme_of(model)
    except SchemeError:
        return None


def scheme_in_block(config: Any) -> Scheme | None:
    """The scheme that a config's block names; None when there is no block.

    Raises:
        CheckpointError: the block is from a future version, or broken.
    """
    block = getattr(config, "hf_posswap", None)
    if block is None:
        return None
    version = block.get("version") if isinstance(block, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CheckpointError("The config's hf_posswap block is no mapping with a 'version': it was edited or damaged.")
    if version > BLOCK_VERSION:
        raise CheckpointError(
            f"The config's hf_posswap block has version {version}, this package reads up to {BLOCK_VERSION}: "
            "update hf_posswap."
        )
    try:
        return scheme_from_dict(block.get("scheme"), BY_NAME)
    except SchemeError as error:
        raise CheckpointError(f"The config's hf_posswap block is broken: {error}") from error


def _checked(config: PreTrainedConfig, scheme: Scheme, allow_unordered: bool) -> tuple[Scheme, Geometry]:
    family = family_of(config)
    reason = family.refusal(config)
    if reason is not None:
        raise FamilyError(f"This {config.model_type} model cannot be patched: {reason}.")
    geometry = family.geometry(config)
    if not geometry.causal and scheme.causal_only is not None:
        raise SchemeError(f"{scheme.name} does not work on an encoder: {scheme.causal_only}.")
    if not geometry.causal and not scheme.has_order and not allow_unordered:
        raise SchemeError(
            f"{scheme.name} turns an encoder into a bag of words, because nothing else tells it the order; "
            "allow_unordered=True does it all the same."
        )
    resolved = scheme.resolve(geometry)
    if resolved.kind in ("bias", "score"):
        our_backend(resolved.kind, config._attn_implementation, resolved.name)
    return resolved, geometry


def saved_scheme(config: Any) -> Scheme | None:
    """The scheme that a config's block names, once all that the config says of positions was checked; None: no block.

    Raises:
        FamilyError: the architecture is not supported.
        CheckpointError: the block is broken or from the future, or contradicts the rest of the config.
    """
    saved = scheme_in_block(config)
    if saved is None:
        return None
    scheme, geometry = checked_scheme(config, saved)
    differs = None if isinstance(config, NeedsPosswap) else _contradiction_in_config(config, scheme, geometry)
    if differs is not None:
        raise CheckpointError(
            f"The checkpoint says two things: its hf_posswap block has {saved}, but {differs}. Remove the block from "
            "config.json to load it as it stands, or save the model again."
        )
    return saved


def _contradiction_in_config(config: Any, scheme: Scheme, geometry: Geometry) -> str | None:
    """How a plain config differs from what its block says of it."""
    if family_of(config).input_slot is None:
        says = config.rope_parameters
        return None if says == scheme.rope_parameters(geometry) else f"rope_parameters has {says}"
    if not isinstance(scheme, (Learned, Sinusoidal)):
        return "the rest of the config is that of a stock model with a learned table"
    length = config.max_position_embeddings
    differs = isinstance(scheme, Learned) and scheme.max_position_embeddings != length
    return f"max_position_embeddings is {length}" if differs else None


def contradiction(model: Any, saved: Scheme) -> str | None:
    """How a stock model, loaded from a plain checkpoint of ours, differs from its block; None if it agrees."""
    family = family_of(model.config)
    scheme, geometry = checked_scheme(model.config, saved)
    if family.input_slot is None:
        says = model.config.rope_parameters
        return None if says == scheme.rope_parameters(geometry) else f"rope_parameters has {says}"
    table = model.base_model.get_submodule(family.input_slot).weight
    if isinstance(scheme, Learned):
        return None if len(table) == scheme.max_position_embeddings else f"the position table has {len(table)} rows"
    if isinstance(scheme, Sinusoidal) and not table.is_meta:
        formula = scheme.build(geometry).to(table)(torch.arange(len(table), device=table.device)[None])[0]
        if not torch.allclose(table.detach().float(), formula.float(), atol=1e-2):
            return "the position table is another one than the formula's, as after training"
    return None


def checked_scheme(config: Any, scheme: Scheme) -> tuple[Scheme, Geometry]:
    """A saved scheme and the geometry of its model.

    Raises:
        CheckpointError: the scheme does not fit the model, or says other lengths than are possible.
    """
    family_of(config)
    length = config.max_position_embeddings
    if not isinstance(length, int) or not 0 < length <= MAX_POSITIONS:
        raise CheckpointError(f"max_position_embeddings={length!r} is no length from 1 to {MAX_POSITIONS}.")
    _check_remembered(config.hf_posswap)
    try:
        return _checked(config, scheme, allow_unordered=True)
    except SchemeError as error:
        raise CheckpointError(f"The saved scheme does not fit this model: {error}") from error


def _check_remembered(block: dict[str, Any]) -> None:
    trained, theta = block.get("trained_length"), block.get("rope_theta")
    if not isinstance(trained, int) or isinstance(trained, bool) or not 0 < trained <= MAX_POSITIONS:
        raise CheckpointError(
            f"The hf_posswap block has trained_length={trained!r}, no length from 1 to {MAX_POSITIONS}."
        )
    if theta is not None and (not isinstance(theta, (int, float)) or not math.isfinite(theta) or theta <= 1):
        raise CheckpointError(f"The hf_posswap block has rope_theta={theta!r}, no number above 1.")


def _base(model: Any) -> nn.Module:
    return getattr(model, "base_model", model)


def _refuse_wrapped(model: Any) -> None:
    order = "patch it first, in the order: patch, get_peft_model, torch.compile, DDP or FSDP, optimizer"
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise FamilyError(f"{name} is no transformers model, or wraps one; {order}.")
    if name.startswith("FSDP") or getattr(model, "_hf_peft_config_loaded", False):
        raise FamilyError(f"This {name} was sharded or given an adapter already; {order}.")
    embeddings = model.get_input_embeddings()
    if embeddings.weight.is_meta and hasattr(embeddings, "_hf_hook"):
        raise FamilyError(f"This {name} has its weights offloaded by accelerate: patch it first, then dispatch it.")
    if any(module._compiled_call_impl is not None for module in (model, _base(model))):
        raise FamilyError(f"This {name} was compiled already; {order}.")
