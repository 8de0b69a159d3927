"""Is this layer right? `check_layer` asserts all that a layer owes, from one prototxt snippet.

Values are compared with an oracle that the test writes in NumPy; gradients with one directional
derivative an input and parameter, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

import pycaffe_lite
from pycaffe_lite import device, prototxt
from pycaffe_lite.blob import precision
from pycaffe_lite.net import Net
from pycaffe_lite.ops.base import Ops

Shape = tuple[int, ...]
Oracle = Callable[..., Any]

EPS = 1e-4
MODEL_SEED = 20


def run_net(text: str, phase: int = pycaffe_lite.TEST, **inputs: Any) -> Net:
    """A net from prototxt text after one forward on the inputs."""
    net = make_net(text, phase)
    net.forward(**inputs)
    return net


def make_net(text: str, phase: int = pycaffe_lite.TEST) -> Net:
    return Net(prototxt.parse_net(text), phase)


def check_layer(
    ops: Ops,
    snippet: str,
    bottoms: Sequence[Shape],
    expect: Oracle | None,
    *,
    tops: int = 1,
    phase: str = "TEST",
    kink: float | None = None,
    spaced: bool = False,
    gradients: Sequence[int] | None = None,
    values: Sequence[np.ndarray] | None = None,
    params: Sequence[np.ndarray] | None = None,
    rtol: float = 2e-5,
) -> None:
    """Everything a layer promises, on one backend.

    `snippet` is the inside of `layer { }` without name, bottom and top; `bottoms` the input shapes;
    `expect(*inputs, *params)` gives the top (or a tuple of them) from float64 arrays; None where
    values are random. `kink`: inputs keep away from that value, where there is no derivative;
    `spaced`: all input values differ by more than a derivative's step; `gradients`: the bottoms
    that have one (all); `values`: inputs to use instead of random ones; `params`: the parameters'
    likewise.
    """
    case = _Case(snippet, bottoms, tops, phase, kink, spaced, values, params)
    wanted = range(len(bottoms)) if gradients is None else gradients
    with device.pretend(ops):
        if expect is not None:
            case.check_forward(expect, rtol)
            case.check_reshape(expect, rtol)
        case.check_bottoms_untouched(ops)
        case.check_no_hidden_sync(ops)
        with precision(np.float64):
            case.check_gradients(wanted)
            case.check_diffs(wanted)
        case.check_in_place()


class _Case:
    def __init__(
        self,
        snippet: str,
        bottoms: Sequence[Shape],
        tops: int,
        phase: str,
        kink: float | None,
        spaced: bool,
        values: Sequence[np.ndarray] | None,
        params: Sequence[np.ndarray] | None,
    ) -> None:
        self.snippet, self.shapes, self.n_tops = snippet, list(bottoms), tops
        self.phase = getattr(pycaffe_lite, phase)
        self.kink, self.spaced = kink, spaced
        self.rng = np.random.default_rng(7)
        self.inputs = list(values) if values is not None else [self.draw(s) for s in bottoms]
        self.given = params

    # ---- building ------------------------------------------------------------------------------

    def draw(self, shape: Shape) -> np.ndarray:
        count = int(np.prod(shape))
        if self.spaced:
            return (self.rng.permutation(count) - count / 3).reshape(shape) * 0.05
        x = self.rng.normal(size=shape)
        if self.kink is not None:
            near = np.abs(x - self.kink) < 0.05
            x[near] += 0.1
        return x

    def net(self, in_place: bool = False) -> Net:
        layers = ["force_backward: true"]
        for k, shape in enumerate(self.shapes):
            dims = " ".join(f"dim: {d}" for d in shape)
            layers.append(
                f"layer {{ name: 'in{k}' type: 'Input' top: 'x{k}'"
                f" input_param {{ shape {{ {dims} }} }} }}"
            )
        ends = [f"bottom: 'x{k}'" for k in range(len(self.shapes))]
        ends += ["top: 'x0'"] if in_place else [f"top: 'y{k}'" for k in range(self.n_tops)]
        layers.append(f"layer {{ name: 'it' {' '.join(ends)} {self.snippet} }}")
        pycaffe_lite.set_random_seed(MODEL_SEED)
        net = make_net("\n".join(layers), self.phase)
        draw = np.random.default_rng(11)
        for k, blob in enumerate(self.params(net)):
            blob.data[...] = draw.normal(size=blob.shape) if self.given is None else self.given[k]
        return net

    def params(self, net: Net) -> list[Any]:
        return list(net.layer_dict["it"].blobs)

    def top_names(self, net: Net) -> list[str]:
        return net.top_names["it"]

    def run(self, net: Net, inputs: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Forward on the inputs, random numbers the same each time; copies of the tops."""
        for k, x in enumerate(inputs if inputs is not None else self.inputs):
            net.blobs[f"x{k}"].reshape(*x.shape)
            net.blobs[f"x{k}"].data[...] = x
        pycaffe_lite.set_random_seed(MODEL_SEED + 1)
        net.forward()
        return [net.blobs[name].data.copy() for name in self.top_names(net)]

    def backward(self, net: Net, dys: Sequence[np.ndarray]) -> None:
        for name, dy in zip(self.top_names(net), dys, strict=True):
            net.blobs[name].diff[...] = dy
        net.backward()

    def top_diffs(self, tops: Sequence[np.ndarray]) -> list[np.ndarray]:
        draw = np.random.default_rng(13)
        return [draw.normal(size=y.shape) for y in tops]

    # ---- what is owed --------------------------------------------------------------------------

    def compare(self, net: Net, inputs: list[np.ndarray], expect: Oracle, rtol: float) -> None:
        given = [x.astype(np.float32).astype(np.float64) for x in inputs]
        tops = self.run(net, given)
        wanted = expect(*given, *(b.data.astype(np.float64) for b in self.params(net)))
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        assert len(tops) == len(wanted)
        for y, w in zip(tops, wanted, strict=True):
            assert y.dtype == np.float32
            assert y.shape == np.shape(w)
            scale = max(float(np.abs(w).max(initial=0)), 1e-6)
            assert_allclose(y, w, rtol=rtol, atol=rtol * scale)

    def check_forward(self, expect: Oracle, rtol: float) -> None:
        self.compare(self.net(), self.inputs, expect, rtol)

    def check_reshape(self, expect: Oracle, rtol: float) -> None:
        """The batch as it is, a larger one, then a smaller one."""
        if not self.shapes or not self.shapes[0] or self.has_params_over_batch():
            return
        net = self.net()
        for factor in (1, 2, 1):
            self.compare(net, [np.concatenate([x] * factor) for x in self.inputs], expect, rtol)

    def has_params_over_batch(self) -> bool:
        """True where the layer refuses another batch size (its parameters span that axis)."""
        try:
            self.run(self.net(), [np.concatenate([x] * 2) for x in self.inputs])
        except pycaffe_lite.ModelError:
            return True
        return False

    def check_bottoms_untouched(self, ops: Ops) -> None:
        """As the backend holds them: a stray write there need not reach the host."""
        net = self.net()
        self.run(net)
        for k, x in enumerate(self.inputs):
            held = ops.to_host(net.blobs[f"x{k}"].array(ops, write=False))
            assert_array_equal(held, x.astype(np.float32))

    def check_no_hidden_sync(self, ops: Ops) -> None:
        """On a device that counts them: forward and backward never wait for the host."""
        counters = getattr(ops, "counters", None)
        net = self.net()
        tops = self.run(net)
        step = net._steps[-1]
        if counters is None or step.layer.host_only:
            return
        for name, dy in zip(self.top_names(net), self.top_diffs(tops), strict=True):
            net.blobs[name].diff[...] = dy
        counters.reset()
        step.forward()
        step.backward(ops)
        assert counters.syncs == 0, f"{counters.syncs} hidden syncs"
        assert counters.downloads == 0, f"{counters.downloads} hidden downloads"

    def check_gradients(self, wanted: Sequence[int]) -> None:
        """<dy, J u> by central difference == <J^T dy, u>, for each input and each parameter."""
        net = self.net()
        dys = self.top_diffs(self.run(net))
        net.clear_param_diffs()
        self.backward(net, dys)
        grads = [net.blobs[f"x{k}"].diff.copy() for k in wanted]
        arrays = [self.inputs[k] for k in wanted]
        for k, (x, dx) in enumerate(zip(arrays, grads, strict=True)):

            def move_input(value: np.ndarray, x: np.ndarray = x) -> list[np.ndarray]:
                return self.run(net, [value if other is x else other for other in self.inputs])

            self._check_direction(f"bottom {wanted[k]}", x, dx, dys, move_input)
        for k, blob in enumerate(self.params(net)):
            if k in net.layer_dict["it"].fixed_params:
                continue

            def move_param(value: np.ndarray, blob: Any = blob) -> list[np.ndarray]:
                blob.data[...] = value
                return self.run(net)

            start = blob.data.copy()
            self._check_direction(f"param {k}", start, blob.diff.copy(), dys, move_param)
            blob.data[...] = start

    def _check_direction(
        self,
        what: str,
        x: np.ndarray,
        dx: np.ndarray,
        dys: Sequence[np.ndarray],
        run_with: Callable[[np.ndarray], list[np.ndarray]],
    ) -> None:
        u = np.random.default_rng(17).normal(size=x.shape)
        sums = []
        for sign in (1, -1):
            tops = run_with(x + sign * EPS * u)
            sums.append(sum(float((y * dy).sum()) for y, dy in zip(tops, dys, strict=True)))
        numeric, analytic = (sums[0] - sums[1]) / (2 * EPS), float((dx * u).sum())
        assert_allclose(analytic, numeric, rtol=1e-5, atol=1e-6, err_msg=f"gradient of {what}")

    def check_diffs(self, wanted: Sequence[int]) -> None:
        """Bottom diffs overwritten, parameter diffs added to, nothing unasked for."""
        net = self.net()
        dys = self.top_diffs(self.run(net))
        net.clear_param_diffs()
        self.backward(net, dys)
        bottoms = [net.blobs[f"x{k}"].diff.copy() for k in wanted]
        params = [b.diff.copy() for b in self.params(net)]
        for k in wanted:
            net.blobs[f"x{k}"].diff[...] = np.nan
        self.run(net)
        self.backward(net, dys)
        for k, dx in zip(wanted, bottoms, strict=True):
            assert_array_equal(net.blobs[f"x{k}"].diff, dx, err_msg=f"bottom {k} not overwritten")
        for k, (blob, dw) in enumerate(zip(self.params(net), params, strict=True)):
            assert_allclose(blob.diff, 2 * dw, rtol=1e-9, err_msg=f"param {k} not added to")
        net._steps[-1].propagate_down = [False] * len(self.shapes)
        net._steps[-1].layer.param_propagate_down = [False] * len(params)
        for blob in [*(net.blobs[f"x{k}"] for k in range(len(self.shapes))), *self.params(net)]:
            blob.diff[...] = 5
        self.backward(net, dys)
        for k in range(len(self.shapes)):
            assert (net.blobs[f"x{k}"].diff == 5).all(), f"bottom {k}: gradient not asked for"
        for k, blob in enumerate(self.params(net)):
            assert (blob.diff == 5).all(), f"param {k}: gradient not asked for"

    def check_in_place(self) -> None:
        """In place == out of place, forward and backward, where the layer allows it."""
        net = self.net()
        if not net.layer_dict["it"].in_place or len(self.shapes) != 1 or self.n_tops != 1:
            return
        other = self.net(in_place=True)
        tops, same = self.run(net), self.run(other)
        assert_array_equal(same[0], tops[0], err_msg="in place forward")
        dys = self.top_diffs(tops)
        self.backward(net, dys)
        self.backward(other, dys)
        assert_allclose(
            other.blobs["x0"].diff, net.blobs["x0"].diff, rtol=1e-6, err_msg="in place backward"
        )


def golden_cases(folder: Path) -> list[Path]:
    """The recorded cases in a folder, sorted; none where the folder is absent."""
    return sorted(folder.glob("*.npz"))
