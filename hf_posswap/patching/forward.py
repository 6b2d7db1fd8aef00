"""What happens around every forward pass of a patched base model: positions are worked out once, for all layers.

A hook before the base model's forward sees what the caller passed. It refuses what cannot be right, adds what attention
needs to the keyword arguments, which transformers hands down to every attention module, and so survives gradient
checkpointing (nothing is stashed on a module) and `torch.compile`. A hook after it remembers positions on the cache.
Decisions depend on which arguments are there, on shapes and on cache offsets, never on values in tensors.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from hf_posswap.attention import PREFIX, our_backend
from hf_posswap.attention.segments import RotatedKeys, runs
from hf_posswap.errors import SchemeError
from hf_posswap.families import Family
from hf_posswap.patching.journal import Journal
from hf_posswap.positions import (
    PositionContext,
    consecutive,
    key_positions,
    padding_leads,
    remember,
    tokens_of_rows,
)
from hf_posswap.schemes import Geometry, Scheme
from hf_posswap.schemes.layered import LayeredScores, PerLayer
from hf_posswap.schemes.log_scaled import LogScaledScores

STATE = "hf_posswap"
"""Name of the attribute on a patched base model that holds its `PatchState`."""

INPUT, ROTATION, ENCODING = "position_input", "position_rotation", "position_encoding"
"""Names of the submodules of the base model that hold an input encoding and a rotary encoding, where the family has no
slot for them, and a bias or score encoding."""

FILLED_BY = "hf_posswap_scheme"
"""Name of the attribute on a cache with the scheme that its keys were made under."""

ROTATED_KEYS = "hf_posswap_rotated_keys"
"""Name of the attribute on a cache with what `attention.segments` keeps."""


@dataclass
class PatchState:
    """What a base model knows of its patch."""

    scheme: Scheme
    geometry: Geometry
    family: Family
    journal: Journal
    reloaded: bool
    """True when the model was loaded as it is: the originals in the journal are not the weights of any model."""
    argument_names: tuple[str, ...]
    whole: bool
    """True when the base model itself was patched, with no head around it."""


def argument_names(base: nn.Module) -> tuple[str, ...]:
    """Names of the base model's arguments, in order, so that positional ones can be told apart."""
    return tuple(inspect.signature(base.forward).parameters)


