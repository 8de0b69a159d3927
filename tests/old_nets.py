"""Nets as they were written in older years, and how tests hold them against today's."""

from __future__ import annotations

from pycaffe_lite import graph
from pycaffe_lite.proto import caffe_pb2
from pycaffe_lite.prototxt import parse_net, parse_text
from pycaffe_lite.upgrade import needs_upgrade


def upgraded(text):
    """The net of a text in today's form; its binary form must give the same."""
    spec = parse_net(text)
    before = parse_net(text)
    new = graph.upgrade(spec)
    assert spec == before, "the message given stays as it is"
    assert graph.upgrade(caffe_pb2.NetParameter.FromString(spec.SerializeToString())) == new
    assert graph.upgrade(new) is new, "upgrading again changes nothing"
    assert not needs_upgrade(new)
    assert needs_upgrade(spec) == (new != spec)
    return new


def layer(text):
    return parse_text(text, caffe_pb2.LayerParameter)


def v0_layer(inner, *, bottom="data", top=""):
    ends = [f"bottom: '{name}'" for name in bottom.split()]
    ends += [f"top: '{name}'" for name in top.split()]
    return f"layers {{ layer {{ {inner} }} {' '.join(ends)} }}\n"
