"""Size arithmetic of sliding windows, against positions counted one by one."""

from __future__ import annotations

import pytest

from pycaffe_lite.ops.window import Window


def count_conv(size: int, k: int, s: int, p: int, d: int) -> int:
    """Starts at which a dilated kernel fits into the padded axis."""
    return sum(start + d * (k - 1) < size + 2 * p for start in range(0, size + 2 * p, s))


@pytest.mark.parametrize("size", [5, 8, 13])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("s", [1, 2, 3])
@pytest.mark.parametrize(("p", "d"), [(0, 1), (1, 2), (2, 1)])
def test_conv_shape(size: int, k: int, s: int, p: int, d: int) -> None:
    assert Window((k,), (s,), (p,), (d,)).conv_shape((size,)) == (count_conv(size, k, s, p, d),)


@pytest.mark.parametrize("size", [4, 7])
@pytest.mark.parametrize(("k", "s", "p", "d"), [(3, 2, 0, 1), (2, 3, 1, 1), (4, 1, 2, 2)])
def test_deconv_shape_inverts_conv_shape(size: int, k: int, s: int, p: int, d: int) -> None:
    window = Window((k,), (s,), (p,), (d,))
    assert window.conv_shape(window.deconv_shape((size,))) == (size,)


def test_axes_are_independent() -> None:
    window = Window((3, 2, 1), (2, 1, 3), (1, 0, 2), (1, 3, 1))
    assert window.conv_shape((7, 11, 5)) == (4, 8, 3)
    assert window.extent == (3, 4, 1)
    assert window.taps == 6


@pytest.mark.parametrize(
    ("window", "spatial", "expected"),
    [
        (Window((3, 3), (2, 2)), (6, 4), (2, 1)),
        (Window((3, 3), (2, 2)), (6, 5), (2, 2)),
        (Window((3, 3), (1, 1), (0, 0), (3, 3)), (10, 11), (4, 5)),
        (Window((3, 3), (2, 2), (0, 0), (3, 3)), (10, 11), (2, 3)),
    ],
)
def test_recorded_conv_shapes(
    window: Window, spatial: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert window.conv_shape(spatial) == expected


def test_recorded_deconv_shape() -> None:
    assert Window((3, 3), (2, 2)).deconv_shape((6, 4)) == (13, 9)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (Window((3, 3), (2, 2)), (3, 2)),
        (Window((3, 3), (2, 2), (1, 1)), (4, 3)),
        (Window((6, 5)), (1, 1)),
    ],
)
def test_recorded_pool_shapes(window: Window, expected: tuple[int, ...]) -> None:
    assert window.pool_shape((6, 5)) == expected


def test_pool_shape_rounds_up_and_clips() -> None:
    assert Window((2,), (2,)).pool_shape((5,)) == (3,)
    assert Window((2,), (2,)).pool_shape((5,), round_up=False) == (2,)
    # The third window would start at 4, past 3 positions and 1 of leading pad.
    assert Window((2,), (2,), (1,)).pool_shape((3,)) == (2,)
    # A pad on one axis clips the others too.
    assert Window((1, 2), (3, 2), (0, 1)).pool_shape((5, 4)) == (2, 3)


def test_defaults_and_pointwise() -> None:
    window = Window((1, 1))
    assert (window.stride, window.pad, window.dilation) == ((1, 1), (0, 0), (1, 1))
    assert window.is_pointwise
    assert not Window((1, 1), (1, 2)).is_pointwise
    assert not Window((1, 1), (), (0, 1)).is_pointwise
    assert not Window((1, 2)).is_pointwise
    assert Window(()).is_pointwise
    assert Window(()).conv_shape(()) == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0,),), "nonzero"),
        (((2,), (0,)), "stride"),
        (((2,), (1,), (-1,)), "pad"),
        (((2,), (1,), (0,), (0,)), "dilation"),
        (((2, 3), (1,)), "1 entries for 2"),
    ],
)
def test_bad_windows(arguments: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Window(*arguments)


def test_windows_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"extent 5 .*padded input 4"):
        Window((3,), (1,), (1,), (2,)).conv_shape((2,))
    with pytest.raises(ValueError, match="below 1"):
        Window((1,), (1,), (2,)).deconv_shape((3,))
    with pytest.raises(ValueError, match="below 1"):
        Window((9,), (2,)).pool_shape((3,))
    with pytest.raises(ValueError, match="below 1"):
        Window((4,), (2,)).pool_shape((3,), round_up=False)
