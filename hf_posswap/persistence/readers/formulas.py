"""The frequencies that readers compute, in plain numbers: one scalar loop a formula, independent of `schemes`."""

import math

Numbers = tuple[float, ...]


def plain(dim: int, theta: float) -> Numbers:
    """`theta^(-2i/dim)`."""
    return tuple(theta ** (-2 * i / dim) for i in range(dim // 2))


def divided(inv_freq: Numbers, factors: float | list[float]) -> Numbers:
    """Every frequency by one factor, or each by its own."""
    each = factors if isinstance(factors, list) else [factors] * len(inv_freq)
    return tuple(f / factor for f, factor in zip(inv_freq, each, strict=True))


def proportional(dim: int, theta: float, turning: int) -> Numbers:
    """The first `turning` pairs at the frequencies of the whole head, the rest still."""
    return tuple(theta ** (-2 * i / dim) if i < turning else 0.0 for i in range(dim // 2))


def yarn(
    dim: int,
    theta: float,
    factor: float,
    original: float,
    beta_fast: float = 32,
    beta_slow: float = 1,
    truncate: bool = True,
) -> Numbers:
    """Fast pairs kept, slow ones divided by `factor`, a ramp between the pairs of `beta_fast` and `beta_slow` turns."""

    def pair_of(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_of(beta_fast), pair_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low or 0.001
    shares = [min(max((i - low) / width, 0), 1) for i in range(dim // 2)]
    return tuple(f / factor * s + f * (1 - s) for f, s in zip(plain(dim, theta), shares, strict=True))


def yarn_temperature(factor: float, mscale: float = 1.0) -> float:
    """YaRN's factor on cos and sin."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def llama3(inv_freq: Numbers, factor: float, low: float, high: float, original: float) -> Numbers:
    """Llama 3.1's smoothing by wavelength."""
    scaled = []
    for f in inv_freq:
        wavelength = 2 * math.pi / f
        smooth = (original / wavelength - low) / (high - low)
        if wavelength < original / high:
            scaled.append(f)
        elif wavelength > original / low:
            scaled.append(f / factor)
        else:
            scaled.append((1 - smooth) * f / factor + smooth * f)
    return tuple(scaled)


def longrope_scaling(length: float, original: float) -> float:
    """LongRoPE's factor on cos and sin, for those who derive it from two lengths."""
    ratio = length / original
    return 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(original))
