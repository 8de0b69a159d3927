"""How do commands lay tables out? Aligned columns, and numbers in units that people read."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Lines of equal columns: those of the indices `left` begin at the left, others end right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if k in left else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def count(number: int) -> str:
    """ "812", "1.24 k", "61.1 M", "15.5 G": three digits and powers of 1000."""
    return _scaled(number, 1000, ("", "k", "M", "G", "T", "P"))


def size(number: int) -> str:
    """ "812 B", "1.21 KiB", "233 MiB": three digits and powers of 1024."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def shape(dims: Sequence[int]) -> str:
    """ "1 x 3 x 227 x 227"; "scalar" without axes."""
    return " x ".join(map(str, dims)) or "scalar"


def _scaled(number: int, base: int, units: Sequence[str]) -> str:
    power, value = 0, float(number)
    while value >= base - 0.5 and power < len(units) - 1:
        power, value = power + 1, value / base
    digits = 0 if power == 0 else max(0, 2 - len(str(int(value))) + 1)
    return f"{value:.{digits}f} {units[power]}".rstrip()
