"""Recurrent layers over all time steps: LSTM and RNN."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from ..blob import Blob, describe
from ..errors import ModelError
from ..layer import Layer
from .lstm_unit import cell, cell_backward, check_shape, open_gates


class _Recurrent(Layer):
    """What LSTM and RNN share: T steps over N streams, from x (T, N, ...) and cont (T, N).

    Where a hidden state is not exposed, a forward goes on from the last step of the forward before
    it, from zeros at the start and after N has changed. Gradients end at the first step.
    """

    param_field = "recurrent_param"
    writes_params = False
    keeps_bottom = True
    states: ClassVar[int]
    """Hidden states: h, then c."""
    rows: ClassVar[int]
    """Rows of the input's weights for each output."""

    def setup(self, bottom: Any, top: Any) -> None:
        param, shape = self.param, bottom[0].shape
        self.exposed = self.states if param.expose_hidden else 0
        self._check_counts(len(bottom), len(top))
        if param.num_output < 1:
            raise ModelError(f"num_output must be > 0, got {param.num_output}")
        if len(shape) < 2:
            raise ModelError(
                f"bottom 0 must have at least 2 axes, time steps and streams, got {len(shape)}"
            )
        if shape[0] < 1:
            raise ModelError(f"time steps must be > 0, got {shape[0]}")
        self.steps, self.size, self.outputs = shape[0], prod(shape[2:]), param.num_output
        self.has_static = len(bottom) > 2 + self.exposed
        height = self.rows * self.outputs
        self.add_param((height, self.size), param.weight_filler)
        self.add_param((height,), param.bias_filler)
        if self.has_static:
            self.static_size = prod(bottom[2].shape[1:])
            self.add_param((height, self.static_size), param.weight_filler)
        self.recurrent = len(self.blobs)  # where the weights of h stand among the parameters
        self.add_param((height, self.outputs), param.weight_filler)
        self._kept = [Blob() for _ in range(self.states)]  # (T + 1, N, H): row 0 is the start
        self.streams, self.restarts = -1, True

    def _check_counts(self, bottoms: int, tops: int) -> None:
        low = 2 + self.exposed
        how = f"with expose_hidden: {str(bool(self.exposed)).lower()} {self.type}"
        if not low <= bottoms <= low + 1:
            raise ModelError(f"{how} takes {low} or {low + 1} bottom blobs, got {bottoms}")
        if tops != 1 + self.exposed:
            raise ModelError(f"{how} produces {1 + self.exposed} top blob(s), got {tops}")

    def allow_force_backward(self, index: int) -> bool:
        return index != 1

    def reshape(self, bottom: Any, top: Any) -> None:
        shape = bottom[0].shape
        if len(shape) < 2 or prod(shape[2:]) != self.size:
            raise ModelError(
                f"input size incompatible with the weights: bottom `{describe(shape)}` vs."
                f" {self.size} values a step and stream"
            )
        if shape[0] != self.steps:
            raise ModelError(f"time steps may not change: {shape[0]} vs. {self.steps}")
        streams = shape[1]
        state = (1, streams, self.outputs)
        check_shape("cont, bottom 1,", bottom[1].shape, (self.steps, streams))
        if self.has_static:
            static = bottom[2].shape
            if static[:1] != (streams,) or prod(static[1:]) != self.static_size:
                raise ModelError(
                    f"static input, bottom 2, has shape `{describe(static)}`, expected {streams}"
                    f" streams of {self.static_size} values"
                )
        for k in range(self.exposed):
            at = 2 + self.has_static + k
            check_shape(f"hidden state, bottom {at},", bottom[at].shape, state)
            top[1 + k].reshape(state)
        top[0].reshape(self.steps, streams, self.outputs)
        for blob in self._kept:
            blob.reshape(self.steps + 1, streams, self.outputs)
        self.restarts = self.restarts or streams != self.streams
        self.streams = streams

    # ---- going on ------------------------------------------------------------------------------

    def data_state(self) -> dict[str, Any]:
        """The states that the next forward begins with, where it goes on from the one before."""
        goes_on = not (self.exposed or self.restarts)
        last = [blob.data[self.steps].tolist() for blob in self._kept] if goes_on else []
        return {"states": last}

    def restore_data_state(self, state: dict[str, Any]) -> None:
        """Go on as the layer did whose `data_state()` this is; ModelError for other streams."""
        last = state["states"]
        if last and len(last[0]) != self.streams:
            raise ModelError(
                f"hidden states of {len(last[0])} streams, the layer has {self.streams}"
            )
        self.restarts = not last
        for blob, values in zip(self._kept, last, strict=False):
            blob.data[self.steps] = values

    # ---- forward -------------------------------------------------------------------------------

    def _begin(self, bottom: Any) -> list[Any]:
        """The hidden states (T + 1, N, H), each with its start in row 0."""
        states = [self.state(blob) for blob in self._kept]
        for k, state in enumerate(states):
            if self.exposed:
                state[0] = bottom[2 + self.has_static + k].data[0]
            elif self.restarts:
                state[0] = 0
            else:
                state[0] = state[self.steps]
        self.restarts = False
        return states

    def _end(self, states: list[Any], top: Any) -> None:
        for y, state in zip(top[1:], states, strict=False):
            y.data[0] = state[self.steps]

    def _project(self, bottom: Any, out: Any) -> None:
        """What each step gets from the input: out (T, N, rows H), one product for all steps."""
        w, b = self.params[0].data, self.params[1].data
        self.xp.matmul(self._rows(bottom[0].data), w.T, out=self._rows(out))
        out += b
        if self.has_static:
            out += self._static(bottom[2].data) @ self.params[2].data.T

    # ---- backward ------------------------------------------------------------------------------

    def backward(self, top: Any, propagate_down: Any, bottom: Any) -> None:
        if propagate_down[1]:
            raise ModelError("cannot backpropagate to cont, the continuation indicators (bottom 1)")
        dz = self.xp.empty(
            (self.steps, self.streams, self.rows * self.outputs), dtype=top[0].diff.dtype
        )
        starts = self._steps_backward(bottom[1].data, top, dz)
        self._add_weight_gradients(bottom, dz)
        if propagate_down[0]:
            dx = self._rows(bottom[0].diff)
            self.xp.matmul(self._rows(dz), self.params[0].data, out=dx)
        if self.has_static and propagate_down[2]:
            dx = self._static(bottom[2].diff)
            self.xp.matmul(dz.sum(axis=0), self.params[2].data, out=dx)
        for k in range(self.exposed):
            at = 2 + self.has_static + k
            if propagate_down[at]:
                bottom[at].diff[0] = starts[k]

    def _add_weight_gradients(self, bottom: Any, dz: Any) -> None:
        wanted, rows = self.param_propagate_down, self._rows(dz)
        if wanted[0]:
            dw = self.params[0].diff
            dw += rows.T @ self._rows(bottom[0].data)
        if wanted[1]:
            db = self.params[1].diff
            db += rows.sum(axis=0)
        if self.has_static and wanted[2]:
            dw = self.params[2].diff
            dw += dz.sum(axis=0).T @ self._static(bottom[2].data)
        if wanted[self.recurrent]:
            dw = self.params[self.recurrent].diff
            h = self.state(self._kept[0])[:-1] * bottom[1].data[:, :, None]
            dw += rows.T @ self._rows(h)

    def _steps_backward(self, cont: Any, top: Any, dz: Any) -> list[Any]:
        """Fill dz, the gradient of what `_project` gave; the gradients of the starting states."""
        raise NotImplementedError

    def _rows(self, array: Any) -> Any:
        """(T, N, ...) -> (T N, values)."""
        shape = array.shape
        return array.reshape(shape[0] * shape[1], prod(shape[2:]))

    def _static(self, array: Any) -> Any:
        return array.reshape(self.streams, self.static_size)


