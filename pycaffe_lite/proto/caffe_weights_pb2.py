"""The small view of weights files (proto/caffe_weights.proto), with names as in a generated module.

Built at first use, like caffe_pb2.
"""

from typing import Any

from . import lookup, public_names


def __getattr__(name: str) -> Any:
    return lookup(globals(), "caffe_weights.proto", name)


def __dir__() -> list[str]:
    return public_names(globals(), "caffe_weights.proto")
