"""Find faces in a photo with an SSD net, and draw boxes around them.

    python face_detection.py --model deploy.prototxt --weights w.caffemodel photo.jpg -o out.png

See README.md beside this file.
"""

import argparse

import cv2
import numpy as np

import pycaffe_lite as caffe

MEAN = (104, 177, 123)  # of blue, green, red, in the images the net was trained on


def detect(net, image, threshold=0.5):
    """Faces in an image (H, W, 3), blue first: rows x0, y0, x1, y1 in pixels, and their scores."""
    height, width = net.blobs["data"].shape[2:]
    pixels = cv2.resize(image, (width, height)).astype(np.float32) - np.float32(MEAN)
    net.blobs["data"].data[...] = pixels.transpose(2, 0, 1)
    rows = net.forward()["detection_out"][0, 0]  # image, label, score, x0, y0, x1, y1 in 0..1
    rows = rows[rows[:, 2] >= threshold]
    sides = [image.shape[1], image.shape[0]] * 2
    return rows[:, 3:] * np.float32(sides), rows[:, 2]


def draw(image, boxes, scores):
    """A copy of the image with a box and a score for each face."""
    image = image.copy()
    thick = max(1, round(max(image.shape) / 400))
    for (x0, y0, x1, y1), score in zip(boxes.round().astype(int).tolist(), scores, strict=True):
        cv2.rectangle(image, (x0, y0), (x1, y1), (0, 255, 0), thick)
        place = (x0, max(12 * thick, y0 - 4))
        cv2.putText(image, f"{score:.2f}", place, 0, 0.5 * thick, (0, 255, 0), thick)
    return image


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="the net's prototxt")
    parser.add_argument("--weights", required=True, help="its .caffemodel")
    parser.add_argument("--threshold", type=float, default=0.5, help="least score of a face")
    parser.add_argument("image")
    parser.add_argument("-o", "--output", default="faces.png")
    args = parser.parse_args()

    image = cv2.imread(args.image)
    if image is None:
        raise SystemExit(f"error: could not read {args.image}")
    net = caffe.Net(args.model, caffe.TEST, weights=args.weights)
    boxes, scores = detect(net, image, args.threshold)
    for box, score in zip(boxes, scores, strict=True):
        print(f"{score:.3f}", *(f"{side:.0f}" for side in box))
    if not cv2.imwrite(args.output, draw(image, boxes, scores)):
        raise SystemExit(f"error: could not write {args.output}")
    print(f"{len(boxes)} faces, drawn into {args.output}")


if __name__ == "__main__":
    main()
