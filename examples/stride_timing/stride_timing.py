"""Time one convolution at strides 1 to 4, the way one would in any pycaffe script.

    python stride_timing.py [--mode cpu|gpu] [--size 227]

See README.md beside this file for what comes out and why.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import pycaffe_lite as caffe

MODEL = Path(__file__).with_name("convolution.prototxt")


def mean_ms(model, size):
    """Milliseconds of net.forward(), the mean of 3 on a new net."""
    rng = np.random.default_rng()
    net = caffe.Net(str(model), caffe.TEST)
    total = 0.0
    for _ in range(3):
        net.blobs["data"].data[...] = rng.standard_normal((1, 1, size, size))
        net.params["conv"][0].data[...] = rng.standard_normal((96, 1, 11, 11))
        start = time.time()
        net.forward()
        total += time.time() - start
    return total / 3 * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mode", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--size", type=int, default=227, help="height and width of the image")
    args = parser.parse_args()

    caffe.set_device(0)  # remembered for GPU mode; says nothing where there is no GPU
    if args.mode == "gpu":
        caffe.set_mode_gpu()
    else:
        caffe.set_mode_cpu()

    text = MODEL.read_text().replace("input_dim: 227", f"input_dim: {args.size}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "convolution.prototxt")
        for stride in (1, 2, 3, 4):
            model.write_text(text.replace("stride: 1", f"stride: {stride}"))
            print(f"Stride {stride}: {mean_ms(model, args.size):.2f} ms")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, caffe.ModelError) as error:  # no GPU; a size below the kernel's
        raise SystemExit(f"error: {error}") from None
