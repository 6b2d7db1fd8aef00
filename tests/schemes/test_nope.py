"""No position: nothing is built, and transformers' own way to say it is a rotation by zero."""

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_posswap import NoPE


def test_nothing_is_built(geometry) -> None:
    assert NoPE().build(geometry()) is None
    assert NoPE().resolve(geometry()) == NoPE()
    assert NoPE().limit() is NoPE().max_length(geometry()) is None
    assert not NoPE.has_order


def test_in_transformers_words_no_pair_turns(geometry, llama_config) -> None:
    for facts in (geometry(head_dim=64), geometry(head_dim=64, rope_theta=5e5)):
        parameters = NoPE().rope_parameters(facts)
        frequencies, scaling = ROPE_INIT_FUNCTIONS["proportional"](llama_config(64, 4096, dict(parameters)))
        assert torch.equal(frequencies, torch.zeros(32))
        assert scaling == 1.0
        assert parameters["rope_theta"] == (facts.rope_theta or 1e4)
