"""Classify an image: Transformer, mean file, batch reshape, top labels, filters."""

import numpy as np

import caffe

caffe.set_mode_cpu()
net = caffe.Net("deploy.prototxt", "weights.caffemodel", caffe.TEST)

blob = caffe.proto.caffe_pb2.BlobProto()
with open("mean.binaryproto", "rb") as f:
    blob.ParseFromString(f.read())
mu = np.array(caffe.io.blobproto_to_array(blob))[0]
mu = mu.mean(1).mean(1)

transformer = caffe.io.Transformer({"data": net.blobs["data"].data.shape})
transformer.set_transpose("data", (2, 0, 1))
transformer.set_mean("data", mu)
transformer.set_raw_scale("data", 255)
transformer.set_channel_swap("data", (2, 1, 0))

net.blobs["data"].reshape(5, 3, 9, 8)
image = caffe.io.load_image("cat.png")
transformed = transformer.preprocess("data", image)
net.blobs["data"].data[...] = transformed
output = net.forward()
prob = output["prob"][0]
labels = np.loadtxt("words.txt", str, delimiter="\t")
top = prob.argsort()[::-1][:2]
for k in top:
    print(labels[k])
for name, b in net.blobs.items():
    print(name + "\t" + str(b.data.shape))
for name, p in net.params.items():
    print(name + "\t" + str(p[0].data.shape), str(p[1].data.shape))
np.save("prob.npy", output["prob"])
np.save("transformed.npy", transformed)

classifier = caffe.Classifier(
    "deploy.prototxt",
    "weights.caffemodel",
    mean=mu,
    channel_swap=(2, 1, 0),
    raw_scale=255,
    image_dims=(12, 11),
)
np.save("crops.npy", classifier.predict([image]))
np.save("centre.npy", classifier.predict([image], oversample=False))
