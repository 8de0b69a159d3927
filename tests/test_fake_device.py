"""Does the pretend device catch what a GPU would refuse?"""

from __future__ import annotations

import numpy as np
import pytest
from fake_device import FakeArray, FakeOps

from pycaffe_lite.ops.base import Ops
from pycaffe_lite.ops.window import Window


@pytest.fixture
def ops():
    return FakeOps()


@pytest.fixture
def a(ops):
    return ops.from_host(np.arange(6, dtype=np.float32).reshape(2, 3))


HOST = np.ones((2, 3), np.float32)

MIXTURES = {
    "add": lambda xp, a: a + HOST,
    "radd": lambda xp, a: HOST + a,
    "scalar array": lambda xp, a: a * np.array(2.0),
    "in place": lambda xp, a: a.__iadd__(HOST),
    "host in place": lambda xp, a: np.add(HOST, a, out=HOST.copy()),
    "assign": lambda xp, a: a.__setitem__(..., HOST),
    "assign to host": lambda xp, a: HOST.copy().__setitem__(..., a),
    "assign list": lambda xp, a: a.__setitem__(0, [1.0, 2.0, 3.0]),
    "list operand": lambda xp, a: a + [1.0, 2.0, 3.0],
    "function": lambda xp, a: xp.maximum(a, HOST),
    "numpy function": lambda xp, a: np.maximum(a, HOST),
    "keyword out": lambda xp, a: xp.exp(a, out=HOST.copy()),
    "out of numpy": lambda xp, a: np.exp(HOST, out=a),
    "matmul": lambda xp, a: xp.matmul(a, HOST.T),
    "concatenate": lambda xp, a: xp.concatenate([a, HOST]),
    "where": lambda xp, a: xp.where(HOST > 0, a, 0),
    "copyto": lambda xp, a: xp.copyto(a, HOST),
    "copyto where": lambda xp, a: xp.copyto(a, 1, where=HOST > 0),
    "scatter": lambda xp, a: xp.add.at(a, (np.array([0]), np.array([1])), 1),
    "index": lambda xp, a: a[np.array([0, 1])],
    "index list": lambda xp, a: a[[0, 1]],
    "compare": lambda xp, a: a == HOST,
    "host only": lambda xp, a: xp.tanh(HOST),
    "asarray": lambda xp, a: np.asarray(a),
    "array": lambda xp, a: np.array(a),
    "contains": lambda xp, a: 1.0 in a,
}


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES)
def test_mixing_host_and_device_raises(ops, a, mixture):
    with pytest.raises(TypeError):
        mixture(ops.xp, a)


def test_two_devices_do_not_mix(a):
    other = FakeOps("fake:1")
    with pytest.raises(TypeError, match="two devices"):
        a + other.from_host(HOST)


@pytest.mark.parametrize(
    ("error", "use"),
    [
        (TypeError, lambda xp, a: xp.exp(a, where=a > 0)),
        (TypeError, lambda xp, a: a.sum(where=a > 0)),
        (TypeError, lambda xp, a: a.max(initial=0)),
        (TypeError, lambda xp, a: xp.take(a, a.astype(int), mode="clip")),
        (AttributeError, lambda xp, a: xp.errstate),
        (AttributeError, lambda xp, a: a.ctypes),
        (AttributeError, lambda xp, a: a.resize),
        (NotImplementedError, lambda xp, a: xp.multiply.at(a, 0, 1)),
        (NotImplementedError, lambda xp, a: xp.maximum.reduce(a)),
        (IndexError, lambda xp, a: a[xp.arange(3)]),
        (IndexError, lambda xp, a: xp.add.at(a, xp.arange(3), 1)),
        (TypeError, lambda xp, a: xp.asarray(["x"])),
        (TypeError, lambda xp, a: range(xp.arange(3)[2])),
    ],
)
def test_what_only_numpy_has_raises(ops, a, error, use):
    with pytest.raises(error):
        use(ops.xp, a)


@pytest.mark.parametrize("method", ["normal", "choice", "shuffle", "permutation"])
def test_generator_has_cupys_methods_only(ops, method):
    assert not hasattr(ops.rng(0), method)


