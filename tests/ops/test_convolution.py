"""Convolution and its gradients: loops == generic, generic == every backend, on every path."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.cpu import CpuOps, batches, columns, convolution, gradients
from pycaffe_lite.ops.cpu.threads import set_num_threads
from pycaffe_lite.ops.window import Window


class Case(NamedTuple):
    n: int
    channels: int
    outputs: int
    group: int
    spatial: tuple[int, ...]
    window: Window


TINY = [
    Case(2, 3, 4, 1, (5,), Window((2,), (2,), (1,))),
    Case(2, 4, 6, 2, (5, 3), Window((3, 2), (2, 1), (1, 2), (1, 2))),
    Case(1, 3, 2, 1, (3, 4, 5), Window((2, 1, 3), (1, 3, 2), (0, 1, 2), (2, 1, 1))),
    Case(2, 3, 5, 1, (4, 6), Window((1, 1))),
    Case(2, 6, 3, 3, (4, 5), Window((1, 1), (2, 1), (0, 1))),
    Case(3, 4, 2, 1, (), Window(())),
    Case(3, 4, 2, 2, (), Window(())),
    Case(0, 3, 4, 1, (5, 6), Window((3, 2))),
]
"""Including no spatial axis (an inner product) and an empty batch."""


def uneven(seed: int) -> Case:
    """Sizes at random, pads wider than the kernel's reach included."""
    rng = np.random.default_rng(seed)
    dims, group = int(rng.integers(1, 4)), int(rng.integers(1, 4))

    def draw(low: int, high: int) -> tuple[int, ...]:
        return tuple(int(v) for v in rng.integers(low, high, dims))

    window = Window(draw(1, 5), draw(1, 4), draw(0, 4), draw(1, 3))
    spatial = tuple(
        max(1, extent - 2 * pad) + more
        for extent, pad, more in zip(window.extent, window.pad, draw(0, 11), strict=True)
    )
    n, channels, outputs = (int(v) for v in rng.integers(1, 5, 3))
    return Case(n, group * channels, group * outputs, group, spatial, window)


class Arrays(NamedTuple):
    x: np.ndarray
    w: np.ndarray
    b: np.ndarray
    dy: np.ndarray


def arrays(case: Case, dtype: type, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    positions = case.window.conv_shape(case.spatial)
    shapes = (
        (case.n, case.channels, *case.spatial),
        (case.outputs, case.channels // case.group, *case.window.kernel),
        (case.outputs,),
        (case.n, case.outputs, *positions),
    )
    return Arrays(*(rng.standard_normal(shape).astype(dtype) for shape in shapes))


def pairs(case: Case) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    """Every (index of y, of x, of w) that one multiplication of the convolution joins."""
    window, inputs = case.window, case.channels // case.group
    positions = window.conv_shape(case.spatial)
    for n, o, c in itertools.product(range(case.n), range(case.outputs), range(inputs)):
        g = o // (case.outputs // case.group)
        for p in np.ndindex(*positions):
            for k in np.ndindex(*window.kernel):
                at = tuple(
                    i * s - pad + t * d
                    for i, s, pad, t, d in zip(
                        p, window.stride, window.pad, k, window.dilation, strict=True
                    )
                )
                if all(0 <= i < size for i, size in zip(at, case.spatial, strict=True)):
                    yield (n, o, *p), (n, g * inputs + c, *at), (o, c, *k)


def run(ops: Ops, case: Case, a: Arrays, bias: bool = True) -> tuple[np.ndarray, ...]:
    """y, dx and dw (added to ones) of one backend."""
    dtype = a.x.dtype
    x, w, dy = ops.from_host(a.x), ops.from_host(a.w), ops.from_host(a.dy)
    b = ops.from_host(a.b) if bias else None
    y = ops.from_host(np.full(a.dy.shape, np.nan, dtype))
    dx = ops.from_host(np.full(a.x.shape, np.nan, dtype))
    dw = ops.from_host(np.ones(a.w.shape, dtype))
    assert ops.conv_forward(x, w, b, case.window, case.group, y) is y
    assert ops.conv_backward_data(dy, w, case.window, case.group, dx) is dx
    assert ops.conv_backward_weights(x, dy, case.window, case.group, dw) is dw
    return ops.to_host(y), ops.to_host(dx), ops.to_host(dw)


def same(got: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...], dtype: type) -> None:
    tolerance = 3e-5 if dtype == np.float32 else 1e-12
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * 10)


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.mark.parametrize("case", TINY)
def test_loops(ops: Ops, case: Case, dtype: type) -> None:
    a = arrays(case, dtype)
    y = np.zeros(a.dy.shape) + a.b.reshape(-1, *(1,) * len(case.spatial)).astype(float)
    dx, dw = np.zeros(a.x.shape), np.ones(a.w.shape)
    for at_y, at_x, at_w in pairs(case):
        y[at_y] += float(a.x[at_x]) * float(a.w[at_w])
        dx[at_x] += float(a.dy[at_y]) * float(a.w[at_w])
        dw[at_w] += float(a.dy[at_y]) * float(a.x[at_x])
    same(run(ops, case, a), (y, dx, dw), dtype)


