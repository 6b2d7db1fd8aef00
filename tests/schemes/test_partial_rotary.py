"""Rotating a part of each head: against GLM and Phi-3, and by its definition where transformers has none."""

from dataclasses import replace

import pytest
import torch
from transformers import GlmConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as apply_glm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_llama
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding
from transformers.models.phi3.modeling_phi3 import apply_rotary_pos_emb as apply_phi3

from hf_posswap import (
    DynamicNTKRoPE,
    LinearRoPE,
    Llama3RoPE,
    LongRoPE,
    NTKByPartsRoPE,
    NTKRoPE,
    RoPE,
    SchemeError,
    XPos,
    YaRN,
)
from hf_posswap.schemes.base import cos_and_sin, rotated

DIM, TRAINED = 16, 64
LISTS = {"long_factor": (1.0, 1.5, 4.0, 8.0), "short_factor": (1.0, 1.1, 1.2, 1.3)}
NATIVE = {
    "rope": RoPE(),
    "linear": LinearRoPE(factor=4.0),
    "ntk": NTKRoPE(factor=4.0),
    "dynamic_static": DynamicNTKRoPE(factor=2.0, mode="static"),
    "dynamic_call": DynamicNTKRoPE(factor=2.0, mode="call"),
    "yarn": YaRN(factor=4.0),
    "ntk_by_parts": NTKByPartsRoPE(factor=4.0),
    "longrope_static": LongRoPE(factor=4.0, mode="static", **LISTS),
    "longrope_call": LongRoPE(factor=4.0, mode="call", **LISTS),
    "llama3": Llama3RoPE(),
}


def glm_config(length, parameters):
    return GlmConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=DIM,
        max_position_embeddings=length,
        rope_parameters=dict(parameters),
    )


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("length", [30, 64, 65, 150])
def test_a_part_of_glm(name, length, geometry, assert_close, assert_rotation) -> None:
    facts = geometry(
        head_dim=DIM, trained_length=TRAINED, partial_rotary_factor=0.5, rotates_prefix=True, pairing="interleaved"
    )
    scheme = NATIVE[name].resolve(facts)
    assert (scheme.partial_rotary_factor, scheme.dim(facts), scheme.still(facts)) == (0.5, 8, 0)
    native = scheme.rope_parameters(facts)
    stock = GlmRotaryEmbedding(glm_config(TRAINED, native))
    x, positions = torch.randn(2, 3, length, DIM), torch.arange(length).expand(2, -1)
    ours, theirs = scheme.build(facts)(x, positions), stock(x, positions)
    assert ours[0].shape == (2, length, 8)
    assert_rotation(ours, theirs)
    last = torch.tensor(float(length), dtype=torch.float64)
    frequencies = scheme.frequencies(last, facts)[0] if "call" in name else scheme.inv_freq(facts)
    tables = cos_and_sin(positions, frequencies, scheme.scaling(facts))
    assert_close(rotated(x, *tables, "interleaved"), apply_glm(x, x, *theirs)[0], 1e-5)


@pytest.mark.parametrize("name", NATIVE)
def test_a_part_goes_to_transformers_and_back(name, geometry, assert_frequencies) -> None:
    facts = geometry(head_dim=DIM, trained_length=TRAINED, partial_rotary_factor=0.75, rotates_prefix=True)
    fields = {"partial_rotary_factor": 0.5, "rope_theta": 5e4}
    scheme = replace(NATIVE[name], **fields).resolve(facts)
    native = scheme.rope_parameters(facts)
    assert native["partial_rotary_factor"] == 0.5
    kind, config = native["rope_type"], glm_config(TRAINED, native)
    stock = ROPE_INIT_FUNCTIONS.get(kind, GlmRotaryEmbedding.compute_default_rope_parameters)(config)[0]
    start = torch.tensor(1.0, dtype=torch.float64)
    ours = scheme.frequencies(start, facts)[0] if "call" in name else scheme.inv_freq(facts)
    assert_frequencies(ours, stock, 4e-6)
    read = {"rope": RoPE, "ntk": RoPE, "dynamic_static": RoPE, "ntk_by_parts": YaRN}.get(name, type(scheme))
    again = read.from_rope_parameters({**native, "max_position_embeddings": TRAINED}).resolve(facts)
    assert again.partial_rotary_factor == 0.5
    assert_frequencies(again.inv_freq(facts), scheme.inv_freq(facts), 1e-12)
    assert again.scaling(facts) == scheme.scaling(facts)


