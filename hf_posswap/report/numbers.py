"""Numbers in words: as many digits as a reader compares, the same in tables, captions and pictures."""

import math
from collections.abc import Iterable, Sequence

from hf_posswap.evaluation.intervals import Interval


def number(value: float) -> str:
    """`18.42`, `0.00012`, `12,346`, `1.23e+09`; inf and nan by name."""
    size = abs(value)
    if not math.isfinite(value) or size == 0:
        return f"{value:g}"
    if size >= 1e6 or size < 1e-4:
        return f"{value:.2e}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def with_interval(value: float, interval: Interval | None) -> str:
    """`18.42 [17.90, 19.03]`; the number alone without an interval."""
    return number(value) + (f" [{number(interval.low)}, {number(interval.high)}]" if interval else "")


def percent(share: float) -> str:
    """`87.5%`, whole numbers without a point."""
    return f"{100 * share:.1f}".removesuffix(".0") + "%"


def percent_with_interval(share: float, interval: Interval) -> str:
    """`87.5% [82, 91.6]`."""
    low, high = (percent(end)[:-1] for end in (interval.low, interval.high))
    return f"{percent(share)} [{low}, {high}]"


def plural(count: int, noun: str) -> str:
    """`1 document`, `1,024 documents`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def memory(size: int | None) -> str:
    """Bytes in MiB or GiB; what is not known is said so."""
    if size is None:
        return "not known"
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def documents_read(documents: int, skipped: Sequence[int]) -> str:
    """`12 documents, all read`."""
    short = f"{len(skipped):,} of them too short and not read" if skipped else "all read"
    return f"{plural(documents, 'document')}, {short}"


def over_documents(intervals: Iterable[Interval | None], over: str = "documents") -> str:
    """What the intervals of means over documents are, or over what else."""
    level = next((each.level for each in intervals if each), None)
    return f"Intervals: {level:.0%}, over {over}." if level else "A single document: no intervals."
