"""Where the search starts from, and how individuals come about."""

import math
from random import Random

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import hf_posswap as hp
from hf_posswap.schemes import Geometry
from hf_posswap.search.individuals import Individual, Space, ancestors, children, critical_factors, crossed, mutated


def geometry(head_dim: int, trained_length: int, theta: float) -> Geometry:
    return Geometry(
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        hidden_size=2 * head_dim,
        num_hidden_layers=1,
        trained_length=trained_length,
        causal=True,
        rope_theta=theta,
    )


def found(head_dim: int, length: int, theta: float, factor: float, attention: object = "search") -> list[Individual]:
    model = geometry(head_dim, length, theta)
    base = hp.RoPE().resolve(model)
    others = [c(factor=factor).resolve(model) for c in (hp.LinearRoPE, hp.NTKRoPE, hp.YaRN)]
    return ancestors(base, others, model, factor, attention)


@pytest.mark.parametrize(("head_dim", "length", "theta"), [(32, 64, 1e4), (128, 4096, 1e4), (64, 2048, 5e5)])
@pytest.mark.parametrize("factor", [2.0, 4.0, 32.0])
def test_starts_from_transformers_yarn_linear_and_from_ntk(
    head_dim: int, length: int, theta: float, factor: float
) -> None:
    linear, ntk, yarn, _ = found(head_dim, length, theta, factor)
    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": length,
    }
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=int(factor * length),
        rope_parameters=parameters,
    )
    theirs, scaling = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    kept = [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
    assert yarn.factors == pytest.approx([k / t for k, t in zip(kept, theirs.tolist(), strict=True)], rel=1e-5)
    assert yarn.attention_factor == pytest.approx(scaling)
    assert linear.factors == pytest.approx([factor] * (head_dim // 2))
    larger = theta * factor ** (head_dim / (head_dim - 2))
    assert ntk.factors == pytest.approx([k * larger ** (2 * i / head_dim) for i, k in enumerate(kept)])
    assert linear.attention_factor == ntk.attention_factor == 1.0


@pytest.mark.parametrize("given", [None, 1.25])
def test_a_given_attention_factor_is_that_of_all(given: float | None) -> None:
    assert {individual.attention_factor for individual in found(32, 64, 1e4, 4.0, given)} == {given}


@pytest.mark.parametrize(("pairs", "length", "theta"), [(64, 4096, 1e4), (16, 64, 1e4), (32, 8192, 5e5), (4, 4, 1e4)])
def test_pairs_that_never_turned_whole_are_interpolated(pairs: int, length: int, theta: float) -> None:
    factors = critical_factors(pairs, theta, length, 8.0)
    for i, factor in enumerate(factors):
        whole_turn = 2 * math.pi * theta ** (i / pairs)
        assert (factor == 8.0) == (whole_turn >= length)
    assert list(factors) == sorted(factors)
    assert min(factors) >= 1


def test_all_of_them_are_in_order_and_between_the_bounds() -> None:
    random = Random(torch.randint(2**31, ()).item())
    for factor in (1.5, 4.0, 64.0):
        parents = found(32, 64, 1e4, factor)
        space = Space(highest=1.25 * factor, attention=True)
        for _ in range(20):
            born = children(parents, 24, 12, set(parents), random=random, space=space)
            assert len({*born, *parents}) == 24 + len(parents)
            for child in born:
                assert list(child.factors) == sorted(child.factors)
                assert child.factors[0] >= 1
                assert child.factors[-1] <= space.highest
                assert 0.5 <= (child.attention_factor or 0) <= 2
            parents = born


def test_a_crossed_one_lies_between_its_parents() -> None:
    random = Random(torch.randint(2**31, ()).item())
    for _ in range(200):
        one, other = (
            Individual(tuple(sorted(random.uniform(1, 9) for _ in range(8))), random.uniform(1, 2)) for _ in range(2)
        )
        child = crossed(one, other, random)
        assert child.attention_factor in (one.attention_factor, other.attention_factor)
        for a, b, c in zip(one.factors, other.factors, child.factors, strict=True):
            assert min(a, b) <= c <= max(a, b)


def test_mutation_leaves_attention_alone_unless_it_is_searched() -> None:
    random = Random(0)
    parent = Individual((1.0, 2.0, 3.0), 1.1)
    fixed = {mutated(parent, random, Space(5.0, attention=False)).attention_factor for _ in range(50)}
    searched = {mutated(parent, random, Space(5.0, attention=True)).attention_factor for _ in range(50)}
    assert fixed == {1.1}
    assert len(searched) > 5


def test_ends_where_nothing_new_can_be_found() -> None:
    space = Space(highest=1.03, attention=False)
    everything = {Individual((f,), None) for f in (1.0, 1.01, 1.02, 1.03)}
    assert children(list(everything), 8, 4, everything, random=Random(0), space=space) == []
    assert (
        len(children([Individual((1.0,), None)], 8, 4, [Individual((1.0,), None)], random=Random(0), space=space)) == 3
    )
