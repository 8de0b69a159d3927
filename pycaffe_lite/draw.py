"""How does a net look as a graph? pycaffe's caffe.draw: DOT text, and pictures through Graphviz.

Needs pydot (RuntimeError says how to install it), and pictures Graphviz's program `dot`. The labels
that functions here return are quoted as DOT has them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import extras, graph
from .errors import ModelError
from .proto import caffe_pb2
from .replacement import replacing

__all__ = [
    "choose_color_by_layertype",
    "draw_net",
    "draw_net_to_file",
    "get_edge_label",
    "get_layer_label",
    "get_layer_lr_mult",
    "get_pooling_types_dict",
    "get_pydot_graph",
]

_COLORS = {
    "Convolution": "#FF5050",
    "Deconvolution": "#FF5050",
    "Pooling": "#FF9900",
    "InnerProduct": "#CC33FF",
}
_OTHERS, _IN_PLACE, _BLOB = "#6495ED", "#90EE90", "#E0E0E0"
_LEARNING = ("Convolution", "Deconvolution", "InnerProduct")
_TEXT_FORMATS = ("dot", "gv", "raw")


# ---- pictures ----------------------------------------------------------------------------------


def draw_net(
    caffe_net: Any,
    rankdir: str,
    ext: str = "png",
    phase: int | None = None,
    display_lrm: bool = False,
) -> bytes:
    """A NetParameter as a file's content; arguments as `get_pydot_graph` has them.

    `ext` is a format of Graphviz (png, pdf, svg ...), or dot or raw for the graph as DOT text,
    which needs no Graphviz. Raises RuntimeError where it is missing or does not know the format.
    """
    text: str = get_pydot_graph(
        caffe_net, rankdir, phase=phase, display_lrm=display_lrm
    ).to_string()
    return text.encode() if ext in _TEXT_FORMATS else _run_dot(text.encode(), ext)


def draw_net_to_file(
    caffe_net: Any,
    filename: str | os.PathLike[str],
    rankdir: str = "LR",
    phase: int | None = None,
    display_lrm: bool = False,
) -> None:
    """Write the picture of a NetParameter in the format that the file's name ends in.

    Raises ModelError for a name without an ending, OSError, and what `draw_net` raises; nothing is
    written then.
    """
    ext = Path(filename).suffix[1:].lower()
    if not ext:
        raise ModelError(f"the name {os.fspath(filename)} does not end in a format, as in net.png")
    content = draw_net(caffe_net, rankdir, ext, phase, display_lrm)
    with replacing(filename) as path:
        path.write_bytes(content)


def _run_dot(text: bytes, ext: str) -> bytes:
    program = shutil.which("dot")
    if program is None:
        raise RuntimeError(
            f"drawing to {ext!r} needs Graphviz's program dot: apt install graphviz, brew install"
            " graphviz or https://graphviz.org/download; 'dot' and 'raw' do without"
        )
    done = subprocess.run([program, f"-T{ext}"], input=text, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"Graphviz could not draw to {ext!r}: {said}")
    return done.stdout


# ---- the graph ---------------------------------------------------------------------------------


def get_pydot_graph(
    caffe_net: Any,
    rankdir: str,
    label_edges: bool = True,
    phase: int | None = None,
    display_lrm: bool = False,
) -> Any:
    """A NetParameter of whatever age as a pydot.Dot: layers are boxes, blobs octagons.

    `rankdir` is where it runs to, LR, RL, TB or BT. With `phase` (TRAIN or TEST) only the layers
    that a Net of this phase has, else all; with `display_lrm`, learning rates of layers that learn.
    A layer that works in place is green and points to its blob and back. The message stays as it
    is. Raises ModelError for a message that cannot be upgraded, and another `rankdir`.
    """
    if rankdir not in ("LR", "RL", "TB", "BT"):
        raise ModelError(f"rankdir must be LR, RL, TB or BT, not {rankdir!r}")
    pydot = _pydot()
    spec = graph.upgrade(caffe_net)
    if phase is not None:
        spec = graph.select_layers(spec, phase)
    drawing = pydot.Dot(_quoted(spec.name or "Net"), graph_type="digraph", rankdir=rankdir)
    for blob in dict.fromkeys(name for layer in spec.layer for name in _blobs(layer)):
        drawing.add_node(
            pydot.Node(
                _quoted(f"{blob}_blob"),
                label=_quoted(blob),
                shape="octagon",
                style="filled",
                fillcolor=_quoted(_BLOB),
            )
        )
    for layer, name in zip(spec.layer, _node_names(spec.layer), strict=True):
        drawing.add_node(
            pydot.Node(
                name,
                label=get_layer_label(layer, rankdir, display_lrm),
                shape="box",
                style="filled",
                fillcolor=_quoted(_color(layer)),
            )
        )
        _add_edges(pydot, drawing, layer, name, label_edges)
    return drawing


def _add_edges(pydot: Any, drawing: Any, layer: Any, name: str, label_edges: bool) -> None:
    label = get_edge_label(layer) if label_edges else _quoted("")
    for bottom in layer.bottom:
        drawing.add_edge(pydot.Edge(_quoted(f"{bottom}_blob"), name, label=_quoted("")))
    for top in layer.top:
        drawing.add_edge(pydot.Edge(name, _quoted(f"{top}_blob"), label=label))


def _blobs(layer: Any) -> list[str]:
    return [*layer.bottom, *layer.top]


def _node_names(layers: Sequence[Any]) -> list[str]:
    """ "<name>_<type>" of each, numbered from the second on where it comes again.

    Without a phase, layers of the same name may stand beside each other.
    """
    seen: dict[str, int] = {}
    names = []
    for layer in layers:
        name = f"{layer.name}_{layer.type}"
        seen[name] = seen.get(name, 0) + 1
        names.append(_quoted(name if seen[name] == 1 else f"{name}_{seen[name]}"))
    return names


def _pydot() -> Any:
    return extras.require("pydot", "drawing nets needs pydot", "'pycaffe-lite[draw]'")


def _quoted(*lines: str, separator: str = "") -> str:
    """Texts as one string of DOT."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return f'"{separator.join(escaped)}"'


