"""Save what a layer in the middle of a net says of patches of a picture: features to train on.

    python features.py --model deploy.prototxt --weights weights.caffemodel --start conv1 --blob fc7
        photo.jpg --points 120,80 300,410 -o features.npy

See README.md beside this file.
"""

import argparse

import cv2
import numpy as np

import pycaffe_lite as caffe


def crop(image, row, column, size):
    """The patch of `size` (height, width) about a point; the picture is mirrored at its edges."""
    above, left = size[0] // 2, size[1] // 2
    padded = cv2.copyMakeBorder(
        image, above, size[0] - above, left, size[1] - left, cv2.BORDER_REFLECT_101
    )
    return padded[row : row + size[0], column : column + size[1]]


def features(net, patches, start, blob):
    """The blob's values for patches (N, C, H, W) that are ready for the net: (N, ...), float32.

    `start` names the first layer that runs: the data is written into the net, not read by it.
    """
    name = next(iter(net.blobs))
    batch = net.blobs[name].shape[0]
    found = []
    for first in range(0, len(patches), batch):
        some = patches[first : first + batch]
        for k, patch in enumerate(some):
            net.blobs[name].data[k] = patch
        net.forward(start=start)
        found.append(net.blobs[blob].data[: len(some)].copy())
    return np.concatenate(found)


def point(text):
    row, column = text.split(",")
    return int(row), int(column)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="the net's prototxt")
    parser.add_argument("--weights", required=True, help="its .caffemodel")
    parser.add_argument("--start", required=True, help="the first layer behind the data")
    parser.add_argument("--blob", required=True, help="where the features are")
    parser.add_argument("--points", required=True, nargs="+", type=point, help="ROW,COLUMN ...")
    parser.add_argument("--mean", nargs=3, type=float, default=[104, 117, 123], help="B G R")
    parser.add_argument("image")
    parser.add_argument("-o", "--output", default="features.npy")
    args = parser.parse_args()

    image = cv2.imread(args.image)
    if image is None:
        raise SystemExit(f"error: could not read {args.image}")
    caffe.set_mode_cpu()
    net = caffe.Net(args.model, caffe.TEST, weights=args.weights)
    size = next(iter(net.blobs.values())).shape[2:]
    patches = np.stack([crop(image, row, column, size) for row, column in args.points])
    patches = (patches - np.float32(args.mean)).transpose(0, 3, 1, 2)
    found = features(net, patches, args.start, args.blob)
    np.save(args.output, found)
    print(f"features {found.shape} of {len(patches)} patches: {args.output}")


if __name__ == "__main__":
    main()
