"""Rules that grow a learned table: against torch's own interpolation, scalar loops and what each promises to keep."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hf_posswap.transfer import GROWTH

PREFIX_PRESERVING = ("tile", "repeat_last")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

growing = given(
    rows=st.integers(1, 40),
    more=st.integers(0, 200),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
thoroughly = settings(deadline=None, max_examples=80, derandomize=True)


def random_table(rows: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def scalar_tile(table: Tensor, length: int) -> list[Tensor]:
    return [table[p % len(table)] for p in range(length)]


def scalar_repeat_last(table: Tensor, length: int) -> list[Tensor]:
    return [table[p] if p < len(table) else table[-1] for p in range(length)]


def torch_interpolate(table: Tensor, length: int) -> Tensor:
    """`p * L / L'` is what torch's `align_corners` reads when both tables end in one row more, the last repeated."""
    longer = torch.cat((table, table[-1:])).T[None]
    return torch.nn.functional.interpolate(longer, size=length + 1, mode="linear", align_corners=True)[0].T[:-1]


def test_every_rule_is_tested_here() -> None:
    assert set(GROWTH) == {"interpolate", *PREFIX_PRESERVING}
    assert next(iter(GROWTH)) == "interpolate"


@pytest.mark.parametrize("rule", GROWTH)
@growing
@thoroughly
def test_shape_and_dtype_are_kept(rule: str, rows: int, more: int, dtype: torch.dtype, seed: int) -> None:
    table = random_table(rows, dtype, seed)
    before = table.clone()
    grown = GROWTH[rule](table, rows + more)
    assert grown.shape == (rows + more, 5)
    assert grown.dtype == dtype
    assert grown.isfinite().all()
    assert torch.equal(table, before)


@pytest.mark.parametrize("rule", PREFIX_PRESERVING)
@growing
@thoroughly
def test_old_rows_are_kept_to_the_bit(rule: str, rows: int, more: int, dtype: torch.dtype, seed: int) -> None:
    table = random_table(rows, dtype, seed)
    assert torch.equal(GROWTH[rule](table, rows + more)[:rows], table)


@pytest.mark.parametrize("rule", GROWTH)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 49, 1000])
def test_the_same_length_changes_nothing_and_shares_nothing(rule: str, dtype: torch.dtype, rows: int) -> None:
    table = torch.randn(rows, 5).to(dtype)
    grown = GROWTH[rule](table, rows)
    assert torch.equal(grown, table)
    assert grown.data_ptr() != table.data_ptr()


@pytest.mark.parametrize(("rule", "oracle"), [("tile", scalar_tile), ("repeat_last", scalar_repeat_last)])
@growing
@thoroughly
def test_copying_rules_against_scalars(
    rule: str, oracle: Callable, rows: int, more: int, dtype: torch.dtype, seed: int
) -> None:
    table = random_table(rows, dtype, seed)
    assert torch.equal(GROWTH[rule](table, rows + more), torch.stack(oracle(table, rows + more)))


@growing
@thoroughly
def test_interpolate_against_torch(rows: int, more: int, dtype: torch.dtype, seed: int) -> None:
    table = random_table(rows, dtype, seed)
    actual, expected = GROWTH["interpolate"](table, rows + more), torch_interpolate(table.double(), rows + more)
    # Computed in float64 and rounded once, by way of float32 as torch narrows; half precision has subnormals.
    half_ulp = torch.finfo(dtype).eps / 2 * expected.abs() * (1 + 2.0**-10)
    assert ((actual.double() - expected).abs() <= half_ulp + (1e-12 if dtype == torch.float64 else 3e-8)).all()


@pytest.mark.parametrize("factor", [2, 3, 4, 7])
def test_interpolate_passes_through_the_old_rows(factor: int) -> None:
    table = torch.randn(50, 5)
    grown = GROWTH["interpolate"](table, 50 * factor)
    assert torch.equal(grown[::factor], table)
    assert torch.equal(grown[-factor:], table[-1:].expand(factor, -1))


def test_interpolate_a_straight_line_stays_straight() -> None:
    slope = torch.rand(1, 5, dtype=torch.float64) + 0.1
    grown = GROWTH["interpolate"](torch.arange(64).double()[:, None] * slope, 100)
    expected = torch.arange(100).double().mul(64 / 100).clamp(max=63)[:, None] * slope
    assert ((grown - expected).abs() <= 1e-12).all()