# ---- what is written and how it looks ----------------------------------------------------------


def get_layer_label(layer: Any, rankdir: str, display_lrm: bool = False) -> str:
    """A LayerParameter's name, type, kernel, stride and pad; with `display_lrm` its learning rate.

    One below the other where the graph runs to the right or left, else in a row.
    """
    lines = [layer.name, f"({layer.type})"]
    if layer.type == "Pooling":
        kind = get_pooling_types_dict()[layer.pooling_param.pool]
        lines[1] = f"({kind} {layer.type})"
        lines += _window(layer.pooling_param)
    elif layer.type in ("Convolution", "Deconvolution"):
        lines += _window(layer.convolution_param)
    if display_lrm and layer.type in _LEARNING:
        lines.append(f"lr mult: {get_layer_lr_mult(layer):g}")
    return _quoted(*lines, separator=" " if rankdir in ("TB", "BT") else "\\n")


def _window(param: Any) -> list[str]:
    if getattr(param, "global_pooling", False):
        return ["kernel size: all"]
    return [
        f"kernel size: {_sizes(param, 'kernel', 'kernel_size', 0)}",
        f"stride: {_sizes(param, 'stride', 'stride', 1)}",
        f"pad: {_sizes(param, 'pad', 'pad', 0)}",
    ]


def _sizes(param: Any, prefix: str, field: str, default: int) -> str:
    """ "3", or "3x5" where axes differ.

    As a number, as a list with one entry an axis or one for all, or as fields _h and _w.
    """
    if param.HasField(f"{prefix}_h") or param.HasField(f"{prefix}_w"):
        sizes = [getattr(param, f"{prefix}_h"), getattr(param, f"{prefix}_w")]
    else:
        value = getattr(param, field)
        sizes = [value] if isinstance(value, int) else list(value) or [default]
    return "x".join(map(str, sizes if len(set(sizes)) > 1 else sizes[:1]))


def get_edge_label(layer: Any) -> str:
    """What stands at a LayerParameter's tops: the batch size of data, the number of outputs."""
    if layer.type == "Data":
        return _quoted(f"Batch {layer.data_param.batch_size}")
    if layer.type in ("Convolution", "Deconvolution"):
        return _quoted(str(layer.convolution_param.num_output))
    if layer.type == "InnerProduct":
        return _quoted(str(layer.inner_product_param.num_output))
    return _quoted("")


def get_layer_lr_mult(layer: Any) -> float:
    """The learning rate's factor for a LayerParameter's first parameter.

    1.0 where none is set, and for all types but convolutions and InnerProduct.
    """
    if layer.type not in _LEARNING or not layer.param:
        return 1.0
    return float(layer.param[0].lr_mult)


def choose_color_by_layertype(layertype: str) -> str:
    """The color "#RRGGBB" of a layer type's boxes."""
    return _COLORS.get(layertype, _OTHERS)


def _color(layer: Any) -> str:
    in_place = len(layer.bottom) == len(layer.top) == 1 and layer.bottom[0] == layer.top[0]
    return _IN_PLACE if in_place else choose_color_by_layertype(layer.type)


def get_pooling_types_dict() -> dict[int, str]:
    """Enum value -> name of the kinds of pooling: 0 MAX, 1 AVE, 2 STOCHASTIC."""
    return {number: name for name, number in caffe_pb2.PoolingParameter.PoolMethod.items()}
