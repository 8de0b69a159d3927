"""How are figures put into a sentence?"""

from __future__ import annotations

from collections.abc import Iterable


def join(items: Iterable[str]) -> str:
    """ "a, b and c"."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def in_ms(value: float) -> str:
    """Milliseconds, three digits."""
    return f"{value:.3g} ms"


def factor(value: float) -> str:
    """How many times: one decimal below 100."""
    return f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def digits(value: float) -> str:
    """Three digits, whole from 100 on."""
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def in_mb(count: int) -> str:
    """Bytes as megabytes of 10^6, three digits."""
    return f"{count / 1e6:.3g} MB"


def percent(share: float) -> str:
    """A share of 1 as per cent, one decimal where it is small."""
    return f"{share * 100:.0f} %" if share >= 0.02 else f"{share * 100:.1f} %"
