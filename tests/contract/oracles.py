"""Stock models made to compute a scheme by code that is not ours.

Rotations are transformers' `apply_rotary_pos_emb` with the frequencies of `ROPE_INIT_FUNCTIONS`, biases are bloom's and
T5's own functions added to the scores, xPos is the paper's formula written out. The models are stock ones with their
own positions switched off, so every other part of the forward pass is transformers' too.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posswap.families import family_of
from hf_posswap.schemes import NoPE

Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]]
"""`query, key [B, H, L, D], positions [B, L]` to changed query and key and a bias `[B, H, L, L]` or None."""

_CHANGE: list[Change] = []


def oracle_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention written out in the inputs' precision, after the change of the scheme under test."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    positions = torch.arange(query.shape[2])[None].expand(len(query), -1)
    query, key, bias = _CHANGE[-1](query, key, positions)
    scores = query @ key.transpose(-1, -2) * kwargs["scaling"]
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None


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


def unchanged(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, None]:
    return query, key, None


def _nope(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    assert isinstance(scheme, NoPE)
    return unchanged, None


def _learned(scheme: Any, model: Any, patched: Any) -> tuple[Change, Tensor]:
    slot = family_of(model.config).input_slot or "position_encoding"
    return unchanged, patched.base_model.get_submodule(slot).weight[:24]


def _sinusoidal(scheme: Any, model: Any, patched: Any) -> tuple[Change, Tensor]:
    width = model.config.hidden_size
    angle = torch.arange(24.0)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    table = torch.zeros(24, width)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()
    return unchanged, table


def _rotary(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    geometry = patched.base_model.hf_posswap.geometry
    config = LlamaConfig(
        hidden_size=geometry.head_dim * 4,
        num_attention_heads=4,
        head_dim=geometry.head_dim,
        max_position_embeddings=geometry.trained_length,
        rope_parameters=_published_parameters(scheme, geometry.head_dim),
    )
    kind = config.rope_parameters["rope_type"]
    compute: Any = ROPE_INIT_FUNCTIONS.get(kind, LlamaRotaryEmbedding.compute_default_rope_parameters)
    inv_freq, scaling = compute(config)

    def rotate(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, None]:
        angles = positions[..., None] * inv_freq
        angles = torch.cat((angles, angles), -1)
        return *apply_rotary_pos_emb(query, key, angles.cos() * scaling, angles.sin() * scaling), None

    return rotate, None


def _published_parameters(scheme: Any, dim: int) -> dict[str, Any]:
    theta = scheme.rope_theta
    if scheme.name == "ntk":
        return {"rope_type": "default", "rope_theta": theta * scheme.factor ** (dim / (dim - 2))}
    if scheme.name == "rope":
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": scheme.name, "rope_theta": theta, "factor": scheme.factor}


def _alibi(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    causal = patched.base_model.hf_posswap.geometry.causal

    def bias(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, heads, length, _ = query.shape
        linear = build_alibi_tensor(torch.ones(batch, length), heads, query.dtype).view(batch, heads, 1, length)
        if causal:  # bloom's is constant along a row off ours, which softmax does not see
            return query, key, linear
        return query, key, -(linear - linear.transpose(-1, -2)).abs()

    return bias, None


def _t5(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    causal = patched.base_model.hf_posswap.geometry.causal
    weight = patched.base_model.position_encoding.relative_attention_bias

    def bias(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        relative = positions[0][None, :] - positions[0][:, None]
        buckets = T5Attention._relative_position_bucket(
            relative, bidirectional=not causal, num_buckets=scheme.num_buckets, max_distance=scheme.max_distance
        )
        return query, key, weight[buckets].permute(2, 0, 1)[None]

    return bias, None


def _xpos(scheme: Any, model: Any, patched: Any) -> tuple[Change, None]:
    def turn_and_decay(query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, None]:
        dim = query.shape[-1]
        pair = torch.arange(0, dim, 2, dtype=torch.float64)
        angles = positions[..., None] * 10000 ** (-pair / dim)
        zeta = ((pair / dim + 0.4) / 1.4) ** (positions[..., None] / 512)
        cos, sin, zeta = (torch.cat((t, t), -1).to(query.dtype) for t in (angles.cos(), angles.sin(), zeta))
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        return query * zeta[:, None], key / zeta[:, None], None

    return turn_and_decay, None


CHANGES: dict[str, Any] = {
    "nope": _nope,
    "learned": _learned,
    "sinusoidal": _sinusoidal,
    "rope": _rotary,
    "linear": _rotary,
    "ntk": _rotary,
    "yarn": _rotary,
    "alibi": _alibi,
    "t5": _t5,
    "xpos": _xpos,
}
"""An oracle per scheme: a scheme without one fails the contract test that looks it up."""
