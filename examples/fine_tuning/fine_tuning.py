"""Fine-tune a net that knows digits to tell odd from even by 20 images; and learn it from scratch.

    python fine_tuning.py [--pretrain 400] [--steps 60]

Run it in its own folder, where the prototxts are. See README.md beside this file.
"""

import argparse
from pathlib import Path

import numpy as np
from google.protobuf import text_format
from sklearn.datasets import load_digits

import pycaffe_lite as caffe
from pycaffe_lite.proto import caffe_pb2


def digits():
    """Images (1797, 1, 8, 8) from 0 to 1, shuffled, and which digit each is."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = images[order].reshape(-1, 1, 8, 8) / images.max()
    return x.astype(np.float32), labels[order].astype(np.float32)


def few_of_each(labels, count):
    """Numbers of the first `count` images of each label."""
    found = [np.flatnonzero(labels == label)[:count] for label in np.unique(labels)]
    return np.sort(np.concatenate(found))


def accuracy(solver):
    """The mean over all test batches, with the weights of now."""
    net = solver.test_nets[0]
    net.share_with(solver.net)
    batches = solver.param.test_iter[0]
    return sum(float(net.forward()["accuracy"]) for _ in range(batches)) / batches


def pretrain(x, y, steps):
    """Learn which digit an image shows, from 1,000 of them; the weights' file."""
    solver = caffe.SGDSolver("pretrain_solver.prototxt")
    solver.net.set_input_arrays(x[:1000], y[:1000])
    solver.test_nets[0].set_input_arrays(x[1000:1750], y[1000:1750])
    solver.step(steps)
    print(f"which digit, 1,000 images: accuracy {accuracy(solver):.3f} after {steps} steps")
    solver.net.save("pretrained.caffemodel")
    return "pretrained.caffemodel"


def train(model, x, y, weights, steps):
    """Learn whether digits are odd, from 20 images; the accuracy on 750 others every 10 steps."""
    few = few_of_each(y, 2)
    others = np.setdiff1d(np.arange(len(x)), few)[:750]
    param = caffe_pb2.SolverParameter()
    text_format.Merge(Path("finetune_solver.prototxt").read_text(), param)
    param.net = model
    solver = caffe.SGDSolver(param)
    solver.net.set_input_arrays(x[few], y[few] % 2)
    solver.test_nets[0].set_input_arrays(x[others], y[others] % 2)
    if weights:
        solver.net.copy_from(weights)
        print(solver.net.load_report)
    found = [accuracy(solver)]
    for _ in range(0, steps, 10):
        solver.step(10)
        found.append(accuracy(solver))
    return found


def write_scratch_model(path):
    """The net to fine-tune with all layers learning alike: there is nothing in them to keep."""
    text = Path("finetune.prototxt").read_text()
    text = text.replace("lr_mult: 0.1", "lr_mult: 1").replace("lr_mult: 0.2", "lr_mult: 2")
    Path(path).write_text(text)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pretrain", type=int, default=400, help="steps on which digit it is")
    parser.add_argument("--steps", type=int, default=60, help="steps on odd or even")
    args = parser.parse_args()
    caffe.init_log(2)  # no warning of the layer without weights: the report is printed
    x, y = digits()
    weights = pretrain(x, y, args.pretrain)
    rest = x[1000:], y[1000:]  # images that the weights have not been trained on
    tuned = train("finetune.prototxt", *rest, weights, args.steps)
    scratch = train(write_scratch_model("scratch.prototxt"), *rest, None, args.steps)
    print("odd or even, 20 images: accuracy on 750 others\nsteps  fine-tuned  from scratch")
    for k, (a, b) in enumerate(zip(tuned, scratch, strict=True)):
        print(f"{k * 10:5}  {a:10.3f}  {b:12.3f}")


if __name__ == "__main__":
    main()
