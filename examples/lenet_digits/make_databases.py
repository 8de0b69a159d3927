"""Write scikit-learn's 1,797 handwritten digits into two LMDBs that Caffe's Data layer reads.

    python make_databases.py

Makes digits_train_lmdb and digits_test_lmdb in the current folder. See README.md beside this file.
"""

import argparse

import lmdb
import numpy as np
from scipy.ndimage import zoom
from sklearn.datasets import load_digits

import pycaffe_lite as caffe

TEST_IMAGES = 360  # one in five; batches of 60 divide it


def images_and_labels():
    """uint8 images (1797, 1, 32, 32) from 0 to 255, and their labels, shuffled."""
    digits = load_digits()
    # 8 x 8 pixels become 24 x 24, and a margin lets the net's crop of 28 x 28 move in training.
    images = np.zeros((len(digits.images), 1, 32, 32), dtype=np.uint8)
    larger = zoom(digits.images, (1, 3, 3), order=1) * (255 / digits.images.max())
    images[:, 0, 4:28, 4:28] = larger.round()
    order = np.random.default_rng(0).permutation(len(images))
    return images[order], digits.target[order]


def write(path, images, labels):
    with lmdb.open(path, map_size=1 << 28) as env, env.begin(write=True) as transaction:
        for index, (image, label) in enumerate(zip(images, labels, strict=True)):
            datum = caffe.io.array_to_datum(image, int(label))
            transaction.put(f"{index:08}".encode(), datum.SerializeToString())
    print(f"{path}: {len(images)} images")


def main():
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    images, labels = images_and_labels()
    write("digits_train_lmdb", images[TEST_IMAGES:], labels[TEST_IMAGES:])
    write("digits_test_lmdb", images[:TEST_IMAGES], labels[:TEST_IMAGES])


if __name__ == "__main__":
    main()