class LSTM(_Recurrent):
    """Long short-term memory: h_t = o tanh(c_t), c_t = f cont_t c_{t-1} + i g, for T steps.

    (i, f, o, g) = W_x x_t + b + W_h (cont_t h_{t-1}) [+ W_s x_static], four blocks of H rows;
    sigmoid for i, f, o, tanh for g. Bottoms: x (T, N, ...), cont (T, N): 0 starts a sequence, 1
    goes on, fractions weigh; optionally x_static (N, ...). Top: h (T, N, H), H = `num_output`.
    With `expose_hidden` the last bottoms are the starting h and c (1, N, H), and two tops more
    hold the final ones; else a forward goes on from the last step of the one before, from zeros
    at the start and after N has changed. T is fixed. Parameters: W_x (4 H, D), b (4 H),
    W_s (4 H, D_s) with x_static, W_h (4 H, H).

    Gradients end at the first step. As in Caffe those of the final h and c are not used; exposed
    starting states do get a gradient (Caffe leaves zeros), and that of f is right for a fraction
    in cont too (Caffe's CPU code is not).
    """

    bottoms = (2, 5)
    tops = (1, 3)
    states = 2
    rows = 4

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self._gates = Blob()  # (T, N, 4 H), as the last forward opened them

    def reshape(self, bottom: Any, top: Any) -> None:
        super().reshape(bottom, top)
        self._gates.reshape(self.steps, self.streams, 4 * self.outputs)

    def forward(self, bottom: Any, top: Any) -> None:
        cont, w = bottom[1].data, self.params[self.recurrent].data
        states, gates = self._begin(bottom), self.state(self._gates)
        h, c = states
        self._project(bottom, gates)
        for t in range(self.steps):
            goes_on, now = cont[t][:, None], gates[t]
            now += (goes_on * h[t]) @ w.T
            open_gates(self.xp, now)
            cell(self.xp, now, goes_on, c[t], c[t + 1], h[t + 1])
        top[0].data[...] = h[1:]
        self._end(states, top)

    def _steps_backward(self, cont: Any, top: Any, dz: Any) -> list[Any]:
        dy, w = top[0].diff, self.params[self.recurrent].data
        gates, c = self.state(self._gates), self.state(self._kept[1])
        dh = dc = self.xp.zeros(dy.shape[1:], dtype=dy.dtype)
        for t in reversed(range(self.steps)):
            goes_on = cont[t][:, None]
            dc = cell_backward(self.xp, gates[t], goes_on, (c[t], c[t + 1]), dc, dh + dy[t], dz[t])
            dh = (dz[t] @ w) * goes_on
        return [dh, dc]


