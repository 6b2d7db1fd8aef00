"""Rules that grow a learned table: against torch's own interpolation, scalar loops and what each promises to keep."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hf_posswap.errors import SchemeError
from hf_posswap.transfer import GROWTH, grow, growth_fields

PREFIX_PRESERVING = ("tile", "repeat_last", "hierarchical", "random")
RESAMPLING = ("interpolate", "group")
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    *((rule, {}) for rule in GROWTH),
    ("interpolate", {"interpolation": "cubic"}),
    ("hierarchical", {"alpha": 0.7}),
    ("random", {"seed": 2**63 - 1}),
)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

growing = given(
    rows=st.integers(1, 40),
    more=st.integers(0, 200),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32),
)
variants = pytest.mark.parametrize(("rule", "options"), VARIANTS, ids=str)
thoroughly = settings(deadline=None, max_examples=80, derandomize=True)


def reached(rule: str, rows: int, length: int) -> int:
    """The nearest length that the rule can grow so many rows to."""
    return min(length, rows**2) if rule == "hierarchical" else length


def random_table(rows: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(rows, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def close_to_the_last_cast(found: Tensor, expected: Tensor) -> None:
    """Rounded once from float64, by way of float32 as torch narrows; half precision has subnormals."""
    dtype = found.dtype
    half_ulp = torch.finfo(dtype).eps / 2 * expected.abs() * (1 + 2.0**-10)
    assert ((found.double() - expected).abs() <= half_ulp + (1e-12 if dtype == torch.float64 else 3e-8)).all()


def scalar_tile(table: Tensor, length: int) -> list[Tensor]:
    return [table[p % len(table)] for p in range(length)]


def scalar_repeat_last(table: Tensor, length: int) -> list[Tensor]:
    return [table[p] if p < len(table) else table[-1] for p in range(length)]


def scalar_group(table: Tensor, length: int) -> list[Tensor]:
    """Old position r is the new positions from r * L' / L up to the next one's."""
    found, row = [], 0
    for p in range(length):
        while (row + 1) * length <= p * len(table):
            row += 1
        found.append(table[row])
    return found


def scalar_hierarchical(table: Tensor, length: int, alpha: float) -> Tensor:
    """Su's page counts from 1: `q_((i-1)n+j) = a u_i + (1-a) u_j`, `u_i = (p_i - a p_1) / (1-a)`."""
    n, p = len(table), table.double()
    u = {i: (p[i - 1] - alpha * p[0]) / (1 - alpha) for i in range(1, n + 1)}
    q = {(i - 1) * n + j: alpha * u[i] + (1 - alpha) * u[j] for i in range(1, n + 1) for j in range(1, n + 1)}
    return torch.stack([q[position + 1] for position in range(length)])


def keys_kernel(distance: float) -> float:
    """Keys 1981, equation 15."""
    s = abs(distance)
    if s < 1:
        return 3 / 2 * s**3 - 5 / 2 * s**2 + 1
    return -1 / 2 * s**3 + 5 / 2 * s**2 - 4 * s + 2 if s < 2 else 0.0


def scalar_cubic(table: Tensor, length: int) -> Tensor:
    """The convolution with rows repeated at both ends."""
    rows, found = len(table), []
    for p in range(length):
        at = p * rows / length
        near = range(math.floor(at) - 2, math.floor(at) + 4)
        found.append(
            sum((keys_kernel(at - i) * table[min(max(i, 0), rows - 1)].double() for i in near), torch.zeros(5))
        )
    return torch.stack(found)


def torch_linear(table: Tensor, length: int) -> Tensor:
    """`p * L / L'` is what torch's `align_corners` reads when both tables end in one row more, the last repeated."""
    longer = torch.cat((table, table[-1:])).T[None]
    return torch.nn.functional.interpolate(longer, size=length + 1, mode="linear", align_corners=True)[0].T[:-1]


def torch_cubic(table: Tensor, factor: int) -> Tensor:
    """torch's antialiased bicubic has a = -1/2 and reads `(p + 1/2) / s - 1/2`: for odd s a shift of `(s-1) / 2`."""
    around = torch.cat((table[:1].expand(3, -1), table, table[-1:].expand(4, -1)))
    image = around.T[None, :, None].contiguous()
    size = (1, len(around) * factor)
    read = torch.nn.functional.interpolate(image, size=size, mode="bicubic", antialias=True)[0, :, 0].T
    return read[3 * factor + (factor - 1) // 2 :][: len(table) * factor]


def test_every_rule_is_tested_here() -> None:
    assert set(GROWTH) == {*PREFIX_PRESERVING, *RESAMPLING}
    assert next(iter(GROWTH)) == "interpolate"
    assert {rule: growth_fields(rule) for rule in GROWTH if growth_fields(rule)} == {
        "interpolate": ("interpolation",),
        "hierarchical": ("alpha",),
        "random": ("seed",),
    }


@variants
@growing
@thoroughly
def test_shape_and_dtype_are_kept(rule: str, options: Any, rows: int, more: int, dtype: torch.dtype, seed: int) -> None:
    table, length = random_table(rows, dtype, seed), reached(rule, rows, rows + more)
    before = table.clone()
    grown = grow(rule, table, length, **options)
    assert grown.shape == (length, 5)
    assert grown.dtype == dtype
    assert grown.isfinite().all()
    assert torch.equal(table, before)


@pytest.mark.parametrize(("rule", "options"), [v for v in VARIANTS if v[0] in PREFIX_PRESERVING], ids=str)
@growing
@thoroughly
def test_old_rows_are_kept_to_the_bit(
    rule: str, options: Any, rows: int, more: int, dtype: torch.dtype, seed: int
) -> None:
    table = random_table(rows, dtype, seed)
    assert torch.equal(grow(rule, table, reached(rule, rows, rows + more), **options)[:rows], table)


@variants
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 49, 1000])
def test_the_same_length_changes_nothing_and_shares_nothing(
    rule: str, options: Any, dtype: torch.dtype, rows: int
) -> None:
    table = torch.randn(rows, 5).to(dtype)
    grown = grow(rule, table, rows, **options)
    assert torch.equal(grown, table)
    assert grown.data_ptr() != table.data_ptr()