@pytest.mark.parametrize("seed", range(20))
def test_uneven_shapes(ops: Ops, seed: int, dtype: type) -> None:
    case = uneven(seed)
    a = arrays(case, dtype, seed)
    same(run(ops, case, a, bias=seed % 2 == 0), run(Ops(), case, a, bias=seed % 2 == 0), dtype)


# ---- the CPU backend's own paths -----------------------------------------------------------------


@pytest.fixture
def two_threads() -> Iterator[None]:
    set_num_threads(2)
    yield
    set_num_threads(None)


@pytest.fixture(params=["whole", "tiles", "cut rows"])
def tiled(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> Iterator[None]:
    """All work on the pool, with scratch of a few positions or less."""
    size = {"whole": 4 << 20, "tiles": 4000, "cut rows": 300}[request.param]
    monkeypatch.setattr(convolution, "SMALL", 0)
    monkeypatch.setattr(convolution, "POOLED", 0)
    monkeypatch.setattr(gradients, "LARGE", 0)
    monkeypatch.setattr(gradients, "SOME", 0)
    monkeypatch.setattr(columns, "PHASES", size)
    columns._plan.cache_clear()
    convolution._cuts.cache_clear()
    for module in (convolution, gradients):
        monkeypatch.setattr(module, "COLUMNS", size)
        monkeypatch.setattr(module, "PRODUCT", size)
    yield
    columns._plan.cache_clear()
    convolution._cuts.cache_clear()


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("seed", range(40, 80))
def test_tiles(seed: int, dtype: type) -> None:
    case = uneven(seed)
    a = arrays(case, dtype, seed)
    same(run(CpuOps(), case, a, bias=seed % 2 == 0), run(Ops(), case, a, bias=seed % 2 == 0), dtype)


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (0, 2, 3, 1)])
def test_inputs_of_any_layout(kernel: tuple[int, int], order: tuple[int, ...], dtype: type) -> None:
    """Transposed and reversed inputs, read-only ones included."""
    case = Case(2, 3, 4, 1, (6, 7), Window(kernel))
    a = arrays(case, dtype)
    x = np.ascontiguousarray(a.x.transpose(order)).transpose(np.argsort(order))[..., ::-1]
    w = a.w[::-1]
    for array in (x, w, a.b):
        array.flags.writeable = False
    odd, plain = a._replace(x=x, w=w), a._replace(x=x.copy(), w=w.copy())
    same(run(CpuOps(), case, odd), run(Ops(), case, plain), dtype)


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "w", "b", "dy"])
@pytest.mark.parametrize("window", [Window((1, 1)), Window((3, 2), (2, 1), (1, 1))])
def test_nan_and_inf_spread_as_in_the_generic_kernels(
    bad: float, where: str, window: Window, dtype: type
) -> None:
    case = Case(2, 3, 4, 1, (6, 7), window)
    a = arrays(case, dtype)
    getattr(a, where).reshape(-1)[1] = bad
    with np.errstate(invalid="ignore"):
        got, expected = run(CpuOps(), case, a), run(Ops(), case, a)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        np.testing.assert_array_equal(np.isposinf(one), np.isposinf(other))


@pytest.mark.usefixtures("tiled")
def test_same_result_every_time() -> None:
    case = Case(2, 4, 6, 2, (13, 17), Window((3, 2), (2, 1), (1, 0)))
    a, ops = arrays(case, np.float32), CpuOps()
    first = run(ops, case, a)
    for _ in range(20):
        for one, other in zip(run(ops, case, a), first, strict=True):
            np.testing.assert_array_equal(one, other)


