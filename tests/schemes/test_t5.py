"""T5's bias against transformers' T5Attention; its bucket borders against integer arithmetic."""

import math

import pytest
import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

from hf_posswap import SchemeError, T5Bias
from hf_posswap.schemes.t5 import t5_bucket

SIZES = [(32, 128), (32, 1000), (64, 128), (16, 20), (8, 131072), (2, 2), (2, 7), (3, 50), (33, 400)]
CASES = [(*size, True) for size in SIZES]
CASES += [(buckets, distance, False) for buckets, distance in SIZES if buckets >= 4 and buckets % 2 == 0]


def exact_bucket(distance, num_buckets, max_distance, causal):
    """T5's definition without a logarithm: bucket `exact + j` begins where `(d/exact)^n >= (max/exact)^j`."""
    if not causal:
        num_buckets //= 2
        later = num_buckets if distance < 0 else 0
        return later + exact_bucket(abs(distance), num_buckets, max_distance, True)
    distance, exact = max(distance, 0), num_buckets // 2
    n = num_buckets - exact
    if distance < exact:
        return distance
    reached = [j for j in range(n) if distance**n * exact**j >= max_distance**j * exact**n]
    return exact + reached[-1]


def near_border(distances, num_buckets, max_distance, causal):
    """Where float32 cannot tell on which side of a border of the logarithmic buckets a distance lies."""
    num_buckets = num_buckets if causal else num_buckets // 2
    exact = num_buckets // 2
    scale = (num_buckets - exact) / math.log(max_distance / exact)
    place = torch.log(distances.abs().clamp(min=1).double() / exact) * scale
    return (distances.abs() >= exact) & ((place - place.round()).abs() < 1e-5 * (1 + place.abs()))


def some_distances(num_buckets, max_distance, causal):
    """All near ones, random far ones, and the last and first few on both sides of every border."""
    num_buckets = num_buckets if causal else num_buckets // 2
    exact = num_buckets // 2
    steps = torch.arange(num_buckets - exact + 1).double() / (num_buckets - exact)
    borders = (exact * (max_distance / exact) ** steps).round().long()
    around = (borders[:, None] + torch.arange(-2, 3)).flatten()
    far = torch.randint(-3 * max_distance, 3 * max_distance, (500,))
    return torch.cat((torch.arange(-300, 300), far, around, -around))


@pytest.mark.parametrize(("num_buckets", "max_distance", "causal"), CASES)
def test_buckets_against_integers(num_buckets, max_distance, causal) -> None:
    distances = some_distances(num_buckets, max_distance, causal)
    expected = [exact_bucket(distance, num_buckets, max_distance, causal) for distance in distances.tolist()]
    assert t5_bucket(distances, num_buckets, max_distance, causal).tolist() == expected


@pytest.mark.parametrize(("num_buckets", "max_distance", "causal"), CASES)
def test_buckets_against_t5_away_from_borders(num_buckets, max_distance, causal) -> None:
    distances = some_distances(num_buckets, max_distance, causal)
    settings = {"bidirectional": not causal, "num_buckets": num_buckets, "max_distance": max_distance}
    # T5 counts from the query to the key.
    expected = T5Attention._relative_position_bucket(-distances, **settings)
    # Its logarithm is float32 and on a border may fall to either side.
    clear = ~near_border(distances, num_buckets, max_distance, causal)
    assert clear.float().mean() > 0.6
    assert torch.equal(t5_bucket(distances, num_buckets, max_distance, causal)[clear], expected[clear])


def test_borders_that_are_whole_numbers_begin_their_bucket() -> None:
    # An encoder's 8 logarithmic buckets run from 8 to 128 = 8 * 16: every other border is a power of two.
    borders = torch.tensor([8, 16, 32, 64, 128])
    assert t5_bucket(borders, 32, 128, causal=False).tolist() == [8, 10, 12, 14, 15]
    assert t5_bucket(borders[1:4] - 1, 32, 128, causal=False).tolist() == [9, 11, 13]
    assert t5_bucket(-borders, 32, 128, causal=False).tolist() == [24, 26, 28, 30, 31]


def stock_attention(num_buckets, max_distance, causal):
    config = T5Config(
        d_model=16,
        d_kv=2,
        num_heads=8,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
        is_decoder=causal,
    )
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    attention.relative_attention_bias.weight.data.normal_()
    return attention


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (16, 50)])
def test_bias_and_gradient_against_t5(num_buckets, max_distance, causal, geometry, assert_close) -> None:
    stock = stock_attention(num_buckets, max_distance, causal)
    expected = stock.compute_bias(40, 200, past_seen_tokens=160)
    ours = T5Bias(num_buckets=num_buckets, max_distance=max_distance).build(geometry(causal=causal)).double()
    assert (ours.relative_attention_bias == 0).all()
    ours.relative_attention_bias.data.copy_(stock.relative_attention_bias.weight)
    keys = torch.arange(200)[None] + torch.randint(0, 1000, ())
    actual = ours((keys[:, 160:],), (keys,))
    distances = keys[:, 160:, None] - keys[:, None, :]
    clear = ~near_border(distances, num_buckets, max_distance, causal)[:, None]
    upstream = torch.randn_like(actual) * clear
    assert_close(actual * clear, expected * clear, 1e-12)
    (actual * upstream).sum().backward()
    (expected * upstream).sum().backward()
    assert_close(ours.relative_attention_bias.grad, stock.relative_attention_bias.weight.grad, 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_table_reaches_attention_in_float32(dtype, geometry) -> None:
    encoding = T5Bias().build(geometry()).to(dtype)
    encoding.relative_attention_bias.data.normal_()
    positions = torch.randint(1_000_000, 1_000_200, (2, 30))
    actual = encoding((positions,), (positions,))
    buckets = [[[exact_bucket(q - k, 32, 128, True) for k in row] for q in row] for row in positions.tolist()]
    assert actual.dtype == torch.float32
    assert torch.equal(actual, encoding.relative_attention_bias.float()[torch.tensor(buckets)].permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("fields", "causal"),
    [
        ({"num_buckets": 2}, False),
        ({"num_buckets": 5}, False),
        ({"num_buckets": 33}, False),
        ({"num_buckets": 32, "max_distance": 16}, True),
        ({"num_buckets": 32, "max_distance": 8}, False),
    ],
)
def test_buckets_that_do_not_work_out_are_refused(fields, causal, geometry) -> None:
    with pytest.raises(SchemeError, match=r"even number from 4|must exceed the"):
        T5Bias(**fields).resolve(geometry(causal=causal))


@pytest.mark.parametrize(("fields", "causal"), [({"num_buckets": 2, "max_distance": 2}, True), ({}, False)])
def test_buckets_that_just_work_out_are_taken(fields, causal, geometry) -> None:
    assert T5Bias(**fields).resolve(geometry(causal=causal)) == T5Bias(**fields)
