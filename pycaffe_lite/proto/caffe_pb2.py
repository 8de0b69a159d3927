"""Caffe's messages and enums under the names a generated module has: NetParameter, TRAIN, ...

Importing this costs nothing; the first name asked for builds them all (a few ms, plus the import
of protobuf). Import the module rather than names from it where import time matters.
"""

from typing import Any

from . import lookup, public_names

# Here before the schema is: whoever names a phase while importing shall not wait for protobuf.
TRAIN = 0
TEST = 1


def __getattr__(name: str) -> Any:
    return lookup(globals(), "caffe.proto", name)


def __dir__() -> list[str]:
    return public_names(globals(), "caffe.proto")