class RNN(_Recurrent):
    """h_t = tanh(W_h (cont_t h_{t-1}) + W_x x_t + b [+ W_s x_static]), o_t = tanh(W_o h_t + b_o).

    Bottoms: x (T, N, ...), cont (T, N): 0 starts a sequence, 1 goes on; optionally x_static
    (N, ...). Top: o (T, N, H), H = `num_output`. With `expose_hidden` the last bottom is the
    starting h (1, N, H), and a second top holds the final one; else a forward goes on from the
    last step of the one before, from zeros at the start and after N has changed. T is fixed.
    Parameters: W_x (H, D), b (H), W_s (H, D_s) with x_static, W_h (H, H), W_o (H, H), b_o (H).

    Gradients end at the first step. As in Caffe that of the final h is not used; an exposed
    starting h does get a gradient (Caffe leaves zeros).
    """

    bottoms = (2, 4)
    tops = (1, 2)
    states = 1
    rows = 1
    keeps_top = True

    def setup(self, bottom: Any, top: Any) -> None:
        super().setup(bottom, top)
        self.add_param((self.outputs, self.outputs), self.param.weight_filler)
        self.add_param((self.outputs,), self.param.bias_filler)

    def forward(self, bottom: Any, top: Any) -> None:
        cont, w = bottom[1].data, self.params[self.recurrent].data
        states = self._begin(bottom)
        (h,) = states
        self._project(bottom, h[1:])
        for t in range(self.steps):
            now = h[t + 1]
            now += (cont[t][:, None] * h[t]) @ w.T
            self.xp.tanh(now, out=now)
        y = top[0].data
        self.xp.matmul(self._rows(h[1:]), self.params[-2].data.T, out=self._rows(y))
        y += self.params[-1].data
        self.xp.tanh(y, out=y)
        self._end(states, top)

    def _steps_backward(self, cont: Any, top: Any, dz: Any) -> list[Any]:
        y, w, h = top[0].data, self.params[self.recurrent].data, self.state(self._kept[0])
        dout = self._rows(top[0].diff * (1 - y * y))
        if self.param_propagate_down[-2]:
            dw = self.params[-2].diff
            dw += dout.T @ self._rows(h[1:])
        if self.param_propagate_down[-1]:
            db = self.params[-1].diff
            db += dout.sum(axis=0)
        self.xp.matmul(dout, self.params[-2].data, out=self._rows(dz))
        dh: Any = 0
        for t in reversed(range(self.steps)):
            now = dz[t]
            now += dh
            now *= 1 - h[t + 1] * h[t + 1]
            dh = (now @ w) * cont[t][:, None]
        return [dh]
