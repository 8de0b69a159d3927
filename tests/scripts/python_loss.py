"""A loss written in Python, named by module and layer, trained against."""

import numpy as np

import caffe

net = caffe.Net("net.prototxt", caffe.TRAIN)
net.blobs["data"].data[...] = np.load("data.npy")
net.blobs["target"].data[...] = np.load("target.npy")
for _ in range(40):
    net.clear_param_diffs()
    loss = net.forward()["loss"][0]
    net.backward()
    for blobs in net.params.values():
        for blob in blobs:
            blob.data[...] -= 0.2 * blob.diff
np.save("diff.npy", net.blobs["fc"].diff)
np.save("fc.npy", net.blobs["fc"].data)
print(loss)
