"""The compiled kernels against loops in float64, and what happens where they do not apply."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys

import numpy as np
import pytest

from pycaffe_lite.ops import jit
from pycaffe_lite.ops.cpu.threads import set_num_threads
from pycaffe_lite.ops.jit import JitOps
from pycaffe_lite.ops.window import Window

if not JitOps.available():
    pytest.skip(
        "no llvmlite, or a CPU that the compiled kernels do not know", allow_module_level=True
    )

from pycaffe_lite.ops.jit import code, convolution, tile, winograd  # noqa: E402 - needs llvmlite


def convolved(x, w, b, window, group):
    """The convolution in float64, tap by tap."""
    (sy, sx), (py, px), (dy, dx) = window.stride, window.pad, window.dilation
    padded = np.pad(x.astype(float), ((0, 0), (0, 0), (py, py), (px, px)))
    oh, ow = window.conv_shape(x.shape[2:])
    parts = []
    for xs, ws in zip(np.split(padded, group, axis=1), np.split(w, group), strict=True):
        total = np.zeros((len(x), len(ws), oh, ow))
        for ky, kx in itertools.product(*map(range, window.kernel)):
            rows = slice(ky * dy, ky * dy + (oh - 1) * sy + 1, sy)
            cols = slice(kx * dx, kx * dx + (ow - 1) * sx + 1, sx)
            total += np.einsum("oc,nchw->nohw", ws[..., ky, kx].astype(float), xs[:, :, rows, cols])
        parts.append(total)
    return np.concatenate(parts, axis=1) + np.reshape(0 if b is None else b, (1, -1, 1, 1))


CASES = {
    "a pixel": ((1, 2, 3, 4), 1, (3, 4), {}, 1),
    "one row tile": ((1, 3, 9, 7), 8, (3, 2), {}, 1),
    "rows left over": ((2, 3, 9, 7), 21, (2, 3), {"pad": (1, 2)}, 1),
    "a wide image": ((1, 2, 5, 131), 6, (2, 3), {}, 1),
    "pointwise": ((2, 5, 7, 11), 12, (1, 1), {}, 1),
    "pointwise, every second": ((2, 5, 7, 12), 9, (1, 1), {"stride": (2, 3)}, 1),
    "strides": ((1, 4, 23, 29), 18, (5, 4), {"stride": (2, 3), "pad": (3, 1)}, 2),
    "stride beyond the kernel": ((1, 2, 13, 17), 5, (2, 1), {"stride": (4, 3)}, 1),
    "dilation": ((2, 6, 19, 15), 9, (3, 2), {"dilation": (2, 3), "pad": (2, 1)}, 1),
    "all of it": ((2, 6, 21, 16), 8, (3, 5), {"dilation": (3, 1), "stride": (2, 4)}, 2),
    "a channel a group": ((2, 5, 9, 13), 35, (3, 2), {"pad": (1, 0)}, 5),
    "pad beyond the kernel": ((1, 2, 4, 3), 5, (1, 2), {"pad": (3, 4)}, 1),
    "Winograd": ((2, 32, 30, 37), 45, (3, 3), {"pad": (1, 2)}, 1),
    "Winograd, groups, no pad": ((1, 66, 29, 33), 96, (3, 3), {}, 2),
    "threads": ((1, 32, 31, 37), 48, (3, 5), {"pad": (1, 2)}, 1),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_convolution(rng, case, has_bias, threads):
    shape, outputs, kernel, more, group = CASES[case]
    window = Window(kernel, **more)
    x = rng.standard_normal(shape).astype("f")
    w = rng.standard_normal((outputs, shape[1] // group, *kernel)).astype("f")
    b = rng.standard_normal(outputs).astype("f") if has_bias else None
    expected = convolved(x, w, b, window, group)
    # Whatever is written beside the output shows.
    room = np.full(expected.size + 200, 7, "f")
    out = room[100:-100].reshape(expected.shape)
    set_num_threads(threads)
    try:
        assert convolution.applies(x, w, group, out)
        assert JitOps().conv_forward(x, w, b, window, group, out) is out
    finally:
        set_num_threads(None)
    np.testing.assert_allclose(out, expected, atol=1e-5 * abs(expected).max())
    assert set(room[:100]) == set(room[-100:]) == {7}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_value_reaches_the_windows_that_hold_it_and_no_others(rng, bad):
    window = Window((3, 2), pad=(1, 1))
    x = rng.standard_normal((1, 4, 9, 21)).astype("f")
    x[0, 2, 4, 20] = bad
    w = rng.standard_normal((13, 4, 3, 2)).astype("f")
    out = np.empty((1, 13, 9, 22), "f")
    JitOps().conv_forward(x, w, None, window, 1, out)
    with np.errstate(invalid="ignore"):
        expected = convolved(x, w, None, window, 1)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(out), np.isinf(expected))
    assert (~np.isfinite(out)).sum() == 13 * 3 * 2


def test_any_number_of_threads_gives_the_same_bits(rng):
    x = rng.standard_normal((2, 48, 33, 35)).astype("f")
    w = rng.standard_normal((40, 48, 3, 5)).astype("f")
    outs = []
    for threads in (1, 2, 3):
        set_num_threads(threads)
        out = np.empty((2, 40, 31, 31), "f")
        outs.append(JitOps().conv_forward(x, w, None, Window((3, 5)), 1, out))
    set_num_threads(None)
    np.testing.assert_array_equal(outs[0], outs[1])
    np.testing.assert_array_equal(outs[0], outs[2])


def test_an_array_that_ends_with_its_memory_is_read_no_further(rng):
    x = rng.standard_normal((1, 3, 5, 7)).astype("f")
    assert not convolution._has_slack(x)
    owner = JitOps().allocate(x.size, np.float32)
    assert convolution._has_slack(owner.reshape(x.shape))


@pytest.mark.parametrize(
    ("x", "w", "out"),
    [
        (np.empty((1, 2, 5, 7)), np.empty((3, 2, 2, 3)), np.empty((1, 3, 4, 5))),
        (np.empty((1, 2, 7, 5), "f").swapaxes(2, 3), np.empty((3, 2, 2, 3), "f"), None),
        (np.empty((1, 2, 5), "f"), np.empty((3, 2, 2), "f"), np.empty((1, 3, 4), "f")),
        (np.empty((0, 2, 5, 7), "f"), np.empty((3, 2, 2, 3), "f"), np.empty((0, 3, 4, 5), "f")),
    ],
    ids=["float64", "strided", "one axis", "no image"],
)
def test_what_it_does_not_cover_goes_to_the_numpy_kernels(rng, x, w, out):
    out = np.empty((1, 3, 4, 5), "f") if out is None else out
    window = Window(w.shape[2:])
    assert not convolution.applies(x, w, 1, out)
    x[...], w[...] = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
    JitOps().conv_forward(x, w, None, window, 1, out)
    wide = [a if a.ndim == 4 else a[..., None, :] for a in (x, w)]
    if out.size:
        expected = convolved(*wide, None, Window(wide[1].shape[2:]), 1).reshape(out.shape)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", range(1, 12))
def test_tiles_cover_each_position_once(count):
    widths = tile.widths(count)
    assert sum(widths) == count
    assert all(1 <= width <= tile.WIDEST for width in widths)
    assert widths.count(1) == (count == 1)
    positions = (3, count * 5)
    tiles, segments = convolution._tiles(positions, positions[1] + 2)
    written = np.zeros(3 * positions[1], int)
    for _, at, length in segments:
        written[at // 4 : (at + length) // 4] += 1
    assert (written == 1).all()
    assert (tiles[1:, 2] == tiles[:-1, 3]).all()


def test_without_llvmlite_the_numpy_kernels_run():
    script = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "from pycaffe_lite import device\n"
        "print(device.current().name)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "cpu", done.stderr


def test_where_compiling_fails_the_numpy_kernels_run(rng, monkeypatch, caplog):
    def fail():
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(tile, "run", fail)
    jit._compiles.cache_clear()
    x = rng.standard_normal((1, 2, 5, 7)).astype("f")
    w = rng.standard_normal((3, 2, 2, 4)).astype("f")
    try:
        out = JitOps().conv_forward(x, w, None, Window((2, 4)), 1, np.empty((1, 3, 4, 4), "f"))
    finally:
        jit._compiles.cache_clear()
    np.testing.assert_allclose(out, convolved(x, w, None, Window((2, 4)), 1), rtol=1e-4, atol=1e-5)
    assert "no such instruction" in caplog.text


def test_a_tile_leaves_registers_for_the_input_and_a_weight():
    assert tile.rows() * tile.WIDEST + tile.WIDEST + 1 <= code.registers()


# ---- Winograd's algorithm ----------------------------------------------------------------------


def winograd_case(rng):
    x = rng.standard_normal((1, 34, 29, 31)).astype("f")
    w = rng.standard_normal((40, 34, 3, 3)).astype("f")
    return x, w, Window((3, 3), pad=(1, 1)), np.empty((1, 40, 29, 31), "f")


def test_it_is_taken_where_it_is_worth_it(monkeypatch):
    def applies(w, window, positions, group=1):
        return winograd.applies(np.empty(w, "f"), window, group, positions)

    window = Window((3, 3), pad=(1, 1))
    assert applies((40, 34, 3, 3), window, (29, 31))
    assert not applies((40, 34, 3, 3), window, (13, 14))
    assert not applies((40, 17, 3, 3), window, (29, 31))
    assert not applies((40, 34, 3, 3), window, (29, 31), group=2)
    assert not applies((40, 34, 3, 3), Window((3, 3), stride=(2, 1)), (29, 31))
    assert not applies((40, 34, 3, 3), Window((3, 3), dilation=(1, 2)), (29, 31))
    assert not applies((40, 34, 3, 5), Window((3, 5)), (29, 31))
    monkeypatch.setenv("PYCAFFE_LITE_WINOGRAD", "0")
    assert not applies((40, 34, 3, 3), window, (29, 31))


def test_weights_changed_in_between_are_seen(rng):
    x, w, window, out = winograd_case(rng)
    ops = JitOps()
    places = [(0, 0, 0, 0), (39, 33, 2, 2), (17, 20, 1, 2)]  # first, last, one of the middle
    for place in [None, *places]:
        if place:
            w[place] += 3
        ops.conv_forward(x, w, None, window, 1, out)
        expected = convolved(x, w, None, window, 1)
        np.testing.assert_allclose(out, expected, atol=2e-5 * abs(expected).max())


def test_swapped_weights_have_another_check_sum(rng):
    w = rng.standard_normal((7, 5, 3, 3)).astype("f")
    before = winograd._check_sum(w)
    flat = w.reshape(-1)
    for i, j in [(0, 1), (0, 64), (3, 131), (313, 314)]:
        flat[[i, j]] = flat[[j, i]]
        assert winograd._check_sum(w) != before
        flat[[i, j]] = flat[[j, i]]
    assert winograd._check_sum(w) == before


@pytest.mark.parametrize("factor", [-1, 2, -2, 0.5, 0])
@pytest.mark.parametrize("count", [1, 2, 128, 1024, 1024 * 9])
def test_scaled_weights_have_another_check_sum(rng, factor, count):
    w = rng.standard_normal((32, 32, 3, 3)).astype("f")
    before = winograd._check_sum(w)
    w.reshape(-1)[:count] *= factor
    assert winograd._check_sum(w) != before


def test_maps_go_with_the_weights(rng):
    _, w, window, _ = winograd_case(rng)
    before = len(winograd._known)
    winograd.map_weights(w, 1)
    assert len(winograd._known) == before + 1
    del w
    gc.collect()
    assert len(winograd._known) == before


def test_a_bad_value_stays_in_the_tiles_that_read_it(rng):
    x, w, window, out = winograd_case(rng)
    x[0, 3, 9, 10] = np.nan
    JitOps().conv_forward(x, w, None, window, 1, out)
    bad = np.isnan(out)
    assert bad[:, :, 8:11, 9:12].all()
    assert not bad[:, :, :4].any()
    assert not bad[:, :, :, 16:].any()
