"""xPos against the paper's equation written out pair by pair, also where the paper's own factors overflow."""

import cmath

import pytest
import torch

from hf_posswap import SchemeError, XPos

DIM, HEADS = 8, 2


def pair_matrix(distance, rope_theta=1e4, scale_base=512.0, gamma=0.4):
    """`M` with `score = q M k`: the real part of `q conj(k) e^(i theta r) zeta^(r / scale_base)`, pair by pair."""
    matrix = torch.zeros(DIM, DIM, dtype=torch.float64)
    for i in range(DIM // 2):
        zeta = (2 * i / DIM + gamma) / (1 + gamma)
        turned = cmath.exp(1j * distance * rope_theta ** (-2 * i / DIM)) * zeta ** (distance / scale_base)
        for a, query in ((i, 1), (i + DIM // 2, 1j)):
            for b, key in ((i, 1), (i + DIM // 2, -1j)):
                matrix[a, b] = (query * key * turned).real
    return matrix


def some_causal_pairs(queries, keys, real, most=300):
    """`(row, query, key)` of up to `most` pairs, half of them the closest ones: `queries [B, Q]`, `keys [B, K]`."""
    distances = queries[:, :, None] - keys[:, None, :]
    found = ((distances >= 0) & real[:, -queries.shape[1] :, None] & real[:, None, :]).nonzero()
    order = distances[tuple(found.T)].argsort(stable=True)
    chosen = torch.cat((order[: most // 2], order[torch.randint(0, len(order), (most // 2,))]))
    return sorted(set(map(tuple, found[chosen].tolist())))


def written_out(query, key, queries, keys, pairs, fields):
    """Scores of `pairs`, zero elsewhere, random upstream gradients for them, and what these make of query and key."""
    shape = (*query.shape[:3], key.shape[2])
    scores, upstream = torch.zeros(2, *shape, dtype=torch.float64)
    query, key = query.detach().double(), key.detach().double()
    query_grad, key_grad = torch.zeros_like(query), torch.zeros_like(key)
    for row, i, j in pairs:
        matrix = pair_matrix(int(queries[row, i] - keys[row, j]), **fields)
        weight = upstream[row, :, i, j] = torch.randn(HEADS)
        scores[row, :, i, j] = ((query[row, :, i] @ matrix) * key[row, :, j]).sum(-1)
        query_grad[row, :, i] += weight[:, None] * (key[row, :, j] @ matrix.T)
        key_grad[row, :, j] += weight[:, None] * (query[row, :, i] @ matrix)
    return scores, upstream, query_grad, key_grad


@pytest.fixture(scope="session")
def agrees(geometry, assert_close):
    """Scores and gradients of causal pairs of real tokens as written out, and nothing infinite anywhere."""

    def check(
        queries, keys, tolerance, dtype=torch.float32, real=None, own=None, cast=lambda encoding: encoding, **fields
    ):
        own = torch.arange(keys.shape[1])[-queries.shape[1] :] if own is None else own
        facts = geometry(head_dim=DIM)
        built = XPos(**fields).resolve(facts).build(facts)
        encoding = cast(built.double() if dtype == torch.float64 else built)
        shapes = ((len(keys), HEADS, queries.shape[1], DIM), (len(keys), HEADS, keys.shape[1], DIM))
        query, key = (torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
        scores = encoding(query, key, encoding.tables(queries), encoding.tables(keys), own)
        assert scores.isfinite().all(), "a score is infinite or no number"
        queries, real = queries.expand(len(keys), -1), torch.ones_like(keys).bool() if real is None else real
        pairs = some_causal_pairs(queries, keys, real)
        expected, upstream, query_grad, key_grad = written_out(query, key, queries, keys, pairs, fields)
        assert_close(scores.double() * (upstream != 0), expected, tolerance)
        (scores * upstream).sum().backward()
        assert_close(query.grad, query_grad, tolerance)
        assert_close(key.grad, key_grad, tolerance)

    return check


# At a million float64 angles have ten digits left.
@pytest.mark.parametrize(("start", "tolerance"), [(0, 1e-12), (1_000_000, 1e-9)])
@pytest.mark.parametrize(
    "fields",
    [{}, {"rope_theta": 5e5}, {"scale_base": 32.0, "gamma": 2.0}, {"gamma": 1e-6}, {"scale_base": 1e9}],
    ids=str,
)
def test_float64(start, tolerance, fields, agrees) -> None:
    positions = torch.arange(start, start + 40)[None].expand(2, -1)
    agrees(positions, positions, tolerance, torch.float64, **fields)


def test_float32_at_a_million_whatever_the_cast(cast, agrees) -> None:
    positions = 1_000_000 + torch.stack([torch.randperm(300)[:60].sort().values for _ in range(2)])
    agrees(positions, positions, 1e-6, cast=cast)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_half_precision(dtype, tolerance, agrees) -> None:
    positions = 1_000_000 + torch.arange(60)[None]
    agrees(positions, positions, tolerance, dtype, cast=lambda encoding: encoding.to(dtype))


def test_a_block_of_queries_far_behind_its_keys(agrees) -> None:
    # zeta^(-k/512) is beyond float32 from 36,000 on, the decay of the first pair below it.
    keys = torch.arange(60_000)[None]
    agrees(keys[:, -16:], keys, 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_query_behind_a_million_keys_apart(dtype, agrees) -> None:
    keys = torch.cat((torch.arange(0, 10**6, 997), torch.tensor([10**6])))[None]
    agrees(keys[:, -1:], keys, 1e-6, dtype)


@pytest.mark.parametrize("pad_position", [0, 1])
def test_left_padding(pad_position, agrees) -> None:
    real = torch.ones(3, 30, dtype=torch.bool)
    real[1, :7] = real[2, :22] = False
    positions = (real.cumsum(-1) - 1).masked_fill(~real, pad_position)
    agrees(positions, positions, 1e-6, real=real)
    agrees(positions[:, -4:], positions, 1e-6, real=real)


def test_rows_that_share_their_queries(agrees) -> None:
    keys = torch.randint(0, 500, (3, 40)).sort(-1).values
    agrees(torch.arange(500, 510)[None], keys, 1e-6)


def test_rows_a_million_apart(agrees) -> None:
    positions = torch.tensor([[0], [1_000_000], [40_000]]) + torch.arange(20)
    agrees(positions, positions, 1e-6)


def test_slots_of_a_cache_that_nothing_was_written_to_yet(agrees) -> None:
    # The causal mask hides them, but an infinite score would still reach the gradients.
    keys = torch.arange(100_000)[None]
    agrees(keys[:, 20:30], keys, 1e-6, own=torch.arange(20, 30))


# Skipped positions (PoSE) put both sides of a jump into one block; eager attention has one block for all queries.
@pytest.mark.parametrize(
    ("dtype", "tolerance", "jump"),
    [(torch.float32, 1e-6, jump) for jump in (1000, 30_000, 50_000, 1_000_000)]
    + [(torch.float16, 2e-3, 1000), (torch.float16, 2e-3, 8000), (torch.bfloat16, 2e-2, 50_000)],
)
def test_positions_that_jump_within_a_block(dtype, tolerance, jump, agrees) -> None:
    positions = torch.cat((torch.arange(8), torch.arange(8) + jump))[None]
    agrees(positions, positions, tolerance, dtype, cast=lambda encoding: encoding.to(dtype))


@pytest.mark.parametrize("fields", [{"scale_base": 1.0}, {"scale_base": 4.0, "gamma": 1e-6}], ids=str)
def test_fast_decays_over_a_block(fields, agrees) -> None:
    positions = torch.arange(200)[None]
    agrees(positions, positions, 1e-6, **fields)


def test_cos_and_sin_at_a_million_whatever_the_cast(cast, geometry) -> None:
    encoding = cast(XPos().resolve(geometry(head_dim=DIM)).build(geometry(head_dim=DIM)))
    positions = 1_000_000 + torch.randint(-1000, 1000, (2, 9))
    frequencies = torch.tensor([1e4 ** (-2 * i / DIM) for i in range(DIM // 2)], dtype=torch.float64)
    angles = positions[..., None].double() * frequencies
    same, cos, sin = encoding.tables(positions)
    assert torch.equal(same, positions)
    assert cos.dtype == sin.dtype == torch.float32
    assert ((cos - angles.cos()).abs() <= 2e-7).all()
    assert ((sin - angles.sin()).abs() <= 2e-7).all()


def test_what_xpos_is_to_a_model(geometry) -> None:
    assert XPos().resolve(geometry(rope_theta=5e5)).rope_theta == 5e5
    assert XPos().rope_parameters(geometry()) is None
    assert "after the query" in XPos.causal_only
    with pytest.raises(SchemeError, match="even head_dim"):
        XPos().resolve(geometry(head_dim=7))
