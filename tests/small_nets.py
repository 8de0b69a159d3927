"""Nets that several test files run, and their values by hand."""

from __future__ import annotations

import numpy as np

INPUT = "input: 'x' input_shape { dim: [2, 3] }\n"


def ip(name, bottom, top, outputs, more=""):
    return (
        f"layer {{ name: '{name}' type: 'InnerProduct' bottom: '{bottom}' top: '{top}' {more}"
        f" inner_product_param {{ num_output: {outputs} }} }}\n"
    )


CHAIN = (
    INPUT
    + ip("a", "x", "y", 4)
    + "layer { name: 'relu' type: 'ReLU' bottom: 'y' top: 'y' }\n"
    + ip("b", "y", "z", 5)
)
X = np.float32([[1, -2, 3], [4, 5, -6]])
DZ = np.float32([[1, 2, 3, 4, 5], [-1, 0, 1, 0, 2]])
"""A gradient of z."""


def fill(net, seed=3):
    draw = np.random.default_rng(seed)
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] = draw.normal(size=blob.shape)
    return net


def by_hand(net, x):
    """y before the ReLU, y behind it, and z, in float64."""
    (w1, b1), (w2, b2) = ([b.data.astype("f8") for b in net.params[k]] for k in "ab")
    linear = x @ w1.T + b1
    y = np.maximum(linear, 0)
    return linear, y, y @ w2.T + b2
