"""Double a picture's size with a super-resolution net, such as that of WeChat's QR code reader.

    python super_resolution.py --model sr.prototxt --weights sr.caffemodel picture.png -o out.png

See README.md beside this file.
"""

import argparse

import cv2
import numpy as np

import pycaffe_lite as caffe


def enlarge(net, image):
    """A grey image (H, W), uint8, at twice the size less one: (2 H - 1, 2 W - 1), uint8."""
    net.blobs["data"].reshape(1, 1, *image.shape)
    net.blobs["data"].data[0, 0] = image / 255
    (values,) = net.forward().values()
    return np.clip(values[0, 0] * 255, 0, 255).round().astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="the net's prototxt")
    parser.add_argument("--weights", required=True, help="its .caffemodel")
    parser.add_argument("image")
    parser.add_argument("-o", "--output", default="enlarged.png")
    args = parser.parse_args()

    image = cv2.imread(args.image, cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise SystemExit(f"error: could not read {args.image}")
    net = caffe.Net(args.model, caffe.TEST, weights=args.weights)
    large = enlarge(net, image)
    if not cv2.imwrite(args.output, large):
        raise SystemExit(f"error: could not write {args.output}")
    sizes = [f"{picture.shape[1]} x {picture.shape[0]}" for picture in (image, large)]
    print(f"{sizes[0]} enlarged to {sizes[1]}: {args.output}")


if __name__ == "__main__":
    main()
