"""Solvers that several test files run, and the same training by hand in float64."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

import pycaffe_lite

ROWS, BATCH = 8, 4
_IP = """layer { name: '%s' type: 'InnerProduct' bottom: '%s' top: '%s'
  param { name: '%s' lr_mult: %g decay_mult: %g } param { name: '%s' lr_mult: %g decay_mult: %g }
  inner_product_param { num_output: 1
    weight_filler { type: 'gaussian' std: 1 } bias_filler { type: 'gaussian' std: 1 } } }
"""


def write_problem(folder: Path, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Random data.h5 and its list.txt in a folder; the data (rows, 3, 5, 2), targets (rows, 1)."""
    draw = np.random.default_rng(7)
    x, y = draw.normal(size=(rows, 3, 5, 2)).astype("f4"), draw.normal(size=(rows, 1)).astype("f4")
    with h5py.File(folder / "data.h5", "w") as file:
        file.create_dataset("x", data=x)
        file.create_dataset("y", data=y)
    (folder / "list.txt").write_text(str(folder / "data.h5"))
    return x, y


def regression(folder: Path, *, batch=BATCH, mults=(1, 1, 1, 1), shared=False, more="") -> str:
    """A net with loss |xw + b - y|^2 / 2 batch; `mults`: lr and decay of w, then of b.

    Where `shared`, the two halves of a batch go through layers of their own with the same
    parameters. `more` follows the batch size in hdf5_data_param.
    """
    lr_w, decay_w, lr_b, decay_b = mults
    names = ("w", "b") if shared else ("", "")

    def ip(name, bottom, top):
        return _IP % (name, bottom, top, names[0], lr_w, decay_w, names[1], lr_b, decay_b)

    text = (
        "name: 'least_squares' layer { name: 'd' type: 'HDF5Data' top: 'x' top: 'y'"
        f" hdf5_data_param {{ source: '{folder}/list.txt' batch_size: {batch} {more} }} }}\n"
    )
    if shared:
        text += (
            "layer { name: 'halves' type: 'Slice' bottom: 'x' top: 'x1' top: 'x2'"
            " slice_param { axis: 0 } }\n"
            + ip("ip", "x1", "z1")
            + ip("ip2", "x2", "z2")
            + "layer { name: 'whole' type: 'Concat' bottom: 'z1' bottom: 'z2' top: 'z'"
            " concat_param { axis: 0 } }\n"
        )
    else:
        text += ip("ip", "x", "z")
    return text + (
        "layer { name: 'loss' type: 'EuclideanLoss' bottom: 'z' bottom: 'y' top: 'loss' }\n"
    )


def make_solver(folder: Path, settings: str, net: str | None = None, name: str = "solver"):
    """The solver of a prototxt with these settings; `net` is the text of its net."""
    if net is not None:
        (folder / "net.prototxt").write_text(net)
        settings += f" net: '{folder}/net.prototxt'"
    path = folder / f"{name}.prototxt"
    path.write_text(settings)
    return pycaffe_lite.get_solver(path)


def values(solver) -> list[np.ndarray]:
    """Copies of all parameters."""
    return [b.data.copy() for blobs in solver.net.params.values() for b in blobs]


class ByHand:
    """Least squares trained in float64, a formula of the literature for each solver type."""

    def __init__(self, kind, x, y, w, b, **settings) -> None:
        self.kind, self.x, self.y = kind, x.reshape(len(x), -1).astype("f8"), y.astype("f8")
        self.params = [w.astype("f8").ravel(), b.astype("f8").ravel()]
        defaults = dict(lr=0.01, decay=0.0, momentum=0.0, momentum2=0.999, rms_decay=0.95)
        defaults |= dict(delta=1e-8, mults=(1, 1, 1, 1), clip=-1, norm="L2", iter_size=1)
        self.set = {**defaults, **settings}
        self.first = [np.zeros_like(p) for p in self.params]
        self.second = [np.zeros_like(p) for p in self.params]
        self.iter = self.row = 0

    def gradients(self, batch):
        rows = (self.row + np.arange(batch)) % len(self.x)
        self.row = (self.row + batch) % len(self.x)
        w, b = self.params
        gap = self.x[rows] @ w + b - self.y[rows, 0]
        return [self.x[rows].T @ gap / batch, gap.sum(keepdims=True) / batch]

    def step(self, batch=BATCH):
        s = self.set
        total = [0.0, 0.0]
        for _ in range(s["iter_size"]):
            total = [t + g for t, g in zip(total, self.gradients(batch), strict=True)]
        norm = np.sqrt(sum((g * g).sum() for g in total))
        if 0 <= s["clip"] < norm:
            total = [g * s["clip"] / norm for g in total]
        for k, g in enumerate(total):
            lr, decay = s["mults"][2 * k : 2 * k + 2]
            g = g / s["iter_size"]
            p = self.params[k]
            g = g + s["decay"] * decay * (p if s["norm"] == "L2" else np.sign(p))
            self.params[k] = p - self.update(k, g, s["lr"] * lr)
        self.iter += 1

    def update(self, k, g, r):
        s, m, h, u = self.set, self.set["momentum"], self.first[k], self.second[k]
        if self.kind == "SGD":
            self.first[k] = r * g + m * h
            return self.first[k]
        if self.kind == "Nesterov":
            self.first[k] = r * g + m * h
            return (1 + m) * (r * g + m * h) - m * h
        if self.kind == "AdaGrad":
            self.first[k] = h + g**2
            return r * g / (np.sqrt(h + g**2) + s["delta"])
        if self.kind == "RMSProp":
            self.first[k] = s["rms_decay"] * h + (1 - s["rms_decay"]) * g**2
            return r * g / (np.sqrt(self.first[k]) + s["delta"])
        if self.kind == "AdaDelta":
            self.first[k] = m * h + (1 - m) * g**2
            step = g * np.sqrt((u + s["delta"]) / (self.first[k] + s["delta"]))
            self.second[k] = m * u + (1 - m) * step**2
            return r * step
        t, m2 = self.iter + 1, s["momentum2"]
        self.first[k] = m * h + (1 - m) * g
        self.second[k] = m2 * u + (1 - m2) * g**2
        scale = np.sqrt(1 - m2**t) / (1 - m**t)
        return r * scale * self.first[k] / (np.sqrt(self.second[k]) + s["delta"])
