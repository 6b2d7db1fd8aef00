"""Frequencies by the segment of each query, against loops in plain Python written from the papers."""

import cmath
import copy
import math
import pickle
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from hf_posswap import DynamicNTKRoPE, LongRoPE, RoPE, YaRN
from hf_posswap.schemes.length_dependent import doublings

TRAINED, DIM, HEADS = 8, 8, 2
LISTS = {"long_factor": (1.0, 2.0, 3.0, 4.0), "short_factor": (1.0, 1.1, 1.2, 1.3)}
SCHEMES = {
    "dynamic": DynamicNTKRoPE(factor=2.0),
    "dynamic_at_1": DynamicNTKRoPE(factor=1.0),
    "longrope": LongRoPE(factor=4.0, **LISTS),
    "longrope_at_1": LongRoPE(factor=1.0, **LISTS),
    "yarn": YaRN(factor=6.0, mode="segment", beta_fast=1.2, beta_slow=0.05),
    "yarn_at_1": YaRN(factor=1.0, mode="segment"),
}
GEOMETRIES = {
    "half": {},
    "interleaved": {"pairing": "interleaved"},
    "half_prefix": {"head_dim": 12, "partial_rotary_factor": 0.67, "rotates_prefix": True},
    "interleaved_prefix": {
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "rotates_prefix": True,
        "pairing": "interleaved",
    },
    "half_still": {"head_dim": 12, "partial_rotary_factor": 0.67},
    "interleaved_still": {"head_dim": 12, "partial_rotary_factor": 0.67, "pairing": "interleaved"},
}
"""All of them turn 8 dimensions."""


def length_of(scheme, position):
    """The length whose frequencies a query at `position` has, by the definition of the mode."""
    if scheme.name == "longrope":
        return TRAINED if position < TRAINED else TRAINED + 1
    length = TRAINED
    while length <= position:
        length *= 2
    return length


