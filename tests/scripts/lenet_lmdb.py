"""Digits into an LMDB, LeNet by NetSpec, training: as in a notebook of 2015, made small."""

import sys

import lmdb
import numpy as np

import caffe
from caffe import layers as L
from caffe import params as P

count, steps = int(sys.argv[1]), int(sys.argv[2])


def write_database(path, images, labels):
    env = lmdb.open(path, map_size=1 << 26)
    with env.begin(write=True) as txn:
        for i, (image, label) in enumerate(zip(images, labels)):
            datum = caffe.proto.caffe_pb2.Datum()
            datum.channels, datum.height, datum.width = image.shape
            datum.data = image.tobytes()
            datum.label = int(label)
            txn.put("{:08}".format(i).encode("ascii"), datum.SerializeToString())
    env.close()


def lenet(lmdb_path, batch_size):
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        batch_size=batch_size,
        backend=P.Data.LMDB,
        source=lmdb_path,
        transform_param=dict(scale=1.0 / 255),
        ntop=2,
    )
    n.conv1 = L.Convolution(n.data, kernel_size=5, num_output=4, weight_filler=dict(type="xavier"))
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.conv2 = L.Convolution(n.pool1, kernel_size=3, num_output=8, weight_filler=dict(type="xavier"))
    n.pool2 = L.Pooling(n.conv2, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.fc1 = L.InnerProduct(n.pool2, num_output=30, weight_filler=dict(type="xavier"))
    n.relu1 = L.ReLU(n.fc1, in_place=True)
    n.score = L.InnerProduct(n.relu1, num_output=3, weight_filler=dict(type="xavier"))
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    return n.to_proto()


images = np.load("images.npy")
labels = np.load("labels.npy")
write_database("digits_lmdb", images[:count], labels[:count])
with open("lenet.prototxt", "w") as f:
    f.write(str(lenet("digits_lmdb", 6)))
with open("solver.prototxt", "w") as f:
    f.write('train_net: "lenet.prototxt" base_lr: 0.05 momentum: 0.9 lr_policy: "fixed"\n')
    f.write('max_iter: 1000 display: 0 snapshot_prefix: "lenet" random_seed: 3\n')

caffe.set_mode_cpu()
solver = caffe.SGDSolver("solver.prototxt")
first = solver.net.forward()
print(sorted(first), [b.data.shape for b in solver.net.blobs.values()][:2])
np.save("first_batch.npy", solver.net.blobs["data"].data)
np.save("first_labels.npy", solver.net.blobs["label"].data)
losses = np.zeros(steps)
for it in range(steps):
    solver.step(1)
    losses[it] = solver.net.blobs["loss"].data
np.save("losses.npy", losses)
solver.snapshot()
