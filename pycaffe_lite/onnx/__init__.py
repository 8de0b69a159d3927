"""Nets as ONNX models, for runtimes that do not know Caffe; needs the extra [onnx].

    import pycaffe_lite.onnx
    proof = pycaffe_lite.onnx.export(net, "net.onnx")

Each layer becomes the operators that compute the same, one to one, and both are run to prove it.
"""

from .exporting import Export, convert, export
from .model import OPSET
from .proof import Proof, Row
from .registry import exported_types, exports
from .writer import LayerWriter

__all__ = [
    "OPSET",
    "LayerWriter",
    "Proof",
    "Export",
    "Row",
    "convert",
    "export",
    "exported_types",
    "exports",
]
