"""Turn the inner products of a classifier into convolutions, and run it over a larger image."""

import numpy as np

import caffe

net = caffe.Net("net.prototxt", "weights.caffemodel", caffe.TEST)
params = ["fc6", "fc7"]
fc_params = {pr: (net.params[pr][0].data, net.params[pr][1].data) for pr in params}
for fc in params:
    print("{} weights are {} dimensional".format(fc, fc_params[fc][0].shape))

full = caffe.Net("conv.prototxt", "weights.caffemodel", caffe.TEST)
params_full = ["fc6-conv", "fc7-conv"]
conv_params = {pr: (full.params[pr][0].data, full.params[pr][1].data) for pr in params_full}
for pr, pr_conv in zip(params, params_full):
    conv_params[pr_conv][0].flat = fc_params[pr][0].flat
    conv_params[pr_conv][1][...] = fc_params[pr][1]
full.save("full.caffemodel")

again = caffe.Net("conv.prototxt", "full.caffemodel", caffe.TEST)
image = np.load("image.npy")
out = again.forward_all(data=np.asarray([image]))
np.save("map.npy", out["prob"])
