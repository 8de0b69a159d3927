"""Run a net on a volume instead of an image: convolution and pooling over three axes.

    python volumes.py [--model volumes.prototxt] [--weights weights.caffemodel] [grid.npy]

See README.md beside this file.
"""

import argparse
from pathlib import Path

import numpy as np

import pycaffe_lite as caffe

MODEL = Path(__file__).with_name("volumes.prototxt")


def random_atoms(shape, count=100, radius=1.7, resolution=0.5, seed=0):
    """A grid (1, channels, D, H, W) of blurred points at random places, one channel an atom."""
    draw = np.random.default_rng(seed)
    grid = np.zeros(shape, np.float32)
    axes = [np.arange(size) * resolution for size in shape[2:]]
    for _ in range(count):
        centre = [draw.uniform(0, axis[-1]) for axis in axes]
        # A Gaussian of three coordinates is the product of one of each.
        d, h, w = (
            np.exp(-2 * (axis - c) ** 2 / radius**2) for axis, c in zip(axes, centre, strict=True)
        )
        grid[0, draw.integers(shape[1])] += d[:, None, None] * h[:, None] * w
    return grid


def run(net, grid):
    """The net's outputs for a grid (N, channels, D, H, W)."""
    net.blobs["data"].reshape(*grid.shape)
    return net.forward(data=grid)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL, help="default: the small net of this folder")
    parser.add_argument("--weights", help="a .caffemodel; default: the fillers' random values")
    parser.add_argument("grid", nargs="?", help="a .npy (N, C, D, H, W); default: random atoms")
    args = parser.parse_args()

    net = caffe.Net(args.model, caffe.TEST, weights=args.weights)
    grid = np.load(args.grid) if args.grid else random_atoms(net.blobs["data"].shape)
    out = run(net, grid)
    for name, blob in net.blobs.items():
        print(f"{name:12}", *blob.shape)
    for name, values in out.items():
        print(name, "=", *(f"{value:.4f}" for value in values.ravel()))


if __name__ == "__main__":
    main()
