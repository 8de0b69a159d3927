"""How is a net trained? The loop: forward, backward, update, with tests, log lines and snapshots.

Order of operations, formulas and log lines are Caffe's. The solver types are in updates.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from .. import device, process, prototxt
from ..blob import Blob
from ..net import Net
from ..ops.base import Array, Ops
from ..parameters import Parameter
from . import gradients, snapshot, solver_file
from . import log as training_log
from .evaluation import evaluation
from .lr_policy import Schedule, learning_rate, observe_loss
from .observer import TrainingObserver
from .solver_file import NetChoice, PathLike, located, read_solver

log = logging.getLogger("pycaffe_lite")

Action = Callable[[], str | None]
"""Asked after each iteration and before each test batch: "snapshot", "stop", "none" or None."""


class Solver:
    """Trains the net that a solver's prototxt (or a SolverParameter) names.

    `net` is the net in training, `test_nets` those it is tested with; `iter` counts iterations;
    `param` is the SolverParameter, whose values count from the next iteration on; `history` holds
    what updates remember, a Blob for each parameter and kind; `last_lr` is the learning rate of the
    last update. `action` may stop the training, `observers` watch it. With the solver's
    `debug_info` the net in training logs its values where a display is due, test nets always.

    Raises MissingFileError for a file that is not there, and ModelError for what is wrong in one.
    """

    registry: ClassVar[dict[str, type[Solver]]] = {}
    histories: ClassVar[int] = 1
    """How many arrays `update` remembers for each parameter."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__name__.removesuffix("Solver")
        known = Solver.registry.get(name)
        if known is None or known.__module__ == cls.__module__:  # a built-in is never replaced
            Solver.registry[name] = cls

    def __init__(self, source: PathLike | Any) -> None:
        self.param = read_solver(source)
        self.iter = 0
        self.schedule = Schedule()
        self.action: Action | None = None
        self.observers: list[TrainingObserver] = []
        self.last_lr: float | None = None
        self.xp: Any = np
        self._callbacks: list[tuple[Callable[[], Any], Callable[[], Any]]] = []
        self._loss = training_log.SmoothedLoss()
        self._clock = training_log.Clock(0)
        self._stopping = False
        if log.isEnabledFor(logging.INFO):
            log.info("Initializing solver from parameters: \n%s", prototxt.to_text(self.param))
        with located(source):
            solver_file.check(self.param)
            self.check()
            train, tests = solver_file.train_net(self.param), solver_file.test_nets(self.param)
            if self.param.snapshot:
                snapshot.check_prefix(self.param.snapshot_prefix)
        self._build(source, train, tests)

    def _build(self, source: PathLike | Any, train: NetChoice, tests: list[NetChoice]) -> None:
        param = self.param
        if param.random_seed >= 0:
            device.set_random_seed(param.random_seed + process.solver_rank())
        how = "from" if isinstance(train.source, str) else "specified in"
        log.info("Creating training net %s %s", how, train.origin)
        self.net: Net = train.build(source)
        self.test_nets: list[Net] = []
        for k, choice in enumerate(tests):
            log.info("Creating test net (#%d) specified by %s", k, choice.origin)
            self.test_nets.append(choice.build(source))
        self._always_debugs = self.net.debug_info
        for net in self.test_nets:
            net.debug_info |= param.debug_info
        for path in _weights_files(param):
            for net in (self.net, *self.test_nets):
                net.copy_from(path)
        self._learnable: list[Parameter] = self.net._parameters.learnable
        blobs = [parameter.blob for parameter in self._learnable]
        self.history = [Blob(b.shape, b.dtype) for _ in range(self.histories) for b in blobs]
        log.info("Solver scaffolding done.")

    def check(self) -> None:
        """ModelError for settings that the solver's type cannot have."""

    # ---- training ------------------------------------------------------------------------------

    def step(self, n: int) -> None:
        """Run `n` iterations; none where it is not positive. Raises ModelError, as nets do."""
        stop, param = self.iter + n, self.param
        self._stopping = False
        self._loss.restart(param.average_loss)
        self._clock = training_log.Clock(self.iter)
        while self.iter < stop and not self._stopping:
            self.net.clear_param_diffs()
            if self._is_due(param.test_interval) and (self.iter or param.test_initialization):
                self._test_all()
                if self._stopping:
                    break
            self._iterate()
            for observer in self.observers:
                observer.iterated(self)
            self._take_action(snapshot_due=self._is_due(param.snapshot))
        self._loss.settle()

    def _iterate(self) -> None:
        for on_start, _ in self._callbacks:
            on_start()
        displays = self._is_due(self.param.display)
        self.net.debug_info = self._always_debugs or (displays and self.param.debug_info)
        self._loss.add(self.iter, self._forward_backward())
        if displays:
            training_log.display(
                self.net, self.iter, self._loss.value, self._clock, self.param.display
            )
        for _, on_gradients_ready in self._callbacks:
            on_gradients_ready()
        self.apply_update()

    def _is_due(self, interval: int) -> bool:
        return interval > 0 and self.iter % interval == 0

    def _forward_backward(self) -> Any:
        """The mean loss of iter_size batches, 0-d where the net runs; gradients are added up."""
        losses: list[Any] = []
        last = len(self.net.layers) - 1
        for _ in range(self.param.iter_size):
            losses += self.net._run_forward(0, last, want_loss=True)
            self.net._run_backward(last, 0)
        with np.errstate(all="ignore"), device.current().running():
            return sum(losses, 0.0) / self.param.iter_size

    def _take_action(self, snapshot_due: bool = False) -> None:
        """Do what `action` asks for, and the snapshot that is due anyway."""
        wish = (self.action() if self.action else None) or "none"
        if wish not in ("none", "snapshot", "stop"):
            raise ValueError(f"an action is 'none', 'snapshot' or 'stop', not {wish!r}")
        if snapshot_due or wish == "snapshot":
            self.snapshot()
        self._stopping |= wish == "stop"

    def solve(self, resume_file: PathLike | None = None) -> None:
        """Train up to max_iter, from a snapshot's .solverstate where given."""
        param = self.param
        if param.snapshot_after_train:
            snapshot.check_prefix(param.snapshot_prefix)
        log.info("Solving %s", self.net.name)
        log.info("Learning Rate Policy: %s", param.lr_policy)
        if resume_file is not None:
            log.info("Restoring previous solver status from %s", resume_file)
            self.restore(resume_file)
        self._stopping = False
        self.step(param.max_iter - self.iter)
        if param.snapshot_after_train and not self._is_due(param.snapshot):
            self.snapshot()
        if self._stopping:
            log.info("Optimization stopped early.")
            return
        if self._is_due(param.display):
            losses = self.net._run_forward(0, len(self.net.layers) - 1, want_loss=True)
            self._loss.add(self.iter, float(sum(losses, 0.0)))
            log.info("Iteration %d, loss = %g", self.iter, self._loss.value)
        if self._is_due(param.test_interval):
            self._test_all()
        log.info("Optimization Done.")

    def add_callback(
        self, on_start: Callable[[], Any], on_gradients_ready: Callable[[], Any] | None = None
    ) -> None:
        """Call the first before each iteration's forward, gradients being zero, and the second
        before its update."""
        if on_gradients_ready is None:
            raise RuntimeError("there is no NCCL: add_callback(on_start, on_gradients_ready)")
        self._callbacks.append((on_start, on_gradients_ready))

    # ---- the update ----------------------------------------------------------------------------

    @property
    def smoothed_loss(self) -> float:
        """The mean loss of the last `average_loss` iterations; infinity before the first."""
        return self._loss.value

    @property
    def lr(self) -> float:
        """The learning rate of the next update. Raises ModelError for an unknown policy."""
        if self.param.lr_policy == "plateau":
            observe_loss(self.param, self.schedule, self.iter, self._loss.value)
        return learning_rate(self.param, self.schedule, self.iter)

    def apply_update(self) -> None:
        """Update the parameters from their gradients, which become what was subtracted; count one
        iteration."""
        ops, rate = device.current(), self.lr
        self.last_lr = rate
        if self._is_due(self.param.display):
            log.info("Iteration %d, lr = %g", self.iter, rate)
            for observer in self.observers:
                observer.displayed(self)
        self.xp = ops.xp
        with np.errstate(all="ignore"), ops.running():  # as in nets: NaN is a result
            if self.param.clip_gradients >= 0:
                grads = [p.blob.array(ops, diff=True).reshape(-1) for p in self._learnable]
                gradients.clip(grads, self.param.clip_gradients, ops)
            for k in range(len(self._learnable)):
                self._update_parameter(k, rate, ops)
        self.iter += 1

    def _update_parameter(self, k: int, rate: float, ops: Ops) -> None:
        """Average, regularize, update: block by block, so that arrays stay in the cache."""
        parameter, n = self._learnable[k], len(self._learnable)
        blob = parameter.blob
        w = blob.array(ops).reshape(-1)
        g = blob.array(ops, diff=True).reshape(-1)
        history = [h.array(ops).reshape(-1) for h in self.history[k::n]]
        local = rate * _or_one(parameter.lr_mult)
        decay = self.param.weight_decay * _or_one(parameter.decay_mult)
        norm = self.param.regularization_type
        size = min(device.block_size(ops), blob.count)
        spare = ops.scratch("solver", (size,), blob.dtype)
        for start in range(0, blob.count, size or 1):
            part = slice(start, start + size)
            wp, gp = w[part], g[part]
            sp = spare[: len(gp)]
            gradients.average(gp, self.param.iter_size)
            gradients.regularize(wp, gp, decay, norm, sp, ops.xp)
            self.update(gp, [h[part] for h in history], local, sp)
            wp -= gp

    def update(self, g: Array, history: list[Array], rate: float, spare: Array) -> None:
        """Turn `g`, the gradient of some elements, into what is subtracted from them, in place.

        `history` are the arrays remembered for the same elements, `rate` is the parameter's own,
        `spare` is for intermediate values; all are flat, of the backend's, of equal length.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no update")

    # ---- tests ---------------------------------------------------------------------------------

    def _test_all(self) -> None:
        for k in range(len(self.test_nets)):
            if not self._stopping:
                self._test(k)

    def _test(self, index: int) -> None:
        """Log what a test net's outputs come to over its test_iter batches; nothing without any."""
        log.info("Iteration %d, Testing net (#%d)", self.iter, index)
        net, count = self.test_nets[index], self.param.test_iter[index]
        net.share_with(self.net)
        if not count:  # `test_iter: 0`, as HED's solver has it: a net, but no tests
            return
        result = evaluation(net, self.param)
        losses: list[Any] = []
        for _ in range(count):
            self._take_action()
            if self._stopping:
                log.info("Test interrupted.")
                return
            losses += net._run_forward(0, len(net.layers) - 1, self.param.test_compute_loss)
            result.add()
        loss = float(sum(losses, 0.0)) / count if self.param.test_compute_loss else None
        if loss is not None:
            log.info("Test loss: %g", loss)
        lines = list(result.lines())
        for line in lines:
            log.info("%s", line)
        for observer in self.observers:
            observer.tested(self, index, loss, lines)

    # ---- snapshots -----------------------------------------------------------------------------

    def snapshot(self) -> None:
        """Write the model, then the state to go on from, under snapshot_prefix; see snapshot.py.

        A file appears whole or not at all. Raises OSError where it cannot be written.
        """
        snapshot.save(self)

    def restore(self, state_file: PathLike) -> None:
        """Go on from a snapshot's state, weights included; test nets have them at once.

        Raises MissingFileError, and WeightsError for a file that is no state or does not fit.
        """
        snapshot.restore(self, state_file)
        for net in self.test_nets:
            net.share_with(self.net)

    def share_weights(self, net: Net) -> None:
        """Let `net` use the values of this solver's net from now on."""
        net.share_with(self.net)

    def first_bad_blob(self) -> str | None:
        """Where NaN or infinity stands first in the net, in words; None where all is finite."""
        return training_log.first_bad_blob(self.net)


def _weights_files(param: Any) -> list[str]:
    return [name.strip() for entry in param.weights for name in entry.split(",") if name.strip()]


def _or_one(mult: float | None) -> float:
    return 1.0 if mult is None else mult