@variants
@growing
@thoroughly
def test_a_constant_table_stays_constant(
    rule: str, options: Any, rows: int, more: int, dtype: torch.dtype, seed: int
) -> None:
    table = random_table(1, dtype, seed).expand(rows, -1)
    grown = grow(rule, table, reached(rule, rows, rows + more), **options)
    close_to_the_last_cast(grown, table[:1].double().expand_as(grown))


@pytest.mark.parametrize("rule", RESAMPLING)
@growing
@thoroughly
def test_resampling_a_monotone_table_is_monotone(
    rule: str, rows: int, more: int, dtype: torch.dtype, seed: int
) -> None:
    table = random_table(rows, dtype, seed).sort(dim=0).values
    grown = grow(rule, table, rows + more).double()
    assert (grown.diff(dim=0) >= (-1e-15 if dtype == torch.float64 else 0.0)).all()
    assert torch.equal(grown[0], table[0].double())


@pytest.mark.parametrize(
    ("rule", "oracle"), [("tile", scalar_tile), ("repeat_last", scalar_repeat_last), ("group", scalar_group)]
)
@growing
@thoroughly
def test_copying_rules_against_scalars(
    rule: str, oracle: Callable, rows: int, more: int, dtype: torch.dtype, seed: int
) -> None:
    table = random_table(rows, dtype, seed)
    assert torch.equal(grow(rule, table, rows + more), torch.stack(oracle(table, rows + more)))


@pytest.mark.parametrize("factor", [2, 3, 8])
def test_group_shares_rows_among_neighbours(factor: int) -> None:
    table = torch.randn(49, 5)
    assert torch.equal(grow("group", table, 49 * factor), table.repeat_interleave(factor, dim=0))


@growing
@thoroughly
def test_linear_against_torch(rows: int, more: int, dtype: torch.dtype, seed: int) -> None:
    table = random_table(rows, dtype, seed)
    close_to_the_last_cast(grow("interpolate", table, rows + more), torch_linear(table.double(), rows + more))


@growing
@thoroughly
def test_cubic_against_its_paper(rows: int, more: int, dtype: torch.dtype, seed: int) -> None:
    table = random_table(rows, dtype, seed)
    found = grow("interpolate", table, rows + more, interpolation="cubic")
    close_to_the_last_cast(found, scalar_cubic(table, rows + more))


@pytest.mark.parametrize("factor", [3, 5, 11])
@pytest.mark.parametrize("dtype", DTYPES)
def test_cubic_against_torch(factor: int, dtype: torch.dtype) -> None:
    table = torch.randn(23, 5).to(dtype)
    found = grow("interpolate", table, 23 * factor, interpolation="cubic")
    close_to_the_last_cast(found, torch_cubic(table.double(), factor))


@pytest.mark.parametrize("factor", [2, 3, 4, 7, 49])
@pytest.mark.parametrize("interpolation", ["linear", "cubic"])
def test_interpolate_passes_through_the_old_rows(factor: int, interpolation: str) -> None:
    table = torch.randn(50, 5, dtype=torch.float64)
    grown = grow("interpolate", table, 50 * factor, interpolation=interpolation)
    assert torch.equal(grown[::factor], table)


def test_linear_repeats_the_end() -> None:
    table = torch.randn(50, 5)
    assert torch.equal(grow("interpolate", table, 200)[-4:], table[-1:].expand(4, -1))


@given(rows=st.integers(4, 60), more=st.integers(0, 200), cubic=st.booleans())
@thoroughly
def test_interpolate_keeps_a_straight_line_straight(rows: int, more: int, cubic: bool) -> None:
    slope, start = torch.rand(1, 5, dtype=torch.float64) + 0.1, torch.randn(1, 5, dtype=torch.float64)
    length = rows + more
    table = torch.arange(rows).double()[:, None] * slope + start
    grown = grow("interpolate", table, length, interpolation="cubic" if cubic else "linear")
    at = torch.arange(length).double() * rows / length
    inside = (at >= 1) & (at <= rows - 2) if cubic else at <= rows - 1
    assert ((grown - at[:, None] * slope - start)[inside].abs() <= 1e-11).all()


