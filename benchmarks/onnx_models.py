"""How far are nets, as ONNX models, from themselves? Random weights, every blob compared.

    python benchmarks/onnx_models.py PROTOTXT... [--weights FILE] [--sizes dynamic]
        [--image HxW] [--opencv]

Prints a line of a table for each: layers, open sizes, the largest difference of any blob over the
blob's largest value, in all runs, and where it is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import pycaffe_lite
from pycaffe_lite.layer import Layer
from pycaffe_lite.onnx import Export, convert
from pycaffe_lite.onnx.inputs import values
from pycaffe_lite.onnx.proof import matched


def randomize(net: pycaffe_lite.Net, seed: int = 1) -> None:
    """Parameters that keep activations of order 1; no two channels alike, none trivial.

    Filters are scaled by what comes out of them: a net without normalisation would else have
    values of 10^9 at its end, and then everything hangs on rounding.
    """
    draw = np.random.default_rng(seed)
    indices = {
        b for layer in net.layers if layer.type == "Embed" for b in net.bottom_names[layer.name]
    }
    for name in net.inputs:
        data = net.blobs[name].data
        data[...] = 0 if name in indices else draw.normal(size=data.shape)
    for index, layer in enumerate(net.layers):
        for k, blob in enumerate(layer.blobs):
            blob.data[...] = _values(layer, k, blob.shape, draw)
        net._forward(index, index)
        if layer.type in ("Convolution", "InnerProduct", "Deconvolution"):
            layer.blobs[0].data[...] /= net.blobs[net.top_names[layer.name][0]].data.std()
            net._forward(index, index)


def _values(layer: Layer, k: int, shape: tuple[int, ...], draw: np.random.Generator) -> Any:
    if layer.type == "BatchNorm":
        factor = 3.5
        if k == 2:
            return factor
        return factor * (draw.uniform(0.5, 1.5, shape) if k else draw.normal(0, 0.3, shape))
    if layer.type == "BN":
        return draw.uniform(0.5, 1.5, shape) if k in (0, 3) else draw.normal(0, 0.2, shape)
    if layer.type in ("Scale", "PReLU", "Normalize") and k == 0:
        middle = {"Scale": 1.0, "PReLU": 0.25, "Normalize": 1.0}[layer.type]
        return middle * draw.uniform(0.7, 1.3, shape)
    if k or len(shape) < 2:
        return draw.normal(0, 0.1, shape)
    count: float = prod(shape[1:])
    if layer.type == "Deconvolution":
        window: Any = layer
        count = shape[0] / window.group * prod(window.window.kernel) / prod(window.window.stride)
    return draw.normal(0, (2 / count) ** 0.5, shape)


def by_opencv(result: Export) -> str:
    """How far OpenCV's dnn is from the net on random inputs, or what it says to the file."""
    import cv2

    net = result.part.net
    feeds = values(net, "random", np.random.default_rng(4))
    wanted = net.forward(result.outputs, **feeds)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        result.save(path)
        try:
            other = cv2.dnn.readNetFromONNX(str(path))
            for name, value in feeds.items():
                other.setInput(value, name)
            found = [other.forward(name) for name in result.outputs]
        except cv2.error as error:
            return str(error).strip().splitlines()[-1][:80]
    apart = []
    for name, array in zip(result.outputs, found, strict=True):
        y = wanted[name]
        if array.size != y.size:
            return f"{name}: {array.shape} instead of {y.shape}"
        array = array.reshape(y.shape)
        if y.shape[-1:] == (7,) and y.ndim == 4:
            y, array = matched(y, array)
        apart.append(float(np.abs(array - y).max()) / float(np.abs(y).max()))
    return f"{max(apart):.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prototxt", nargs="+", type=Path)
    parser.add_argument("--weights")
    parser.add_argument("--sizes", default="fixed")
    parser.add_argument("--image", help="HxW, instead of the prototxt's size")
    parser.add_argument("--opencv", action="store_true")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    for path in args.prototxt:
        start = time.perf_counter()
        net = pycaffe_lite.Net(path, pycaffe_lite.TEST, weights=args.weights)
        if args.image is not None:
            blob = net.blobs[net.inputs[0]]
            blob.reshape(*blob.shape[:2], *map(int, args.image.split("x")))
            net.reshape()
        if args.weights is None:
            randomize(net)
        result = convert(net, sizes=args.sizes)
        proof = result.prove(args.tolerance)
        worst = proof.worst
        cells = [
            path.stem,
            str(len(proof.rows)),
            str(result.inputs),
            f"{worst.relative:.1e} ({worst.blob}, {worst.type}, {worst.run})",
            "yes" if not proof.wrong else f"NO: {len(proof.wrong)} blobs",
            f"{time.perf_counter() - start:.0f} s",
        ]
        if args.opencv:
            cells.append(by_opencv(result))
        print("| " + " | ".join(cells) + " |", flush=True)
        for row in proof.wrong[:8]:
            print("   ", row)
        for note in result.notes:
            print("   ", note)


if __name__ == "__main__":
    main()
