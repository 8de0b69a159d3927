"""Find faces and five landmarks in each with MTCNN: three small nets, one behind the other.

    python mtcnn.py --model det1.prototxt det2.prototxt det3.prototxt
        --weights det1.caffemodel det2.caffemodel det3.caffemodel photo.jpg -o out.png

See README.md beside this file.
"""

import argparse

import cv2
import numpy as np

import pycaffe_lite as caffe

THRESHOLDS = (0.6, 0.7, 0.7)  # least scores after each net
CELL, STRIDE = 12, 2  # pixels that the first net looks at for one score, and from one to the next
SHRINK = 0.709  # from one image of the pyramid to the next: half the area


def detect(nets, image, min_size=40):
    """Faces of at least `min_size` pixels in an image (H, W, 3), blue first.

    Boxes (K, 4) x0, y0, x1, y1; scores (K,); landmarks (K, 5, 2) x, y: eyes, nose, mouth's corners.
    """
    image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
    boxes, scores = propose(nets[0], image, min_size)
    boxes, scores, _ = refine(nets[1], image, boxes, THRESHOLDS[1])
    keep = suppress(boxes, scores, 0.7)
    boxes, scores, points = refine(nets[2], image, boxes[keep], THRESHOLDS[2])
    keep = suppress(boxes, scores, 0.7, smaller=True)
    return boxes[keep], scores[keep], points[keep]


def propose(net, image, min_size):
    """The first net slides over a pyramid of images, each smaller than the one before."""
    boxes, scores = [np.zeros((0, 4))], [np.zeros(0)]
    scale = CELL / min_size
    while min(image.shape[:2]) * scale >= CELL:
        size = [int(np.ceil(side * scale)) for side in image.shape[1::-1]]
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        out = run(net, small[None])
        probable = out["prob1"][0, 1]  # (x, y): the nets take images with these axes swapped
        x, y = np.nonzero(probable >= THRESHOLDS[0])
        corner = np.stack([x, y, x, y], axis=1) * STRIDE + [0, 0, CELL, CELL]
        found = corrected(corner / scale, out["conv4-2"][0, :, x, y])
        keep = suppress(found, probable[x, y], 0.5)
        boxes.append(found[keep])
        scores.append(probable[x, y][keep])
        scale *= SHRINK
    boxes, scores = np.concatenate(boxes), np.concatenate(scores)
    keep = suppress(boxes, scores, 0.7)
    return boxes[keep], scores[keep]


def refine(net, image, boxes, threshold):
    """A net looks at each box alone: those it takes for faces, corrected; scores; landmarks."""
    boxes = squares(boxes)
    if not len(boxes):
        return boxes, np.zeros(0), np.zeros((0, 5, 2))
    size = net.blobs["data"].shape[2]
    out = run(net, np.stack([cut(image, box, size) for box in boxes]))
    scores = np.array(out["prob1"][:, 1])
    keep = scores >= threshold
    shifts = out["conv6-2" if "conv6-2" in out else "conv5-2"]
    points = np.zeros((len(boxes), 5, 2))
    if "conv6-3" in out:  # the last net: 5 x, then 5 y, in parts of the box
        sides = boxes[:, None, 2:] - boxes[:, None, :2]
        points = boxes[:, None, :2] + sides * out["conv6-3"].reshape(-1, 2, 5).swapaxes(1, 2)
    return corrected(boxes[keep], shifts[keep]), scores[keep], points[keep]


def run(net, images):
    """All outputs for images (N, H, W, 3), uint8, red first: views that the next run overwrites."""
    swapped = images.transpose(0, 3, 2, 1)  # N, channels, W, H
    net.blobs["data"].reshape(*swapped.shape)
    net.blobs["data"].data[...] = (swapped - 127.5) / 128
    return net.forward()


def corrected(boxes, shifts):
    """Boxes moved by what a net says, in parts of their sides."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return boxes + np.concatenate([sides, sides], axis=1) * shifts


def squares(boxes):
    """Squares about the boxes' centres, in whole pixels."""
    centre = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = (boxes[:, 2:] - boxes[:, :2]).max(axis=1, keepdims=True, initial=0) / 2
    return np.concatenate([centre - half, centre + half], axis=1).round()


def cut(image, box, size):
    """The box's part of the image, resized; zeros where it is outside."""
    x0, y0, x1, y1 = box.astype(int)
    part = np.zeros((max(y1 - y0, 1), max(x1 - x0, 1), 3), np.uint8)
    inside = image[max(y0, 0) : max(y1, 0), max(x0, 0) : max(x1, 0)]
    top, left = max(-y0, 0), max(-x0, 0)
    part[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
    return cv2.resize(part, (size, size))


def suppress(boxes, scores, most, smaller=False):
    """Indices of boxes, best first, without those that overlap a better one by more than `most`.

    Overlap is over the union, or over the smaller of both.
    """
    order, keep = list(np.argsort(-scores)), []
    areas = (boxes[:, 2:] - boxes[:, :2]).clip(0).prod(axis=1)
    while order:
        best, order = order[0], np.array(order[1:], int)
        keep.append(best)
        low = np.maximum(boxes[best, :2], boxes[order, :2])
        high = np.minimum(boxes[best, 2:], boxes[order, 2:])
        both = (high - low).clip(0).prod(axis=1)
        whole = areas[best] + areas[order] - both
        if smaller:
            whole = np.minimum(areas[best], areas[order])
        order = list(order[both <= most * whole])
    return np.array(keep, int)


def draw(image, boxes, points):
    """A copy of the image with a box and five dots for each face."""
    image = image.copy()
    thick = max(1, round(max(image.shape) / 400))
    for box, dots in zip(boxes.round().astype(int).tolist(), points, strict=True):
        cv2.rectangle(image, box[:2], box[2:], (0, 255, 0), thick)
        for dot in dots.round().astype(int).tolist():
            cv2.circle(image, dot, 2 * thick, (0, 0, 255), -1)
    return image


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, nargs=3, help="prototxts of the three nets")
    parser.add_argument("--weights", required=True, nargs=3, help="their .caffemodels")
    parser.add_argument("--min-size", type=int, default=40, help="pixels of the smallest face")
    parser.add_argument("image")
    parser.add_argument("-o", "--output", default="faces.png")
    args = parser.parse_args()

    image = cv2.imread(args.image)
    if image is None:
        raise SystemExit(f"error: could not read {args.image}")
    files = zip(args.model, args.weights, strict=True)
    nets = [caffe.Net(model, caffe.TEST, weights=weights) for model, weights in files]
    boxes, scores, points = detect(nets, image, args.min_size)
    for box, score in zip(boxes, scores, strict=True):
        print(f"{score:.3f}", *(f"{side:.0f}" for side in box))
    if not cv2.imwrite(args.output, draw(image, boxes, points)):
        raise SystemExit(f"error: could not write {args.output}")
    print(f"{len(boxes)} faces, drawn into {args.output}")


if __name__ == "__main__":
    main()