def before_forward(base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook of the base model."""
    state: PatchState = getattr(base, STATE)
    call = {**dict(zip(state.argument_names, args, strict=False)), **kwargs}
    tokens = call.get("input_ids") if call.get("input_ids") is not None else call.get("inputs_embeds")
    if tokens is None:
        return args, kwargs  # the model's own message is the right one
    positions = call.get("position_ids")
    if positions is not None and (positions.is_floating_point() or positions.dtype == torch.bool):
        raise SchemeError(f"position_ids are integers, not {positions.dtype}.")
    # GPT-2 takes [B, choices, L] as well, and flattens it.
    length = tokens.shape[-1] if call.get("input_ids") is not None else tokens.shape[-2]
    _hold_backend(base, state)
    cache = call.get("past_key_values")
    offset = cache.get_query_offset() if isinstance(cache, Cache) else 0
    _refuse_cache(state, cache)
    _refuse_other_scheme(state, cache, offset)
    _refuse_ambiguous(base, state, call, length, cache)
    _refuse_too_long(state, call, length, offset)
    state.family.complete_call(base, call, offset)
    rotation: Any = getattr(base, ROTATION, None)
    if rotation is None and not hasattr(base, ENCODING):
        return (), call
    positions = call.get("position_ids")
    if positions is None:
        positions = consecutive(length, offset, tokens.device)
    if rotation is not None:
        call["position_embeddings"] = rotation(rotation.anchor, positions)
    if hasattr(base, ENCODING):
        call["position_context"] = _told_to_attention(base, state, call, tokens, positions, cache, offset)
    return (), call


def after_forward(base: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    """Forward hook of the base model: the cache that comes out remembers where its keys are."""
    context = kwargs.get("position_context")
    context = context.members[0] if isinstance(context, PerLayer) else context
    values = output.values() if hasattr(output, "values") else output
    for value in values:
        if isinstance(value, Cache):
            setattr(value, FILLED_BY, getattr(base, STATE).scheme)
            if context is not None:
                remember(value, context.key_positions)


def add_to_hidden_states(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict]:
    """Forward pre-hook of the first layer of a family without an input slot."""
    hidden_states, *rest = args
    (encoding,) = layer.hf_posswap_input  # type: ignore[misc]
    added = encoding(kwargs["position_ids"])
    return (hidden_states + added.to(hidden_states), *rest), kwargs


def take_own_rotation(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook of an attention module whose layers are not all rotated alike."""
    return args, {**kwargs, "position_embeddings": kwargs["position_embeddings"].of(attention.layer_idx)}


def _told_to_attention(
    base: nn.Module,
    state: PatchState,
    call: dict[str, Any],
    tokens: Tensor,
    positions: Tensor,
    cache: Any,
    offset: int | Tensor,
) -> PositionContext | PerLayer:
    encoding: Any = base.get_submodule(ENCODING)
    mask = call.get("attention_mask")
    mask = mask if isinstance(mask, Tensor) else None
    positions = padding_leads(positions, mask)
    batch = tokens.shape[:-1].numel() if call.get("input_ids") is not None else len(tokens)
    keys = key_positions(cache, offset, positions, mask, batch)
    slots = consecutive(positions.shape[-1], offset, positions.device)[0]
    members: Any = encoding.members if isinstance(encoding, LayeredScores) else [encoding]
    contexts = []
    for member in members:
        scale: Tensor | None = None
        if isinstance(member, LogScaledScores):
            # A decoder does not look at them, and its mask may have dimensions that the model flattens.
            rows = None if state.geometry.causal else mask
            scale = member.query_scale(positions, tokens_of_rows(positions, rows))
            member = member.inner
        query_tables = member.tables(positions)
        key_tables = query_tables if keys is positions else member.tables(keys)
        context = PositionContext(member, query_tables, key_tables, slots, state.geometry.causal, scale)
        contexts.append(_with_runs(context, positions, cache, offset))
    return PerLayer(tuple(contexts), encoding.assignment) if isinstance(encoding, LayeredScores) else contexts[0]


def _with_runs(context: PositionContext, positions: Tensor, cache: Any, offset: int | Tensor) -> PositionContext:
    """Adds what rotation by segment needs; other encodings need nothing."""
    found = runs(context.encoding, positions)
    if found is None:
        return context
    keeps = hasattr(cache, "layers") and (isinstance(offset, int) or not torch.is_inference_mode_enabled())
    kept = vars(cache).setdefault(ROTATED_KEYS, RotatedKeys()) if keeps else None
    if kept is not None:
        kept.drop_stale(cache)
    return replace(context, runs=found, growing=isinstance(offset, int), rotated_keys=kept)


def _hold_backend(base: nn.Module, state: PatchState) -> None:
    """A switch of the attention implementation after patching must not lose the scheme."""
    config: Any = base.config
    if state.scheme.kind in ("bias", "score") and not str(config._attn_implementation).startswith(PREFIX):
        config._attn_implementation = our_backend(state.scheme.kind, config._attn_implementation, state.scheme.name)


def _refuse_cache(state: PatchState, cache: Any) -> None:
    reason = state.scheme.refuses_cache
    if cache is not None and reason is not None:
        raise SchemeError(f"{state.scheme.name} takes no cache: {reason}.")


def _refuse_other_scheme(state: PatchState, cache: Any, offset: int | Tensor) -> None:
    """Keys that were cached under another scheme are rotated otherwise, or come from other hidden states."""
    filled_by = getattr(cache, FILLED_BY, None)
    if filled_by is not None and filled_by != state.scheme and int(offset):
        raise SchemeError(
            f"The cache was filled under {filled_by} and is continued under {state.scheme}: fill a new one."
        )


def _refuse_ambiguous(base: nn.Module, state: PatchState, call: dict[str, Any], length: int, cache: Any) -> None:
    """transformers would take these positions for one sequence or for packed ones, depending on a default."""
    if not state.family.guesses_packing or call.get("position_ids") is None or length == 1:
        return
    if call.get("attention_mask") is not None or cache is not None:
        return
    use_cache = call.get("use_cache")
    use_cache = getattr(base.config, "use_cache", False) if use_cache is None else use_cache
    if use_cache and not (getattr(base, "gradient_checkpointing", False) and base.training):
        raise SchemeError(
            "position_ids without attention_mask mean one sequence or several packed ones: pass attention_mask of ones "
            "for one sequence with these positions, or use_cache=False for packed sequences."
        )


def _refuse_too_long(state: PatchState, call: dict[str, Any], length: int, offset: int | Tensor) -> None:
    limit = state.scheme.limit()
    if limit is None or not isinstance(offset, int) or call.get("position_ids") is not None:
        return
    if offset + length > limit:
        raise SchemeError(
            f"{offset + length} tokens are more than the {limit} positions of {state.scheme.name}: shorten the input "
            f"or extend(model, {offset + length})."
        )
