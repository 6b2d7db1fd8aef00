"""Stock models made to compute a scheme by code that is not ours.

Rotations are transformers' `apply_rotary_pos_emb` with the frequencies of `ROPE_INIT_FUNCTIONS`, once for every length
where they depend on it; biases are bloom's and T5's own functions added to the scores, xPos is the paper's formula
written out. The models are stock ones with their own positions switched off, so every other part of the forward pass is
transformers' too.
"""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, GlmConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as rotate_interleaved
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as rotate_halves
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posswap.families import family_of
from hf_posswap.schemes import NoPE

Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""`query, key [B, H, L, D], positions [B, L]` to unscaled scores and a bias, both `[B, H, L, L]`; no bias is None."""

_CHANGE: list[Change | list[Change]] = []
"""One for all layers, or a list of one for each."""


def oracle_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention written out in the inputs' precision, after the change of the scheme under test."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    positions = torch.arange(query.shape[2])[None].expand(len(query), -1)
    change = _CHANGE[-1]
    scores, bias = (change[module.layer_idx] if isinstance(change, list) else change)(query, key, positions)
    scores = scores * kwargs["scaling"]
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    return (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2).contiguous(), None


def oracle_mask(*args: Any, **kwargs: Any) -> Tensor:
    """sdpa's own mask, always written out."""
    options = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return AttentionMaskInterface()["sdpa"](*args, **{**kwargs, **options})


AttentionInterface.register("test_oracle", oracle_attention)
AttentionMaskInterface.register("test_oracle", oracle_mask)


def oracle_logits(stock: Any, patched: Any, embeddings: Tensor) -> Tensor:
    """Logits of `stock` for token embeddings, computing the scheme that `patched` has, with the same parameters."""
    scheme = patched.base_model.hf_posswap.scheme
    model = copy.deepcopy(stock)
    _switch_positions_off(model)
    change, added = CHANGES[scheme.name](scheme, model, patched)
    _CHANGE.append(change)
    model.config._attn_implementation = "test_oracle"
    try:
        return model(inputs_embeds=embeddings if added is None else embeddings + added).logits
    finally:
        _CHANGE.pop()


def _switch_positions_off(model: Any) -> None:
    family = family_of(model.config)
    if family.input_slot:
        torch.nn.init.zeros_(model.base_model.get_submodule(family.input_slot).weight)
    if family.rotary_slot:
        rotary = model.base_model.get_submodule(family.rotary_slot)
        rotary.inv_freq.zero_()


def unchanged(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, None]:
    return query @ key.transpose(-1, -2), None


