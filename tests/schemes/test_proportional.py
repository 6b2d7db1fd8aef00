"""p-RoPE against transformers' "proportional" and against its definition."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from hf_posswap import ProportionalRoPE, RoPE, SchemeError


def whole_frequencies(scheme, facts):
    """The frequencies of all pairs, those that stand still included."""
    return torch.cat((scheme.inv_freq(facts), torch.zeros(scheme.still(facts), dtype=torch.float64)))


@given(
    half_dim=st.integers(1, 64),
    part=st.floats(0.0, 1.0),
    theta=st.floats(10.0, 1e7),
    factor=st.floats(1.0, 64.0),
    prefix=st.booleans(),
)
@settings(deadline=None, max_examples=80, derandomize=True)
def test_frequencies(half_dim, part, theta, factor, prefix, geometry, llama_config, assert_close) -> None:
    dim = 2 * half_dim
    turning = int(part * dim // 2)
    assume(turning)
    facts = geometry(head_dim=dim, rotates_prefix=prefix, partial_rotary_factor=0.5)
    scheme = ProportionalRoPE(partial_rotary_factor=part, rope_theta=theta, factor=factor).resolve(facts)
    actual = whole_frequencies(scheme, facts)
    for said in (
        {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": part, "factor": factor},
        scheme.rope_parameters(facts),
    ):
        stock, scaling = ROPE_INIT_FUNCTIONS["proportional"](llama_config(dim, 4096, said))
        assert len(stock) == half_dim
        ratio = actual[:turning] / stock[:turning].double()
        assert (ratio - 1).abs().max() <= 4e-6
        assert torch.equal(stock[turning:].double(), actual[turning:])
        assert scaling == 1.0
    scalars = [theta ** (-2 * i / dim) / factor if i < turning else 0.0 for i in range(half_dim)]
    assert_close(actual, torch.tensor(scalars, dtype=torch.float64), 1e-12)
    read = {**scheme.rope_parameters(facts), "max_position_embeddings": 4096}
    assert ProportionalRoPE.from_rope_parameters(read).resolve(facts) == scheme


@pytest.mark.parametrize("part", [0.25, 0.75, 1.0])
@pytest.mark.parametrize("prefix", [False, True])
def test_cos_and_sin_are_those_of_llama(part, prefix, geometry, stock_rotary, assert_rotation) -> None:
    facts = geometry(head_dim=16, rotates_prefix=prefix)
    scheme = ProportionalRoPE(partial_rotary_factor=part, factor=2.0).resolve(facts)
    positions, x = torch.randint(0, 200, (2, 9)), torch.randn(2, 3, 9, 16)
    ours = scheme.build(facts)(x, positions)
    stock = stock_rotary(16, 4096, scheme.rope_parameters(facts))(x, positions)
    assert_rotation(ours, stock)
    turned = apply_rotary_pos_emb(x, x, *ours)[0]
    still = [i for pair in range(int(8 * part), 8) for i in (pair, pair + 8)]
    assert torch.equal(turned[..., still], x[..., still])


def test_all_pairs_are_rope_itself(geometry) -> None:
    facts = geometry()
    scheme = ProportionalRoPE(partial_rotary_factor=1.0).resolve(facts)
    assert torch.equal(scheme.inv_freq(facts), RoPE().resolve(facts).inv_freq(facts))
    assert scheme.still(facts) == 0


def test_the_pairs_that_turn_keep_the_frequencies_of_full_rope(geometry) -> None:
    facts = geometry()
    scheme, rope = ProportionalRoPE().resolve(facts), RoPE().resolve(facts)
    assert scheme.partial_rotary_factor == 0.75
    assert torch.equal(scheme.inv_freq(facts), rope.inv_freq(facts)[:24])
    # Partial RoPE spreads the frequencies over what turns; that is another scheme.
    partial = RoPE(partial_rotary_factor=0.75).resolve(facts)
    assert not torch.allclose(partial.inv_freq(facts), scheme.inv_freq(facts))


@pytest.mark.parametrize("part", [0.0, 0.03])
def test_no_pair_at_all_is_refused(part, geometry) -> None:
    with pytest.raises(SchemeError, match=r"of 32 pairs none turns with .*; that is the scheme nope"):
        ProportionalRoPE(partial_rotary_factor=part).resolve(geometry())
