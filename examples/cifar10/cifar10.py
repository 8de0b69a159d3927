"""Classify CIFAR-10's test images with Caffe's "quick" net, and say how many are right.

    python cifar10.py --model cifar10_quick.prototxt --weights cifar10_quick_iter_5000.caffemodel
        --mean mean.binaryproto test_batch.bin

See README.md beside this file.
"""

import argparse
from pathlib import Path

import numpy as np

import pycaffe_lite as caffe

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def load(path):
    """Images (N, 3, 32, 32), uint8, red first, and labels (N,): of CIFAR-10's own .bin, or a .npz.

    A .npz has them as `images` and `labels`.
    """
    if Path(path).suffix == ".npz":
        with np.load(path) as arrays:
            return arrays["images"], arrays["labels"]
    records = np.fromfile(path, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def load_mean(path):
    """The mean image (1, 3, 32, 32) that was taken off in training."""
    blob = caffe.proto.caffe_pb2.BlobProto()
    blob.ParseFromString(Path(path).read_bytes())
    return caffe.io.blobproto_to_array(blob)


def classify(net, images, mean, batch=100):
    """Probabilities (N, 10) of the classes."""
    net.blobs["data"].reshape(batch, 3, 32, 32)
    return net.forward_all(data=images - mean)["prob"].reshape(len(images), -1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="the net's prototxt")
    parser.add_argument("--weights", required=True, help="its .caffemodel")
    parser.add_argument("--mean", required=True, help="the mean image, mean.binaryproto")
    parser.add_argument("images", help="test_batch.bin, or a .npz with images and labels")
    args = parser.parse_args()

    images, labels = load(args.images)
    net = caffe.Net(args.model, caffe.TEST, weights=args.weights)
    probabilities = classify(net, images, load_mean(args.mean))
    right = probabilities.argmax(axis=1) == labels
    for number, name in enumerate(NAMES):
        print(f"{name:10} {right[labels == number].mean():.3f}")
    loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
    print(f"accuracy {right.mean():.4f} of {len(labels)} images, loss {loss:.4f}")


if __name__ == "__main__":
    main()
