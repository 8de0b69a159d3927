"""What does pycaffe keep once a process? Its log, and its place among several solvers."""

from __future__ import annotations

import logging
import threading

_logger = logging.getLogger("pycaffe_lite")
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_handler: logging.Handler | None = None
_solver_count = 1
_solver_rank = 0
_NO_NCCL = (
    "NCCL is not there: pycaffe_lite trains on one GPU, and has_nccl() is False; run the script for"
    " one device"
)


# ---- the log -----------------------------------------------------------------------------------


class _GlogFormatter(logging.Formatter):
    """Lines as glog writes them, which log readers know: `I0131 12:34:56.123456 7 file.py:3] x`."""

    def format(self, record: logging.LogRecord) -> str:
        letter = record.levelname[:1].replace("C", "F")  # glog's name of the worst is FATAL
        time = self.formatTime(record, "%m%d %H:%M:%S")
        micros = int(record.created % 1 * 1e6)
        place = f"{threading.get_native_id()} {record.filename}:{record.lineno}"
        text = super().format(record).removesuffix("\n")  # glog ends a line once, too
        return f"{letter}{time}.{micros:06d} {place}] {text}"


def init_log(level: int = 0, stderr: bool = False) -> None:
    """Keep what is below `level` out of the log; with `stderr`, write the rest there as glog does.

    The levels are glog's: 0 info, 1 warning, 2 error, 3 fatal; ValueError for any other. The log is
    Python's logger `pycaffe_lite`, so a program's own logging set-up works too. Calling it again
    replaces what it did before.
    """
    global _handler
    if level not in range(len(_LEVELS)):
        raise ValueError(f"a log level is 0 (info) to {len(_LEVELS) - 1} (fatal), got {level}")
    _logger.setLevel(_LEVELS[level])
    if _handler is not None:
        _logger.removeHandler(_handler)
        _handler = None
    if stderr:
        _handler = logging.StreamHandler()
        _handler.setFormatter(_GlogFormatter())
        _logger.addHandler(_handler)


def log(text: str) -> None:
    """Log `text` at level info, with the caller's file and line; unseen before `init_log`."""
    _logger.info("%s", text, stacklevel=2)


# ---- several solvers ---------------------------------------------------------------------------


def solver_count() -> int:
    """How many solvers train one net together, this one included; 1 unless set."""
    return _solver_count


def set_solver_count(count: int) -> None:
    """Say how many solvers train together; ValueError below 1.

    Nothing here exchanges gradients between solvers: the number is for layers that share out the
    records of a source among them.
    """
    global _solver_count
    if count < 1:
        raise ValueError(f"a solver count must be at least 1, got {count}")
    _solver_count = int(count)


def solver_rank() -> int:
    """The place of this process among the solvers, from 0; 0 unless set."""
    return _solver_rank


def set_solver_rank(rank: int) -> None:
    """Say which of the solvers this process is, from 0; ValueError for a negative one."""
    global _solver_rank
    if rank < 0:
        raise ValueError(f"a solver rank must not be negative, got {rank}")
    _solver_rank = int(rank)


def set_multiprocess(multiprocess: bool) -> None:
    """Does nothing: Caffe asks for it before Python layers may train in several processes; here
    they always may."""


def has_nccl() -> bool:
    """False: gradients are not exchanged between GPUs."""
    return False


class NCCL:
    """Stands where pycaffe has its exchange of gradients between GPUs: every use is RuntimeError.

    `has_nccl()` tells beforehand.
    """

    def __init__(self, solver: object, uid: bytes | None = None) -> None:
        raise RuntimeError(_NO_NCCL)

    @staticmethod
    def new_uid() -> bytes:
        """Raises RuntimeError; scripts for several GPUs begin with it."""
        raise RuntimeError(_NO_NCCL)