class Counting(CpuOps):
    """Notes the largest scratch of each thread and tag."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[tuple[int, str], int] = {}

    def scratch(self, tag: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        out = super().scratch(tag, shape, dtype)
        key = (threading.get_ident(), tag)
        self.bytes[key] = max(self.bytes.get(key, 0), out.nbytes)
        return out

    def most(self) -> int:
        threads = {thread for thread, _ in self.bytes}
        return max(
            sum(size for (thread, _), size in self.bytes.items() if thread == one)
            for one in threads
        )


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(
    ("shape", "outputs", "window"),
    [
        ((1, 1, 1, 1_000_000), 3, Window((1, 11))),
        ((1, 3, 400_000), 2, Window((9,), (1,), (4,))),
        ((1, 1, 20_000, 20_000), 2, Window((11, 11), (97, 103), (5, 4))),
        ((1, 1, 2, 300_000), 2, Window((2, 3), (1, 2), (1, 1), (1, 5))),
        ((1, 4096, 5, 4), 3, Window((3, 2))),
        ((1, 2, 1401, 1403), 2, Window((1400, 1401))),
        ((1, 2, 206, 207), 2, Window((160, 161), (4, 5))),
        ((1, 64, 131, 67), 128, Window((3, 3), (), (1, 1))),
        ((1, 1, 1, 3_000_001), 1, Window((1, 3_000_000))),
    ],
)
def test_scratch_is_bounded(shape: tuple[int, ...], outputs: int, window: Window) -> None:
    """Below 8 MB a thread: wide rows, huge images, many channels, kernels as large as images."""
    ops = Counting()
    x = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), shape, (0,) * len(shape))
    w = np.ones((outputs, shape[1], *window.kernel), np.float32)
    out = np.empty((1, outputs, *window.conv_shape(shape[2:])), np.float32)
    ops.conv_forward(x, w, np.ones(outputs, np.float32), window, 1, out)
    assert 0 < ops.most() < 8e6
    centre = tuple(n // 2 for n in out.shape[2:])
    if not any(window.pad):
        assert out[(0, 0, *centre)] == pytest.approx(w[0].size + 1, rel=1e-4)


@pytest.mark.usefixtures("two_threads")
def test_scratch_of_gradients_is_bounded() -> None:
    ops = Counting()
    case = Case(1, 24, 31, 1, (90, 110), Window((5, 3), (), (2, 1)))
    a = arrays(case, np.float32)
    got, expected = run(ops, case, a), run(Ops(), case, a)
    assert 0 < ops.most() < 8e6
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-2)


class Batches(CpuOps):
    """The kernels with the images innermost wherever they can be, however slow."""

    def conv_forward(self, x, w, b, window, group, out):
        conv = convolution.sizes(x, w, out, window, group)
        if conv is None or not batches.images_at_once(conv, 2):
            return super().conv_forward(x, w, b, window, group, out)
        batches.forward(conv, b, self.scratch)
        return out

    def conv_backward_data(self, dy, w, window, group, out):
        conv = convolution.sizes(out, w, dy, window, group)
        if conv is None or not batches.images_at_once(conv, 2):
            return super().conv_backward_data(dy, w, window, group, out)
        batches.backward_data(conv, self.scratch)
        return out

    def conv_backward_weights(self, x, dy, window, group, out):
        conv = convolution.sizes(x, out, dy, window, group)
        if conv is None or not batches.images_at_once(conv, 2):
            return super().conv_backward_weights(x, dy, window, group, out)
        batches.backward_weights(conv, self.scratch)
        return out


@pytest.fixture(params=["whole", "chunks"])
def small_blocks(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    """Blocks of all images and positions, or of one or two."""
    if request.param == "chunks":
        for name, size in {"STRIPS": 9000, "IMAGES": 12000, "OUTPUTS": 3000}.items():
            monkeypatch.setattr(batches, name, size)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("seed", range(100, 140))
def test_images_innermost(seed: int, dtype: type) -> None:
    case = uneven(seed)
    case = case._replace(n=int(np.random.default_rng(seed).integers(0, 9)))
    a, bias = arrays(case, dtype, seed), seed % 2 == 0
    got = run(Batches(), case, a, bias)
    same(got, run(Ops(), case, a, bias), dtype)
    for one, other in zip(run(Batches(), case, a, bias), got, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("size", [600, 1 << 20])
@pytest.mark.parametrize("seed", range(140, 160))
def test_weights_by_images(
    seed: int, size: int, dtype: type, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    for name in ("COLUMNS", "PRODUCT"):
        monkeypatch.setattr(gradients, name, size)
    case = uneven(seed)._replace(n=1 + seed % 7)
    a, ops = arrays(case, dtype, seed), CpuOps()
    got, expected = np.ones_like(a.w), np.ones_like(a.w)
    conv = convolution.sizes(a.x, got, a.dy, case.window, case.group)
    assert conv is not None
    gradients.weights_by_images(conv, ops.scratch)
    Ops().conv_backward_weights(a.x, a.dy, case.window, case.group, expected)
    same((got,), (expected,), dtype)


@pytest.mark.usefixtures("two_threads")
def test_a_batch_of_one_channel() -> None:
    """Of a size at which the backend gives each thread images of its own, scratch bounded."""
    case = Case(18, 1, 20, 1, (49, 51), Window((6, 5)))
    a, ops = arrays(case, np.float32), Counting()
    for one, other in zip(run(ops, case, a), run(Ops(), case, a), strict=True):
        assert abs(one - other).max() <= 2e-5 * abs(other).max()
    assert ops.most() < 8e6


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "w", "b", "dy"])
def test_nan_and_inf_spread_with_images_innermost(bad: float, where: str, dtype: type) -> None:
    case = Case(5, 3, 4, 1, (6, 7), Window((3, 2), (2, 1), (1, 1)))
    a = arrays(case, dtype)
    getattr(a, where).reshape(-1)[1] = bad
    with np.errstate(invalid="ignore"):
        got, expected = run(Batches(), case, a), run(Ops(), case, a)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        np.testing.assert_array_equal(np.isposinf(one), np.isposinf(other))


@pytest.mark.usefixtures("two_threads")
def test_a_batch_of_small_images() -> None:
    """Of a size at which the backend itself takes the images as innermost axis, scratch bounded."""
    case = Case(19, 21, 43, 1, (11, 14), Window((5, 4), (), (2, 1)))
    a, ops = arrays(case, np.float32), Counting()
    got = run(ops, case, a)
    assert {tag for _, tag in ops.bytes} >= {"outputs", "phases"}
    assert ops.most() < 8e6
    for one, other in zip(got, run(Ops(), case, a), strict=True):
        assert abs(one - other).max() <= 1e-5 * abs(other).max()


def test_gradients_of_a_few_images_at_a_time(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    case = Case(5, 3, 4, 1, (6, 7), Window((3, 2), (2, 1), (1, 0)))
    monkeypatch.setattr(gradients, "SOME", 2 * 18 * 3 * 6 * np.dtype(dtype).itemsize)
    a = arrays(case, dtype)
    same(run(CpuOps(), case, a), run(Ops(), case, a), dtype)


# ---- recorded figures ----------------------------------------------------------------------------


def test_sobel_is_separable(ops: Ops, rng: np.random.Generator) -> None:
    """A 3 x 3 Sobel filter of stride 2 equals its column filter followed by its row filter."""
    x = rng.standard_normal((2, 3, 6, 4)).astype(np.float32)

    def conv(x: np.ndarray, kernel: list[list[float]], stride: tuple[int, int]) -> np.ndarray:
        w = np.broadcast_to(np.array(kernel, np.float32), (1, x.shape[1], *np.shape(kernel)))
        window = Window(np.shape(kernel), stride)
        out = ops.from_host(np.empty((2, 1, *window.conv_shape(x.shape[2:])), np.float32))
        w = ops.from_host(np.ascontiguousarray(w))
        return ops.to_host(ops.conv_forward(ops.from_host(x), w, None, window, 1, out))

    whole = conv(x, [[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], (2, 2))
    column = conv(x, [[1], [2], [1]], (2, 1))
    row = conv(np.ascontiguousarray(column), [[-1, 0, 1]], (1, 2))
    assert whole.shape == (2, 1, 2, 1)
    np.testing.assert_allclose(whole, row, rtol=1e-5, atol=1e-6)


def test_recorded_deconvolution(ops: Ops) -> None:
    """Ones through a 3 x 3 stride 2 transpose with bias 0.1: 3.1, 6.1 or 12.1 by position."""
    window = Window((3, 3), (2, 2))
    x, w = np.ones((2, 3, 6, 4), np.float32), np.ones((3, 4, 3, 3), np.float32)
    out = ops.from_host(np.empty((2, 4, 13, 9), np.float32))
    y = ops.to_host(ops.conv_backward_data(ops.from_host(x), ops.from_host(w), window, 1, out))
    h, width = np.mgrid[:13, :9]
    tall = (h % 2 == 0) & (h > 0) & (h < 12)
    wide = (width % 2 == 0) & (width > 0) & (width < 8)
    expected = 3.1 + np.where(tall & wide, 9, np.where(tall | wide, 3, 0))
    np.testing.assert_allclose(y + 0.1, np.broadcast_to(expected, y.shape), rtol=1e-5)
