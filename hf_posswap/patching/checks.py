"""What is checked before anything is changed, built or believed."""

import copy
import math
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from hf_posswap.attention import our_backend
from hf_posswap.errors import CheckpointError, FamilyError, SchemeError
from hf_posswap.families import family_of
from hf_posswap.families.configs import NeedsPosswap
from hf_posswap.patching.forward import STATE
from hf_posswap.patching.install import BLOCK_VERSION
from hf_posswap.schemes import BY_NAME, Geometry, Learned, LinearRoPE, ProportionalRoPE, Scheme, Sinusoidal
from hf_posswap.schemes.base import make_scheme, scheme_from_dict
from hf_posswap.schemes.fields import MAX_POSITIONS

ORIGINAL = "original_max_position_embeddings"


def make(scheme: Scheme | str, /, **fields: Any) -> Scheme:
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


def checked(config: PreTrainedConfig, scheme: Scheme, allow_unordered: bool) -> tuple[Scheme, Geometry]:
    """The scheme with its fields resolved for a model with this config, and the facts that it was resolved from.

    Raises:
        FamilyError: the architecture, or a feature of it, is not supported.
        SchemeError: the scheme does not work on it.
    """
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
    if getattr(scheme, ORIGINAL, 0) is None and family.rotary_slot is not None and type(scheme) is not LinearRoPE:
        refuse_unrecorded_length(config, family.stock_scheme(config), geometry)
    resolved = scheme.resolve(geometry)
    length = resolved.max_length(geometry)
    if length is not None and length > MAX_POSITIONS:
        raise SchemeError(f"{resolved.name} makes {length} positions of it; at most {MAX_POSITIONS} are possible.")
    if resolved.kind in ("bias", "score"):
        our_backend(resolved.kind, config._attn_implementation, resolved.name)
    return resolved, geometry


def refuse_unrecorded_length(config: Any, scheme: Scheme, geometry: Geometry) -> None:
    """Raises SchemeError where a stock config leaves open what its length is.

    transformers 4 said to leave `max_position_embeddings` as it was trained, and many published models have the
    extended length there. Other types of scaling compute with the trained length, so that their configs must have it.
    """
    if not isinstance(scheme, (LinearRoPE, ProportionalRoPE)) or scheme.factor == 1:
        return
    now, before = config.max_position_embeddings, max(1, round(config.max_position_embeddings / scheme.factor))
    if getattr(config, "hf_posswap", None) is None and geometry.trained_length == now:
        raise SchemeError(
            f"The config has {scheme.name} scaling by {scheme.factor:g} and does not say what its {now} positions are: "
            f"pass {ORIGINAL}={before} if they are the extended length, or {now} if they are the trained one."
        )


def refuse_wrapped(model: Any) -> None:
    """Raises FamilyError for what is no bare transformers model."""
    if model is None or isinstance(model, (str, PreTrainedConfig)):
        raise FamilyError(f"A loaded model is needed here, not {model!r:.60}: load it with from_pretrained first.")
    order = "patch it first, in the order: patch, get_peft_model, torch.compile, DDP or FSDP, optimizer"
    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise FamilyError(f"{name} is no transformers model, or wraps one; {order}.")
    if name.startswith("FSDP") or getattr(model, "_hf_peft_config_loaded", False):
        raise FamilyError(f"This {name} was sharded or given an adapter already; {order}.")
    base = model.base_model
    state = getattr(base, STATE, None)
    if base.config is not model.config or (state is not None and state.whole != (base is model)):
        raise FamilyError(
            f"This {name} and its base model were not patched together: patch and unpatch the same of both."
        )
    embeddings = model.get_input_embeddings()
    if embeddings.weight.is_meta and hasattr(embeddings, "_hf_hook"):
        raise FamilyError(f"This {name} has its weights offloaded by accelerate: patch it first, then dispatch it.")
    if any(module._compiled_call_impl is not None for module in (model, base)):
        raise FamilyError(f"This {name} was compiled already; {order}.")


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
    refuse_contradiction(saved, differs)
    return saved


def refuse_contradiction(saved: Scheme, differs: str | None) -> None:
    """Raises CheckpointError when something `differs` from what the block says."""
    if differs is not None:
        raise CheckpointError(
            f"The checkpoint says two things: its hf_posswap block has {saved}, but {differs}. Remove the block from "
            "config.json to load it as it stands, or save the model again."
        )


def _contradiction_in_config(config: Any, scheme: Scheme, geometry: Geometry) -> str | None:
    """How a plain config differs from what its block says of it."""
    family = family_of(config)
    if family.native_fields:
        written = copy.deepcopy(config)
        if not family.write_native(written, scheme, geometry):
            return "the rest of the config is that of a stock model, which cannot express it"
        says = {name: getattr(config, name, None) for name in family.native_fields}
        other = [f"{k} has {v}" for k, v in says.items() if v != getattr(written, k, None)]
        return other[0] if other else None
    if not isinstance(scheme, (Learned, Sinusoidal)):
        return "the rest of the config is that of a stock model with a learned table"
    length = config.max_position_embeddings
    differs = isinstance(scheme, Learned) and scheme.max_position_embeddings != length
    return f"max_position_embeddings is {length}" if differs else None


def contradiction(model: Any, saved: Scheme) -> str | None:
    """How a stock model, loaded from a plain checkpoint of ours, differs from its block; None if it agrees."""
    family = family_of(model.config)
    scheme, geometry = checked_scheme(model.config, saved)
    in_config = _contradiction_in_config(model.config, scheme, geometry)
    if in_config is not None or family.input_slot is None:
        return in_config
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
        return checked(config, scheme, allow_unordered=True)
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
