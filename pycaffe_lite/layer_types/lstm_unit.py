"""One step of an LSTM: the layer, and the formulas that the whole LSTM takes its steps by."""

from __future__ import annotations

from typing import Any

from ..blob import Blob, describe
from ..errors import ModelError
from ..layer import Layer


class LSTMUnit(Layer):
    """One step of an LSTM: c = f cont c_prev + i g, h = o tanh(c).

    Bottoms: c_prev (1, N, H), gates (1, N, 4 H) = i, f, o, g before sigmoid (g: tanh), cont (1, N).
    Tops: c, h (1, N, H). The gradient of f is right for a fraction in cont too (Caffe's CPU code is
    not).
    """

    bottoms = 3
    tops = 2
    keeps_bottom = True
    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        self._gates = Blob()

    def allow_force_backward(self, index: int) -> bool:
        return index != 2

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) != 3 or shape[0] != 1:
            raise ModelError(
                f"c_prev, bottom 0, has shape `{describe(shape)}`, expected 1 step x streams x"
                " outputs"
            )
        check_shape("gates, bottom 1,", bottom[1].shape, (*shape[:2], 4 * shape[2]))
        check_shape("cont, bottom 2,", bottom[2].shape, shape[:2])
        self._gates.reshape(bottom[1].shape)
        for y in top:
            y.reshape(shape)

    def forward(self, bottom: Any, top: Any) -> None:
        gates = self.state(self._gates)
        gates[...] = bottom[1].data
        open_gates(self.xp, gates[0])
        goes_on = bottom[2].data[0][:, None]
        cell(self.xp, gates[0], goes_on, bottom[0].data[0], top[0].data[0], top[1].data[0])

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[2]:
            raise ModelError("cannot backpropagate to cont, the continuation indicators (bottom 2)")
        gates, goes_on = self.state(self._gates), bottom[2].data[0][:, None]
        dgates = self.xp.empty(gates.shape[1:], dtype=gates.dtype)
        c = bottom[0].data[0], top[0].data[0]
        dc, dh = top[0].diff[0], top[1].diff[0]
        before = cell_backward(self.xp, gates[0], goes_on, c, dc, dh, dgates)
        if propagate_down[0]:
            bottom[0].diff[0] = before
        if propagate_down[1]:
            bottom[1].diff[0] = dgates


def open_gates(xp: Any, gates: Any) -> None:
    """(N, 4 H) in place: sigmoid, as 1 / (1 + exp(-x)), for three blocks and tanh for g.

    By way of tanh, as in the Sigmoid layer, a closed gate would lose its digits: 6 % at -16.
    """
    size = gates.shape[1] // 4
    sigmoids, g = gates[:, : 3 * size], gates[:, 3 * size :]
    xp.negative(sigmoids, out=sigmoids)
    xp.exp(sigmoids, out=sigmoids)
    sigmoids += 1
    xp.reciprocal(sigmoids, out=sigmoids)
    xp.tanh(g, out=g)


def _blocks(gates: Any) -> tuple[Any, Any, Any, Any]:
    """(N, 4 H) -> i, f, o, g (N, H)."""
    size = gates.shape[1] // 4
    return (
        gates[:, :size],
        gates[:, size : 2 * size],
        gates[:, 2 * size : 3 * size],
        gates[:, 3 * size :],
    )


def cell(xp: Any, gates: Any, goes_on: Any, before: Any, c: Any, h: Any) -> None:
    """Opened gates (N, 4 H), cont (N, 1) and the c before -> c, h (N, H)."""
    i, f, o, g = _blocks(gates)
    xp.multiply(f, goes_on * before, out=c)
    c += i * g
    xp.tanh(c, out=h)
    h *= o


def cell_backward(
    xp: Any, gates: Any, goes_on: Any, cells: tuple[Any, Any], dc: Any, dh: Any, out: Any
) -> Any:
    """`cells`: c before and after. -> out (N, 4 H), the gradient of the gates unopened; returns
    that of the c before."""
    i, f, o, g = _blocks(gates)
    di, df, do, dg = _blocks(out)
    before, after = cells
    t = xp.tanh(after)
    dc = dc + dh * o * (1 - t * t)
    di[...] = dc * g * i * (1 - i)
    df[...] = dc * (goes_on * before) * f * (1 - f)
    do[...] = dh * t * o * (1 - o)
    dg[...] = dc * i * (1 - g * g)
    return dc * f * goes_on


def check_shape(what: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """ModelError where a bottom has another shape than the one that the others ask for."""
    if shape != wanted:
        raise ModelError(f"{what} has shape `{describe(shape)}`, expected `{describe(wanted)}`")
