"""Nets written by functions, anonymous tops, a crop found by coord_map."""

import caffe
from caffe import layers as L
from caffe import params as P
from caffe.coord_map import crop


def conv_relu(bottom, nout, ks=3, stride=1, pad=1):
    conv = L.Convolution(
        bottom,
        kernel_size=ks,
        stride=stride,
        num_output=nout,
        pad=pad,
        param=[dict(lr_mult=1, decay_mult=1), dict(lr_mult=2, decay_mult=0)],
    )
    return conv, L.ReLU(conv, in_place=True)


def fcn():
    n = caffe.NetSpec()
    n.data = L.Input(shape=[dict(dim=[1, 3, 21, 18])])
    n.conv1_1, n.relu1_1 = conv_relu(n.data, 4, pad=5)
    n.pool1 = L.Pooling(n.relu1_1, pool=P.Pooling.MAX, kernel_size=2, stride=2)
    n.score = L.Convolution(n.pool1, num_output=5, kernel_size=1)
    n.upscore = L.Deconvolution(
        n.score,
        convolution_param=dict(num_output=5, kernel_size=4, stride=2, bias_term=False),
        param=[dict(lr_mult=0)],
    )
    n.out = crop(n.upscore, n.data)
    return n.to_proto()


with open("fcn.prototxt", "w") as f:
    f.write(str(fcn()))
net = caffe.Net("fcn.prototxt", caffe.TEST)
print([(name, b.data.shape) for name, b in net.blobs.items()])
print(net.layers[[*net._layer_names].index("out")].type, net.forward()["out"].shape)
