"""How are figures put into a sentence?"""

from __future__ import annotations

from collections.abc import Iterable


def join(items: Iterable[str]) -> str:
    """ "a, b and c"."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def in_ms(value: float) -> str:
    return f"{value:.3g} ms"


def factor(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"


def digits(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def in_mb(count: int) -> str:
    return f"{count / 1e6:.3g} MB"


def percent(share: float) -> str:
    return f"{share * 100:.0f} %" if share >= 0.02 else f"{share * 100:.1f} %"
