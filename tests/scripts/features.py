"""Features of image patches, one image at a time into the input, from a layer on."""

import os

import numpy as np

os.environ["GLOG_minloglevel"] = "2"
import caffe  # noqa: E402

caffe.set_mode_cpu()
net = caffe.Net("deploy.prototxt", "weights.caffemodel", caffe.TEST)
patches = np.load("patches.npy")
batch_size = net.blobs["data"].data.shape[0]
features = []
for first in range(0, len(patches), batch_size):
    part = patches[first : first + batch_size]
    for i, patch in enumerate(part):
        x = np.transpose(patch, [2, 0, 1])[::-1].astype(np.float32)
        net.blobs["data"].data[i] = x - np.float32([104, 117, 123])[:, None, None]
    net.forward(start="conv1")
    features.extend(net.blobs["fc7"].data[: len(part)].copy())
np.save("features.npy", np.array(features))