def scalar_frequencies(scheme, position):
    """Frequencies and the factor on cos and sin for a query at `position`, from the papers."""
    length, factor, pairs = length_of(scheme, position), scheme.factor, range(DIM // 2)
    if scheme.name == "dynamic":
        base = 1e4 * (factor * length / TRAINED - (factor - 1)) ** (DIM / (DIM - 2))
        return [base ** (-2 * i / DIM) for i in pairs], 1.0
    kept = [1e4 ** (-2 * i / DIM) for i in pairs]
    if scheme.name == "longrope":
        lists = scheme.short_factor if length == TRAINED else scheme.long_factor
        scaling = math.sqrt(1 + math.log(factor) / math.log(TRAINED))
        return [f / x for f, x in zip(kept, lists, strict=True)], scaling
    factor = min(length / TRAINED, factor)
    turns = (TRAINED / (2 * math.pi * beta) for beta in (scheme.beta_fast, scheme.beta_slow))
    low, high = (DIM * math.log(turn) / (2 * math.log(1e4)) for turn in turns)
    low, high = max(math.floor(low), 0), min(math.ceil(high), DIM - 1)
    high += 0.001 if low == high else 0
    share = [min(max((i - low) / (high - low), 0), 1) for i in pairs]
    found = [s * f / factor + (1 - s) * f for s, f in zip(share, kept, strict=True)]
    return found, 0.1 * math.log(factor) + 1


def facts_of(geometry, name):
    return geometry(**{"head_dim": DIM, "trained_length": TRAINED, **GEOMETRIES[name]})


def the_pairs(facts):
    """The pairs of dimensions that turn, and the rest."""
    width = DIM if facts.rotates_prefix else facts.head_dim
    half = facts.pairing == "half"
    pairs = [(i, i + width // 2) if half else (2 * i, 2 * i + 1) for i in range(DIM // 2)]
    return pairs, sorted(set(range(facts.head_dim)) - {i for pair in pairs for i in pair})


def score_matrix(scheme, facts, query_position, key_position):
    """`M` with `score = q M k`: the real part of `q conj(k) e^(i theta r)`, pair by pair."""
    (frequencies, scaling), (pairs, rest) = scalar_frequencies(scheme, query_position), the_pairs(facts)
    matrix = torch.zeros(facts.head_dim, facts.head_dim, dtype=torch.float64)
    for (i, j), frequency in zip(pairs, frequencies, strict=True):
        turned = scaling**2 * cmath.exp(1j * frequency * (query_position - key_position))
        for a, query in ((i, 1), (j, 1j)):
            for b, key in ((i, 1), (j, -1j)):
                matrix[a, b] = (query * key * turned).real
    matrix[rest, rest] = 1.0
    return matrix


@pytest.fixture(scope="session")
def agrees(geometry, assert_close):
    """Scores and gradients as written out, for `queries [1 or B, Q]` and `keys [1 or B, K]`."""

    def check(scheme, facts, queries, keys, tolerance, dtype=torch.float64, cast=lambda encoding: encoding):
        scheme = scheme.resolve(facts)
        encoding = cast(scheme.build(facts))
        rows, (q, k) = max(len(queries), len(keys)), (queries.shape[1], keys.shape[1])
        query, key = (torch.randn(rows, HEADS, n, facts.head_dim).to(dtype).requires_grad_() for n in (q, k))
        scores = encoding(query, key, encoding.tables(queries), encoding.tables(keys), torch.arange(k)[-q:])
        assert scores.dtype == dtype
        upstream = torch.randn_like(scores)
        both = zip(queries.expand(rows, -1).tolist(), keys.expand(rows, -1).tolist(), strict=True)
        matrices = [score_matrix(scheme, facts, i, j) for row in both for i in row[0] for j in row[1]]
        matrix = torch.stack(matrices).view(rows, q, k, facts.head_dim, facts.head_dim)
        inputs = [x.detach().double().requires_grad_() for x in (query, key)]
        expected = torch.einsum("bhqd,bqkde,bhke->bhqk", inputs[0], matrix, inputs[1])
        assert_close(scores, expected, tolerance)
        found = torch.autograd.grad((scores * upstream).sum(), (query, key))
        wanted = torch.autograd.grad((expected * upstream).sum(), inputs)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.dtype == dtype
            assert_close(mine, theirs, tolerance)

    return check


@pytest.mark.parametrize("shape", GEOMETRIES)
@pytest.mark.parametrize("name", SCHEMES)
def test_scores_and_gradients(name, shape, geometry, agrees) -> None:
    positions = torch.stack((torch.arange(20), torch.randperm(60)[:20].sort().values))
    agrees(SCHEMES[name], facts_of(geometry, shape), positions, positions, 1e-12)


@pytest.mark.parametrize("shape", GEOMETRIES)
@pytest.mark.parametrize("name", SCHEMES)
def test_one_query_a_row_in_rows_of_different_segments(name, shape, geometry, agrees) -> None:
    last = torch.tensor([3, 7, 8, 15, 16, 40, 100])
    keys = (last[:, None] - torch.arange(6).flip(0)).clamp(min=0)
    agrees(SCHEMES[name], facts_of(geometry, shape), last[:, None], keys, 1e-12)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("name", SCHEMES)
def test_rows_that_share_their_positions(name, length, geometry, agrees) -> None:
    facts, keys = facts_of(geometry, "half"), torch.randint(0, 40, (3, 9))
    agrees(SCHEMES[name], facts, torch.arange(30, 30 + length)[None], keys, 1e-12)
    agrees(SCHEMES[name], facts, torch.randint(0, 40, (3, length)), torch.arange(9)[None], 1e-12)
    agrees(SCHEMES[name], facts, torch.arange(6, 6 + length)[None], torch.arange(9)[None], 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("queries", [1, 12])
@pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn"])
def test_dtypes(name, queries, dtype, tolerance, geometry, agrees) -> None:
    keys = torch.randint(0, 50, (2, 12)).sort(-1).values
    agrees(SCHEMES[name], facts_of(geometry, "half"), keys[:, -queries:], keys, tolerance, dtype)


@pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn"])
def test_a_million_whatever_the_cast(name, cast, geometry, agrees) -> None:
    # Angles of a million radians have ten digits left in float64, and what is lost would show in float32.
    keys = torch.cat((torch.arange(6), 1_000_000 + torch.randperm(1000)[:14].sort().values))[None]
    for queries in (keys, keys[:, -1:]):
        agrees(SCHEMES[name], facts_of(geometry, "half"), queries, keys, 1e-6, torch.float32, cast)
        agrees(SCHEMES[name], facts_of(geometry, "half"), queries, keys, 1e-9, torch.float64, cast)


@pytest.mark.parametrize("name", SCHEMES)
def test_borders(name, geometry, assert_frequencies) -> None:
    facts = facts_of(geometry, "half")
    scheme = SCHEMES[name].resolve(facts)
    encoding = scheme.build(facts)
    positions = [0, 7, 8, 15, 16, 31, 32, 47, 48, 63, 64, 127, 128, 10**6, 2**24 - 1]
    segments = encoding.segments(torch.tensor([positions]))
    assert segments.shape == (1, len(positions))
    for position, segment in zip(positions, segments[0].tolist(), strict=True):
        frequencies, scaling = scalar_frequencies(scheme, position)
        assert_frequencies(encoding.inv_freq[segment], torch.tensor(frequencies, dtype=torch.float64), 1e-12)
        assert abs(float(encoding.scaling[segment]) - scaling) <= 1e-14
    assert encoding.segments(torch.tensor([[7]])) == 0


@pytest.mark.parametrize(("name", "kind"), [("dynamic", "dynamic"), ("longrope", "longrope")])
def test_every_segment_has_the_frequencies_of_transformers_at_its_end(
    name, kind, geometry, llama_config, assert_frequencies
) -> None:
    facts = facts_of(geometry, "half")
    scheme = SCHEMES[name].resolve(facts)
    native = replace(scheme, mode="call").rope_parameters(facts)
    encoding = scheme.build(facts)
    for segment, end in enumerate(scheme.segment_lengths()):
        expected, scaling = ROPE_INIT_FUNCTIONS[kind](llama_config(DIM, TRAINED, native), seq_len=end)
        assert_frequencies(encoding.inv_freq[segment], expected, 4e-6)
        assert abs(float(encoding.scaling[segment]) - scaling) <= 1e-12
        last = min(end, 2**24) - 1
        assert encoding.segments(torch.tensor([[last]])) == segment


@given(original=st.integers(1, 5000), last=st.integers(1, 2**24))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_doublings(original, last) -> None:
    lengths = doublings(original, last)
    assert lengths[0] == original
    assert lengths[-1] == max(original, last)
    assert all(a < b <= 2 * a for a, b in pairwise(lengths))
    assert all(2 * a == b for a, b in pairwise(lengths[:-1]))


@given(original=st.integers(1, 5000), factor=st.floats(1.0, 64.0))
@settings(deadline=None, max_examples=100, derandomize=True)
def test_the_last_segment_of_yarn_is_yarn(original, factor, geometry) -> None:
    facts = geometry(trained_length=original)
    static, segmented = (YaRN(factor=factor, mode=mode).resolve(facts) for mode in ("static", "segment"))
    encoding = segmented.build(facts)
    far = encoding.segments(torch.tensor([[2**24]]))[0, 0]
    assert torch.allclose(encoding.inv_freq[far], static.inv_freq(facts), rtol=1e-14, atol=0)
    assert abs(encoding.scaling[far] - static.scaling(facts)) <= 1e-14


def test_within_the_trained_length_it_is_rope(geometry, assert_close) -> None:
    facts, positions = facts_of(geometry, "half"), torch.arange(TRAINED)[None]
    query, key = torch.randn(2, 1, HEADS, TRAINED, DIM, dtype=torch.float64)
    cos, sin = RoPE().resolve(facts).build(facts).rotation(positions, torch.float64)
    turned = apply_rotary_pos_emb(query, key, cos, sin)
    expected = turned[0] @ turned[1].transpose(-1, -2)
    for scheme in (SCHEMES["dynamic"], SCHEMES["yarn"], LongRoPE(long_factor=(1.0, 2.0, 3.0, 4.0), factor=1.0)):
        encoding = scheme.resolve(facts).build(facts)
        scores = encoding(query, key, (positions,), (positions,), torch.arange(TRAINED))
        assert_close(scores, expected, 1e-14)


@pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn"])
def test_a_block_of_queries_is_its_queries_one_by_one(name, geometry, assert_close) -> None:
    facts, positions = facts_of(geometry, "interleaved"), torch.randint(0, 100, (3, 11))
    encoding = SCHEMES[name].resolve(facts).build(facts)
    query, key = torch.randn(2, 3, HEADS, 11, DIM, dtype=torch.float64)
    block = encoding(query, key, (positions,), (positions,), torch.arange(11))
    for i in range(11):
        one = slice(i, i + 1)
        alone = encoding(query[:, :, one], key, (positions[:, one],), (positions,), torch.tensor([i]))
        assert_close(block[:, :, one], alone, 1e-14)


@pytest.mark.parametrize("mode", ["segment", "static", "call"])
@pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn"])
def test_a_mode_is_kept_by_copies(name, mode, geometry) -> None:
    facts = facts_of(geometry, "half")
    scheme = replace(SCHEMES[name], mode=mode).resolve(facts)
    assert scheme.kind == ("score" if mode == "segment" else "rotary")
    assert bool(scheme.refuses_cache) == (mode == "call")
    for again in (pickle.loads(pickle.dumps(scheme)), copy.deepcopy(scheme), replace(scheme)):
        assert (again, again.kind, again.refuses_cache) == (scheme, scheme.kind, scheme.refuses_cache)
    assert replace(scheme, mode="static").refuses_cache is None


def test_yarn_is_static_unless_told_otherwise(geometry) -> None:
    facts = facts_of(geometry, "half")
    assert YaRN(factor=4.0).mode == "static"
    assert YaRN(factor=4.0).kind == "rotary"
    for mode in ("segment", "call"):
        assert YaRN(factor=4.0, mode=mode).resolve(facts).rope_parameters(facts) is None


@pytest.mark.parametrize("length", [3, 8, 9, 30, 48, 100])
def test_yarn_by_call_is_yarn_with_the_factor_of_the_length(length, geometry, stock_rotary, assert_rotation) -> None:
    facts = facts_of(geometry, "half")
    scheme = YaRN(factor=6.0, mode="call", beta_fast=1.2, beta_slow=0.05).resolve(facts)
    factor = min(max(length / TRAINED, 1.0), 6.0)
    said = replace(scheme, factor=factor, mode="static").rope_parameters(facts)
    x, positions = torch.empty(1), torch.arange(length)[None]
    assert_rotation(scheme.build(facts)(x, positions), stock_rotary(DIM, round(TRAINED * factor), said)(x, positions))


@pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn"])
def test_call_at_a_million_whatever_the_cast(name, cast, geometry) -> None:
    facts = facts_of(geometry, "half")
    scheme = replace(SCHEMES[name], mode="call").resolve(facts)
    encoding, positions = cast(scheme.build(facts)), 1_000_000 + torch.randint(-1000, 1000, (2, 9))
    for row, found in enumerate(zip(*encoding(torch.empty(1), positions), strict=True)):
        length = torch.tensor(float(positions[row].max() + 1), dtype=torch.float64)
        inv_freq, scaling = scheme.frequencies(length, facts)
        products = [[p * f for f in inv_freq.tolist()] * 2 for p in positions[row].tolist()]
        angles = torch.tensor(products, dtype=torch.float64)
        for actual, expected in zip(found, (angles.cos(), angles.sin()), strict=True):
            assert ((actual - expected * scaling).abs() <= 2e-7 * scaling).all()


@pytest.mark.parametrize("mode", ["static", "call"])
@pytest.mark.parametrize("name", ["dynamic", "longrope", "yarn"])
def test_pairs_that_stand_still_are_not_scaled_either(name, mode, geometry, assert_close) -> None:
    facts = facts_of(geometry, "half_still")
    scheme = replace(SCHEMES[name], mode=mode).resolve(facts)
    positions = torch.arange(30).expand(2, -1)
    cos, sin = scheme.build(facts).rotation(positions, torch.float64)
    length = torch.tensor(scheme.longest if mode == "static" else 30.0, dtype=torch.float64)
    inv_freq, scaling = scheme.frequencies(length, facts)
    for pair in range(6):
        angles = positions * (inv_freq[pair] if pair < 4 else 0.0)
        for column in (pair, pair + 6):
            assert_close(cos[..., column], angles.cos() * (scaling if pair < 4 else 1.0), 1e-12)
            assert (sin[..., column] - angles.sin() * scaling).abs().max() <= 1e-12
