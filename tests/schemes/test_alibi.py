"""ALiBi against BLOOM's and MPT's own tensors, its textbook slopes, and precision at a million."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from hf_posswap import ALiBi
from hf_posswap.schemes.alibi import alibi_slopes

FLOAT32 = 2e-6
"""Both oracles raise a rounded base to a power in float32."""

HEADS = (1, 2, 3, 5, 7, 8, 12, 16, 20, 25, 40, 71, 112)
EIGHT = [2.0**-h for h in range(1, 9)]


def bias(encoding, queries, keys):
    return encoding(encoding.tables(queries), encoding.tables(keys))


def alibi(geometry, heads, **facts):
    return ALiBi().build(geometry(num_attention_heads=heads, **facts))


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2.0**-8]),
        (8, EIGHT),
        (16, [2.0 ** (-h / 2) for h in range(1, 17)]),
        (12, [*EIGHT, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_textbook_slopes(heads, slopes) -> None:
    assert alibi_slopes(heads) == slopes


@pytest.mark.parametrize("heads", HEADS)
def test_bloom(heads, geometry, assert_close) -> None:
    mask = (torch.rand(3, 50) > 0.3).long()
    mask[:, -1] = 1
    positions = (mask.cumsum(-1) - 1) * mask
    stock = build_alibi_tensor(mask, heads, torch.float64).view(3, heads, 1, 50)
    # BLOOM adds slope * key position, which softmax cannot tell from -slope * (query - key).
    expected = stock - stock.transpose(-1, -2)
    actual = bias(alibi(geometry, heads), positions, positions)
    causal = (positions[:, None, :, None] >= positions[:, None, None, :]).expand_as(actual)
    assert_close(actual[causal], expected[causal], FLOAT32)


@pytest.mark.parametrize("heads", HEADS)
def test_mpt(heads, geometry, assert_close) -> None:
    # MPT states the biases of the last query alone. It takes its heads the other way round, from the slopes of the
    # power of two above, but arrives at the same ones in the same order.
    stock = build_mpt_alibi_tensor(heads, 300)
    positions = torch.arange(300)[None] + torch.randint(0, 1000, ())
    assert_close(bias(alibi(geometry, heads), positions[:, -1:], positions)[0], stock, FLOAT32)


@pytest.mark.parametrize("heads", [8, 12])
def test_float64_against_scalars(heads, geometry, assert_close) -> None:
    queries, keys = torch.randint(0, 5000, (2, 6)), torch.randint(0, 5000, (2, 9))
    actual = bias(alibi(geometry, heads, causal=False).double(), queries, keys)
    slopes = [2 ** -(h + 1) for h in range(8)] + [2 ** -(h + 0.5) for h in range(4)]
    expected = [
        [[[-slope * abs(q - k) for k in key_row] for q in query_row] for slope in slopes[:heads]]
        for query_row, key_row in zip(queries.tolist(), keys.tolist(), strict=True)
    ]
    assert_close(actual, torch.tensor(expected, dtype=torch.float64), 1e-12)


def test_an_encoder_counts_distance_in_both_directions(geometry) -> None:
    positions = torch.randint(0, 5000, (2, 9))
    symmetric = bias(alibi(geometry, 12, causal=False), positions, positions)
    assert torch.equal(symmetric, symmetric.transpose(-1, -2))
    assert (symmetric <= 0).all()
    assert (symmetric < 0).sum() > 12 * 2 * 9


def test_a_million_positions_apart_whatever_the_cast(cast, geometry) -> None:
    queries, keys = 1_000_000 + torch.randint(0, 1000, (2, 9)), torch.randint(0, 50, (2, 9))
    actual = bias(cast(alibi(geometry, 12)), queries, keys)
    assert actual.dtype == torch.float32
    slopes = torch.tensor(alibi_slopes(12), dtype=torch.float64)
    expected = -slopes.view(1, 12, 1, 1) * (queries[:, None, :, None] - keys[:, None, None, :]).double()
    assert ((actual - expected).abs() <= 2e-7 * expected.abs()).all()


def test_neighbours_at_a_million_stay_apart(cast, geometry) -> None:
    keys = torch.arange(1000)[None]
    row = bias(cast(alibi(geometry, 12)), torch.tensor([[1_000_000]]), keys)
    assert (row.diff() > 0).all()