def test_generator_draws_device_arrays(ops):
    for draw in (
        ops.rng(1).random((2, 3), dtype=np.float32),
        ops.rng(1).uniform(-1, 1, (2, 3), dtype=np.float32),
        ops.rng(1).standard_normal((2, 3), dtype=np.float32),
    ):
        assert isinstance(draw, FakeArray)
        assert (draw.shape, draw.dtype) == ((2, 3), np.float32)
    assert ops.rng(1).integers(0, 5, 4).shape == (4,)


def test_reductions_and_elements_stay_arrays(ops, a):
    for value in (a.sum(), a[1, 2], ops.xp.max(a), (a > 0).any(), ops.xp.float32(2) * a[0, 0]):
        assert isinstance(value, FakeArray)
        assert value.shape == ()
    assert ops.counters.syncs == 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda xp, a: float(a.sum()),
        lambda xp, a: int(a[0, 1]),
        lambda xp, a: a.sum().item(),
        lambda xp, a: a.tolist(),
        lambda xp, a: 1 if (a > 0).any() else 0,
        lambda xp, a: a[a > 2],
        lambda xp, a: xp.nonzero(a),
        lambda xp, a: xp.unique(a),
    ],
)
def test_hidden_syncs_are_counted(ops, a, wait):
    wait(ops.xp, a)
    assert ops.counters.syncs == 1


def test_launches_are_counted_and_views_are_free(ops, a):
    ops.counters.reset()
    b = a.reshape(3, 2).swapaxes(0, 1)[:, 1:]
    ops.xp.expand_dims(ops.xp.broadcast_to(b, (4, 2, 2)), 0)
    ops.xp.split(a, 3, axis=1)
    ops.xp.empty((2, 3))
    assert ops.counters.launches == 0
    a += 1
    a[...] = 2 * a
    ops.xp.exp(a, out=a)
    ops.xp.copyto(a, 0, where=a > 1)
    a.astype(np.float64)
    assert ops.counters.launches == 7
    assert (ops.counters.uploads, ops.counters.downloads, ops.counters.syncs) == (0, 0, 0)


def test_copies_are_counted(ops, a):
    assert (ops.counters.uploads, ops.counters.upload_elements) == (1, 6)
    ops.counters.reset()
    host = ops.download(a, np.empty((2, 3), np.float32))
    np.testing.assert_array_equal(ops.to_host(a), host)
    a.get()
    ops.xp.asarray(HOST)
    ops.xp.array([1.0, 2.0])
    ops.synchronize()
    c = ops.counters
    assert (c.downloads, c.download_elements, c.uploads, c.upload_elements) == (3, 18, 2, 8)
    assert (c.syncs, c.waits) == (0, 1)


def test_memory_is_apart_from_the_host(ops):
    host = np.ones(3, np.float32)
    array = ops.from_host(host)
    host[:] = 5
    np.testing.assert_array_equal(ops.to_host(array), 1)


def test_copies_need_equal_shapes_and_sides(ops, a):
    with pytest.raises(ValueError, match="shapes and dtypes"):
        ops.upload(np.zeros((3, 2), np.float32), a)
    with pytest.raises(ValueError, match="shapes and dtypes"):
        ops.download(a, np.zeros((2, 3)))
    with pytest.raises(TypeError, match="upload of FakeArray"):
        ops.upload(a, a)
    with pytest.raises(TypeError, match="download of ndarray"):
        ops.download(HOST, HOST.copy())


def test_generic_kernels_run_without_a_sync(ops):
    rng = np.random.default_rng(0)
    x = rng.random((2, 4, 7, 9), dtype=np.float32)
    w, window = rng.random((6, 2, 3, 2), dtype=np.float32), Window((3, 2), (2, 1), (1, 0))
    y = np.zeros((2, 6, *window.conv_shape((7, 9))), np.float32)
    out = ops.from_host(y)
    args = [ops.from_host(v) for v in (x, w)]
    ops.counters.reset()
    assert ops.conv_forward(*args, None, window, 2, out) is out
    assert ops.counters.syncs == ops.counters.uploads == ops.counters.downloads == 0
    np.testing.assert_allclose(
        ops.to_host(out), Ops().conv_forward(x, w, None, window, 2, y), rtol=1e-5
    )
