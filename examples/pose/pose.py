"""Run OpenPose's net for 25 points of the body: its maps, how long it takes, and the points.

    python pose.py --model pose_deploy.prototxt [--weights pose.caffemodel] [photo.jpg -o out.png]

Without weights they are random: the shapes and the time are the same. See README.md beside this
file.
"""

import argparse
import time

import cv2
import numpy as np

import pycaffe_lite as caffe

PARTS = 25


def fill(net, seed=0):
    """Random weights that keep values from layer to layer of one size (He's)."""
    draw = np.random.default_rng(seed)
    for blobs in net.params.values():
        weights = blobs[0].data
        if weights.ndim > 1:
            scale = np.sqrt(2 / weights[0].size)
            weights[...] = draw.standard_normal(weights.shape, np.float32) * scale


def maps(net, image):
    """The net's maps (78, H / 8, W / 8) for an image (H, W, 3), blue first.

    25 say where the points are, one where nothing is, 52 which way the limbs go.
    """
    net.blobs["image"].reshape(1, 3, *image.shape[:2])
    net.blobs["image"].data[0] = image.transpose(2, 0, 1) / 256 - 0.5
    return net.forward()["net_output"][0]


def points(found, size):
    """Each part's best place in an image of `size` (height, width): rows x, y, value."""
    best = []
    for part in found[:PARTS]:
        y, x = np.unravel_index(part.argmax(), part.shape)
        scale = np.array([size[1], size[0]]) / part.shape[::-1]
        best.append([*((x, y) + np.float64(0.5)) * scale, part[y, x]])
    return np.array(best)


def resized(image, height):
    """The image at about this height, both sides multiples of 8: the net halves thrice."""
    sides = [max(8, round(side * height / image.shape[0] / 8) * 8) for side in image.shape[1::-1]]
    return cv2.resize(image, sides)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="the net's prototxt")
    parser.add_argument("--weights", help="its .caffemodel; default: random")
    parser.add_argument("--height", type=int, default=368, help="what images are resized to")
    parser.add_argument("image", nargs="?", help="default: a grey one, as wide as high")
    parser.add_argument("-o", "--output", default="pose.png")
    args = parser.parse_args()

    image = cv2.imread(args.image) if args.image else np.full((256, 256, 3), 128, np.uint8)
    if image is None:
        raise SystemExit(f"error: could not read {args.image}")
    net = caffe.Net(args.model, caffe.TEST, weights=args.weights)
    if not args.weights:
        fill(net)
    small = resized(image, args.height)
    found = maps(net, small)  # the first run allocates memory
    start = time.perf_counter()
    found = maps(net, small)
    taken = (time.perf_counter() - start) * 1000
    for name in ("image", "conv4_4_CPM", "Mconv7_stage3_L2", "net_output"):
        print(f"{name:18}", *net.blobs[name].shape)
    print(f"forward: {taken:.0f} ms")
    if args.image and args.weights:
        for x, y, value in points(found, image.shape[:2]):
            if value > 0.1:
                cv2.circle(
                    image, (round(x), round(y)), max(3, image.shape[1] // 150), (0, 0, 255), -1
                )
        if not cv2.imwrite(args.output, image):
            raise SystemExit(f"error: could not write {args.output}")
        print(f"points drawn into {args.output}")


if __name__ == "__main__":
    main()