@growing
@thoroughly
def test_hierarchical_against_its_page(rows: int, more: int, dtype: torch.dtype, seed: int) -> None:
    table, length = random_table(rows, dtype, seed), reached("hierarchical", rows, rows + more)
    for alpha in (0.4, 0.05, 0.9):
        close_to_the_last_cast(
            grow("hierarchical", table, length, alpha=alpha), scalar_hierarchical(table, length, alpha)
        )
    assert torch.equal(grow("hierarchical", table, length), grow("hierarchical", table, length, alpha=0.4))


def test_hierarchical_rows_differ_from_each_other() -> None:
    """Up to the end of its reach: alpha = 0.5 would give positions 1 and 7 one row."""
    grown = grow("hierarchical", torch.randn(7, 5, dtype=torch.float64), 49)
    assert (torch.cdist(grown, grown) + torch.eye(49)).min() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_random_rows_have_the_columns_mean_and_spread(dtype: torch.dtype) -> None:
    spread, mean = torch.tensor([0.01, 0.1, 1.0, 10.0, 0.0]), torch.tensor([3.0, 0.0, -2.0, 50.0, 1.0])
    table = (torch.randn(2000, 5) * spread + mean).to(dtype)
    new = grow("random", table, 42_000)[2000:].double()
    expected_mean, expected_spread = table.double().mean(dim=0), table.double().std(dim=0)
    # Five standard errors of 40,000 draws, and what rounding a value adds to its spread.
    rounding = torch.finfo(dtype).eps * mean.abs()
    assert ((new.mean(dim=0) - expected_mean).abs() <= 5 * expected_spread / 200 + rounding).all()
    assert ((new.std(dim=0) - expected_spread).abs() <= 5 * expected_spread / 283 + rounding).all()
    standard = (new[:, 2] - expected_mean[2]) / expected_spread[2]
    assert abs(float((standard**4).mean()) - 3) < 0.2, "normal: a kurtosis of 3"


def test_random_is_the_seeds_alone() -> None:
    table = torch.randn(20, 5)
    state = torch.get_rng_state()
    first = grow("random", table, 60)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert torch.equal(grow("random", table, 60, seed=0), first)
    assert not torch.equal(grow("random", table, 60, seed=1)[20:], first[20:])


def test_growing_twice_at_random_does_not_repeat_rows() -> None:
    grown = grow("random", grow("random", torch.randn(20, 5), 40), 60)
    correlation = torch.corrcoef(torch.stack((grown[20:40].flatten(), grown[40:].flatten())))[0, 1]
    assert correlation.abs() < 0.5
    assert (torch.cdist(grown[20:40], grown[40:]) > 1e-3).all()


@variants
def test_meta_tables_grow(rule: str, options: Any) -> None:
    grown = grow(rule, torch.empty(20, 5, dtype=torch.bfloat16, device="meta"), 50, **options)
    assert grown.is_meta
    assert grown.shape == (50, 5)
    assert grown.dtype == torch.bfloat16


@variants
def test_parameters_grow_outside_of_autograd(rule: str, options: Any) -> None:
    assert not grow(rule, torch.nn.Parameter(torch.randn(20, 5)), 50, **options).requires_grad


@pytest.mark.parametrize(
    ("rule", "length", "options", "says"),
    [
        ("stretch", 50, {}, "no growth rule 'stretch'; there are interpolate, tile"),
        ("tile", 50, {"alpha": 0.4}, "tile has no field 'alpha'; its fields are: none"),
        ("random", 50, {"alpha": 0.4, "x": 1}, "random has no field 'alpha', 'x'; its fields are: seed"),
        ("interpolate", 50, {"factor": 2.0}, "interpolate has no field 'factor'; its fields are: interpolation"),
        ("interpolate", 50, {"interpolation": "nearest"}, "'nearest' is not one of linear, cubic"),
        ("interpolate", 50, {"interpolation": None}, "None is not one of linear, cubic"),
        ("interpolate", 50, {"interpolation": ["cubic"]}, "is not one of linear, cubic"),
        *(("hierarchical", 50, {"alpha": a}, "is not between 0 and 1") for a in (0, 1, 0.5, 1.5, -0.1, math.nan)),
        *(("hierarchical", 50, {"alpha": a}, "is not between 0 and 1") for a in ("0.4", None, True)),
        ("hierarchical", 401, {}, "reaches 400 positions from a table of 20, not 401"),
        *(("random", 50, {"seed": s}, "is not an integer from 0") for s in (-1, 2**63, 0.5, None, True, "1")),
        *((rule, 19, {}, "19 rows are fewer than the 20 there are") for rule in GROWTH),
    ],
)
def test_what_a_rule_cannot_do_is_refused(rule: str, length: int, options: Any, says: str) -> None:
    with pytest.raises(SchemeError, match=says):
        grow(rule, torch.randn(20, 5), length, **options)
