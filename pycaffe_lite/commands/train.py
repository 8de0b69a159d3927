"""Train a net: what a solver's prototxt says, from the beginning, weights or a snapshot.

`train -solver solver.prototxt [-snapshot FILE.solverstate | -weights FILE] [-gpu 0]`, as Caffe's.
"""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, Any

from . import _caffe
from ._flags import FlagParser

if TYPE_CHECKING:
    from ..training.signals import Signals
    from ..training.solver import Solver

log = logging.getLogger("pycaffe_lite")

_INTERRUPTED = 130  # what shells say of a process that SIGINT has ended


def add_arguments(parser: FlagParser) -> None:
    """The flags of `pycaffe-lite train`."""
    parser.add_flag("solver", "", "the solver's prototxt (required)")
    parser.add_flag("snapshot", "", "a .solverstate or .solverstate.h5 to go on from")
    parser.add_flag("sigint_effect", "stop", "what SIGINT does: stop (default), snapshot or none")
    parser.add_flag("sighup_effect", "snapshot", "the same of SIGHUP; default: snapshot")
    parser.add_flag("log_csv", "", "append a row a display and a test to this file")
    parser.add_flag("debug_nan", False, "stop at a loss that is not finite, and say where it began")
    _caffe.add_flags(
        parser, "weights", "gpu", "level", "stage",
        weights="files to begin with, commas between; in place of the solver's weights",
        gpu="number of the GPU; default: what the solver says, the CPU if nothing",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Train to the end; 0 too where a signal stops it, 130 where a second one does not wait.

    Raises RuntimeError for a GPU that is not there and with -debug_nan, OSError for a snapshot that
    cannot be written, and as Solver does for the files.
    """
    from ..training import signals

    _check(args)
    with (
        _caffe.glog(args),
        signals.handled(args.sigint_effect, args.sighup_effect) as action,
    ):
        try:
            _train(args, action)
        except KeyboardInterrupt:
            log.error("Interrupted a second time: ended without a snapshot.")
            return _INTERRUPTED
    return 0


def _check(args: argparse.Namespace) -> None:
    """Usage and status 1 for flags that do not fit."""
    from ..training.signals import EFFECTS

    _caffe.require(args, "solver", "a solver definition to train")
    if args.snapshot and args.weights:
        args.refuse("give -snapshot to resume training or -weights to finetune, not both")
    for flag in ("sigint_effect", "sighup_effect"):
        effect = getattr(args, flag)
        if effect not in EFFECTS:
            args.refuse(f"-{flag} must be stop, snapshot or none, not {effect!r}")


def _train(args: argparse.Namespace, action: Signals) -> None:
    from ..training.display import training_display
    from ..training.nan_check import stop_at_nan
    from ..training.solver_file import read_solver

    param = read_solver(args.solver)
    param.train_state.level = args.level
    param.train_state.stage.extend(_caffe.stages(args))
    _choose_device(args, param)
    if args.snapshot or args.weights:
        del param.weights[:]
    if args.weights:
        param.weights.append(args.weights)
    solver = _make_solver(args, param)
    solver.action = action
    if args.debug_nan:
        stop_at_nan(solver)
    if args.snapshot:
        log.info("Resuming from %s", args.snapshot)
        _restore(solver, args.snapshot)
    if args.log_csv:
        _log_csv(solver, args.log_csv)
    log.info("Starting Optimization")
    with training_display(solver):
        solver.solve()
    log.info("Optimization Done.")


def _choose_device(args: argparse.Namespace, param: Any) -> None:
    """-gpu, else what the solver's file says in so many words, else the CPU; logged as in Caffe.

    Raises RuntimeError for a GPU that is not there, and for several.
    """
    from .. import device

    asked = bool(args.gpu)
    if not asked and param.HasField("solver_mode") and param.solver_mode == param.GPU:
        args.gpu = str(param.device_id)
    try:
        ids = _caffe.gpu_ids(args)
    except RuntimeError as error:
        if asked:
            raise
        hint = f"{args.solver} has `solver_mode: GPU`; `solver_mode: CPU` trains without one"
        raise RuntimeError(f"{error} ({hint})") from error
    if not ids:
        log.info("Use CPU.")
        device.set_mode_cpu()
        return
    if len(ids) > 1:
        raise RuntimeError(
            f"cannot train on several GPUs, there is no NCCL: give one of {ids} with -gpu"
        )
    log.info("Using GPUs %d", ids[0])
    log.info("GPU %d: %s", ids[0], _caffe.gpu_name(ids[0]))
    param.device_id = ids[0]
    device.set_device(ids[0])
    device.set_mode_gpu()


def _make_solver(args: argparse.Namespace, param: Any) -> Solver:
    """Errors say the solver's file first, but for those of weights, which name their own."""
    from ..errors import ModelError, WeightsError
    from ..training.solver_file import located
    from ..training.updates import get_solver

    try:
        return get_solver(param)
    except WeightsError as error:
        if ".solverstate" not in args.weights:
            raise
        raise WeightsError(f"{error}; a .solverstate goes to -snapshot") from error
    except ModelError:
        with located(args.solver):
            raise


def _restore(solver: Solver, state_file: str) -> None:
    from ..errors import WeightsError

    try:
        solver.restore(state_file)
    except WeightsError as error:
        if ".caffemodel" not in state_file:
            raise
        raise WeightsError(f"{error}; here, -weights does") from error


def _log_csv(solver: Solver, path: str) -> None:
    from ..training.csv_table import TrainingCsv

    solver.observers.append(TrainingCsv(path, solver))