@pytest.mark.parametrize("part", [0.25, 0.75, 1.0])
def test_a_part_of_phi3(part, geometry, assert_close, assert_rotation) -> None:
    facts = geometry(head_dim=DIM, partial_rotary_factor=part, rotates_prefix=True, rope_theta=5e4)
    scheme = RoPE().resolve(facts)
    native = scheme.rope_parameters(facts)
    stock = Phi3RotaryEmbedding(Phi3Config(hidden_size=64, num_attention_heads=4, rope_parameters=dict(native)))
    x, positions = torch.randn(2, 3, 40, DIM), torch.randint(0, 200, (2, 40))
    theirs = stock(x, positions)
    assert_rotation(scheme.build(facts)(x, positions), theirs)
    ours = rotated(x, *cos_and_sin(positions, scheme.inv_freq(facts)), "half")
    assert_close(ours, apply_phi3(x, x, *theirs)[0], 1e-5)


def test_a_part_of_llama_keeps_its_pairs(geometry, assert_close) -> None:
    facts = geometry(head_dim=DIM)
    scheme = RoPE(partial_rotary_factor=0.5).resolve(facts)
    assert scheme.still(facts) == 4
    x, positions = torch.randn(2, 3, 9, DIM, dtype=torch.float64), torch.randint(0, 1000, (2, 9))
    ours = apply_llama(x, x, *scheme.build(facts).rotation(positions, torch.float64))[0]
    expected = x.clone()
    for pair in range(4):
        first, second, angle = x[..., pair], x[..., pair + 8], (positions.double() * 1e4 ** (-2 * pair / 8))[:, None]
        expected[..., pair] = first * angle.cos() - second * angle.sin()
        expected[..., pair + 8] = second * angle.cos() + first * angle.sin()
    assert_close(ours, expected, 1e-12)


@pytest.mark.parametrize("name", NATIVE)
def test_a_part_of_llama_cannot_be_said_natively(name, geometry) -> None:
    facts = geometry(head_dim=DIM, trained_length=TRAINED)
    scheme = replace(NATIVE[name], partial_rotary_factor=0.5).resolve(facts)
    assert scheme.rope_parameters(facts) is None


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_xpos_of_a_part(prefix, pairing, geometry, assert_close) -> None:
    facts = geometry(head_dim=8, partial_rotary_factor=0.5, rotates_prefix=prefix, pairing=pairing)
    scheme = XPos().resolve(facts)
    encoding = scheme.build(facts).double()
    positions = torch.arange(40)[None].expand(2, -1)
    query, key = torch.randn(2, 2, 3, 40, 8, dtype=torch.float64)
    tables = encoding.tables(positions)
    scores = encoding(query, key, tables, tables, torch.arange(40))
    width = 4 if prefix else 8
    expected = torch.zeros_like(scores)
    turning = []
    for pair in range(2):
        i, j = (pair, pair + width // 2) if pairing == "half" else (2 * pair, 2 * pair + 1)
        turning += [i, j]
        distance = (positions[:, :, None] - positions[:, None, :]).double()[:, None]
        q, k = (torch.complex(x[..., i], x[..., j]) for x in (query, key))
        zeta = (2 * pair / 4 + 0.4) / 1.4
        turned = q[..., :, None] * k.conj()[..., None, :] * torch.exp(1j * distance * 1e4 ** (-2 * pair / 4))
        expected += turned.real * zeta ** (distance / 512)
    rest = [i for i in range(8) if i not in turning]
    expected += query[..., rest] @ key[..., rest].transpose(-1, -2)
    causal = torch.ones(40, 40).tril().bool()
    assert_close(scores[..., causal], expected[..., causal], 1e-12)


@pytest.mark.parametrize(("part", "turning"), [(0.0, 0), (0.05, 0), (0.1, 1), (0.2, 3), (0.95, 15)])
def test_parts_without_whole_pairs_are_refused(part, turning, geometry) -> None:
    with pytest.raises(SchemeError, match=f"rope: partial_rotary_factor={part} of head_dim 16 is {turning} dim"):
        RoPE(partial_rotary_factor=part).resolve(geometry(head_dim=DIM))


def test_none_is_the_models_own_part(geometry) -> None:
    facts = geometry(partial_rotary_factor=0.25)
    assert RoPE().resolve(facts).partial_rotary_factor == 0.25
    assert RoPE(partial_rotary_factor=1.0).resolve(facts).partial_rotary_factor == 1.0
