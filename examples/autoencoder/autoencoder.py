"""Learn to write digits as 8 numbers and to draw them again from those.

    python autoencoder.py [--epochs 60]

Run it in its own folder, where the prototxts are. See README.md beside this file.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits

import pycaffe_lite as caffe

BATCH = 100
LOSSES = ("cross_entropy", "euclidean")


def images():
    """1,400 rows of 64 pixels from 0 to 1 to learn from and 300 to test with."""
    pixels = load_digits().data
    pixels = pixels[np.random.default_rng(0).permutation(len(pixels))] / pixels.max()
    return pixels[:1400], pixels[1400:1700]


def train(solver, pixels, rng):
    """Once through all images, in a new order."""
    order = rng.permutation(len(pixels))
    for batch in order.reshape(-1, BATCH):
        solver.net.blobs["data"].data[...] = pixels[batch]
        solver.step(1)


def evaluate(net, pixels):
    """The mean of each loss over all images, and their reconstructions."""
    losses, drawn = [], []
    for batch in pixels.reshape(-1, BATCH, 64):
        outputs = net.forward(data=batch, blobs=["reconstruction"])
        losses.append([float(outputs[name]) for name in LOSSES])
        drawn.append(outputs["reconstruction"].copy())  # the next forward overwrites it
    return np.mean(losses, axis=0), np.concatenate(drawn)


def principal_components(learned, pixels, count):
    """The Euclidean loss of the best linear way to write an image as `count` numbers."""
    mean = learned.mean(axis=0)
    axes = np.linalg.svd(learned - mean, full_matrices=False)[2][:count]
    rest = (pixels - mean) - (pixels - mean) @ axes.T @ axes
    return (rest**2).sum() / (2 * len(pixels))


def save_picture(path, pixels, drawn, columns=20):
    """A PNG file: rows of images, each with its reconstructions below, every pixel 6 x 6."""
    rows = []
    for start in range(0, 2 * columns, columns):
        for each in (pixels, drawn):
            row = each[start : start + columns].reshape(columns, 8, 8)
            rows.append(np.hstack(np.pad(row, ((0, 0), (1, 1), (1, 1)), constant_values=0.5)))
    picture = np.kron((255 * np.vstack(rows)).round().astype(np.uint8), np.ones((6, 6), np.uint8))
    try:
        import cv2
    except ImportError:
        print("no picture: it needs OpenCV, pip install 'pycaffe-lite[image]'")
        return
    cv2.imwrite(path, picture)
    print(f"wrote {path}: images, and their reconstructions below")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60, help="times through all images")
    args = parser.parse_args()
    learned, pixels = images()
    solver = caffe.get_solver("solver.prototxt")  # its type is in the file
    net = caffe.Net("autoencoder.prototxt", caffe.TEST)
    net.share_with(solver.net)
    rng = np.random.default_rng(0)
    print("300 test images\nepochs  cross entropy  Euclidean loss")
    for epoch in range(args.epochs + 1):
        if epoch:
            train(solver, learned, rng)
        if epoch % 20 == 0 or epoch == args.epochs:
            losses, drawn = evaluate(net, pixels)
            print(f"{epoch:6}  {losses[0]:13.3f}  {losses[1]:14.3f}")
    print(f"8 principal components:  {principal_components(learned, pixels, 8):14.3f}")
    save_picture("reconstructions.png", pixels, drawn)


if __name__ == "__main__":
    main()