def _nope(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    assert isinstance(scheme, NoPE)
    return unchanged, None


def _learned(scheme: Any, model: Any, patched: Any) -> tuple[Change, Tensor]:
    slot = family_of(model.config).input_slot or "position_input"
    return unchanged, patched.base_model.get_submodule(slot).weight[:24]


def _sinusoidal(scheme: Any, model: Any, patched: Any) -> tuple[Change, Tensor]:
    width = model.config.hidden_size
    angle = torch.arange(24.0)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    table = torch.zeros(24, width)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return unchanged, table


def _rotary(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    return _scores_at(scheme, patched), None


def _by_segment(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    def own_rows(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        lengths = [_length_of_segment(scheme, position) for position in positions[0].tolist()]
        whole = {n: _scores_at(scheme, patched, n)(query, key, positions)[0] for n in set(lengths)}
        return torch.stack([whole[n][:, :, row] for row, n in enumerate(lengths)], dim=2), None

    return own_rows, None


def _length_of_segment(scheme: Any, position: int) -> int:
    length = scheme.original_max_position_embeddings
    if scheme.name == "longrope":
        return length if position < length else length + 1
    while length <= position:
        length *= 2
    return length


def _scores_at(scheme: Any, patched: Any, seq_len: int | None = None) -> Change:
    """Scores with transformers' frequencies for a call of `seq_len` tokens."""
    geometry = patched.base_model.hf_posswap.geometry
    config = GlmConfig(
        hidden_size=geometry.head_dim * 4,
        num_attention_heads=4,
        head_dim=geometry.head_dim,
        max_position_embeddings=getattr(scheme, "original_max_position_embeddings", None) or geometry.trained_length,
        rope_parameters=_published_parameters(scheme, int(geometry.head_dim * scheme.partial_rotary_factor)),
    )
    kind = config.rope_parameters["rope_type"]
    compute: Any = ROPE_INIT_FUNCTIONS.get(kind, GlmRotaryEmbedding.compute_default_rope_parameters)
    inv_freq, scaling = compute(config, seq_len=seq_len)
    apply = rotate_halves if geometry.pairing == "half" else rotate_interleaved

    def rotate(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        angles = positions[..., None] * inv_freq.double()
        angles = torch.cat((angles, angles), -1)
        query, key = apply(query, key, angles.cos() * scaling, angles.sin() * scaling)
        return query @ key.transpose(-1, -2), None

    return rotate


def _published_parameters(scheme: Any, dim: int) -> dict[str, Any]:
    common = {"rope_type": scheme.name, "rope_theta": scheme.rope_theta}
    common["partial_rotary_factor"] = scheme.partial_rotary_factor
    if scheme.name == "rope":
        return {**common, "rope_type": "default"}
    if scheme.name == "ntk":
        return {**common, "rope_type": "default", "rope_theta": scheme.rope_theta * scheme.factor ** (dim / (dim - 2))}
    scaled = {**common, "factor": scheme.factor}
    if scheme.name == "ntk_by_parts":
        return {**scaled, "rope_type": "yarn", "attention_factor": 1.0}
    if scheme.name == "llama3":
        return {**scaled, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if scheme.name == "longrope":
        return {**scaled, "short_factor": list(scheme.short_factor), "long_factor": list(scheme.long_factor)}
    return scaled


def _alibi(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    causal = patched.base_model.hf_posswap.geometry.causal

    def bias(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        batch, heads, length, _ = query.shape
        linear = build_alibi_tensor(torch.ones(batch, length), heads, query.dtype).view(batch, heads, 1, length)
        if not causal:  # bloom's is constant along a row off ours, which softmax does not see
            linear = -(linear - linear.transpose(-1, -2)).abs()
        return query @ key.transpose(-1, -2), linear

    return bias, None


def _t5(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    causal = patched.base_model.hf_posswap.geometry.causal
    named = patched.base_model.position_encoding.named_parameters()
    weight = next(p for name, p in named if name.endswith("relative_attention_bias"))

    def bias(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        relative = positions[0][None, :] - positions[0][:, None]
        buckets = T5Attention._relative_position_bucket(
            relative, bidirectional=not causal, num_buckets=scheme.num_buckets, max_distance=scheme.max_distance
        )
        return query @ key.transpose(-1, -2), weight[buckets].permute(2, 0, 1)[None]

    return bias, None


def _xpos(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    geometry = patched.base_model.hf_posswap.geometry
    dim, halves = int(geometry.head_dim * scheme.partial_rotary_factor), geometry.pairing == "half"

    def turn_and_decay(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, None]:
        pair = torch.arange(0, dim, 2, dtype=torch.float64)
        angles = positions[..., None] * scheme.rope_theta ** (-pair / dim)
        zeta = ((pair / dim + 0.4) / 1.4) ** (positions[:, None, :, None] / 512)
        zeta = torch.cat((zeta, zeta), -1) if halves else zeta.repeat_interleave(2, -1)
        zeta = torch.nn.functional.pad(zeta, (0, geometry.head_dim - dim), value=1.0)
        cos, sin = (torch.cat((t, t), -1).to(query.dtype) for t in (angles.cos(), angles.sin()))
        query, key = (rotate_halves if halves else rotate_interleaved)(query, key, cos, sin)
        return (query * zeta) @ (key / zeta).transpose(-1, -2), None

    return turn_and_decay, None


def _layered(scheme: Any, model: Any, patched: Any) -> tuple[list[Change], None]:
    letters = list(dict.fromkeys(scheme.pattern))
    members = [scheme.schemes[letters.index(letter)] for letter in scheme.pattern]
    layers = [members[i % len(members)] for i in range(model.config.num_hidden_layers)]
    return [CHANGES[member.name](member, model, patched)[0] for member in layers], None


def _log_scaled(scheme: Any, model: Any, patched: Any) -> tuple[Change, Tensor | None]:
    inner, added = CHANGES[scheme.inner.name](scheme.inner, model, patched)
    trained, causal = scheme.original_max_position_embeddings, patched.base_model.hf_posswap.geometry.causal

    def sharpen(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        length = positions.shape[1]
        read = [position + 1 if causal else length for position in range(length)]
        scale = [max(1.0, math.log(tokens) / math.log(trained)) for tokens in read]
        return inner(query * torch.tensor(scale, dtype=query.dtype)[:, None], key, positions)

    return sharpen, added


CHANGES: dict[str, Any] = {
    "nope": _nope,
    "learned": _learned,
    "sinusoidal": _sinusoidal,
    "rope": _rotary,
    "linear": _rotary,
    "ntk": _rotary,
    "yarn": _rotary,
    "ntk_by_parts": _rotary,
    "llama3": _rotary,
    "proportional": _rotary,
    "dynamic": _by_segment,
    "longrope": _by_segment,
    "alibi": _alibi,
    "t5": _t5,
    "xpos": _xpos,
    "layered": _layered,
    "log_scaled": _log_scaled,
}
"""An oracle per scheme: a scheme without one fails the contract test that looks it up."""
