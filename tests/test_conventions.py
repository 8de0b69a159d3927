"""Does the package keep its own rules? Read from its source and its classes."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from layer_cases import LayerTests

import pycaffe_lite
from pycaffe_lite import Layer, device
from pycaffe_lite.ops.base import Ops

PACKAGE = Path(pycaffe_lite.__file__).parent
TESTS = Path(__file__).parent
GENERATED = {"proto/caffe_pb2.py"}


def name_of(path):
    return path.relative_to(PACKAGE).as_posix()


SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if name_of(p) not in GENERATED)
LAYER_FILES = [p for p in SOURCES if p.parent.name == "layer_types"]


def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def names_in(tree):
    """Every name, attribute and imported module of a source; neither strings nor comments."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found.update(part for module in modules for part in module.split("."))
    return found


# ---- backends ----------------------------------------------------------------------------------


def providers():
    return [cls for cls in device._classes() if cls is not Ops]


def public_methods(cls):
    return {
        name: member
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_")
    }


def test_there_are_providers_to_look_at():
    assert {"cpu", "gpu"} <= {cls.name for cls in providers()}


@pytest.mark.parametrize("cls", providers(), ids=lambda cls: cls.__name__)
def test_a_provider_adds_no_public_method(cls):
    assert set(public_methods(cls)) == set(public_methods(Ops))


@pytest.mark.parametrize("cls", providers(), ids=lambda cls: cls.__name__)
def test_a_provider_keeps_every_signature(cls):
    """Names and order of parameters, and their defaults."""

    def parameters(method):
        return [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]

    wanted = public_methods(Ops)
    for name, method in public_methods(cls).items():
        assert parameters(method) == parameters(wanted[name]), name


def test_every_kernel_says_what_it_computes():
    kernels = [m for m in public_methods(Ops).values() if "out" in inspect.signature(m).parameters]
    assert len(kernels) > 10
    for kernel in kernels:
        assert kernel.__doc__


# ---- layers ------------------------------------------------------------------------------------


def built_in_types():
    return sorted(
        name
        for name, cls in Layer.registry.items()
        if cls.__module__.startswith("pycaffe_lite.layer_types.")
    )


# Types that cannot go through check_layer, and why.
UNCHECKED = {
    "Input": "it computes nothing, and every net of check_layer begins with it",
    "Data": "a data source: its values come from a database",
    "DetectionOutput": "the shape of its top depends on values",
    "DetectionEvaluate": "the shape of its top depends on values",
    "Proposal": "the shape of its top depends on values",
    "YoloDetectionOutput": "the shape of its top depends on values",
    "Yolov3DetectionOutput": "the shape of its top depends on values",
    "ProposalLayer": "the shape of its top depends on values",
    "HDF5Data": "a data source: its values come from a file",
    "ImageData": "a data source: its values come from image files",
    "WindowData": "a data source: its values come from image files",
    "HDF5Output": "it has no top to look at, only a file",
    "MemoryData": "a data source: its values are arrays that check_layer does not hand over",
}


@pytest.fixture(scope="module")
def checked():
    files = sorted((TESTS / "layer_types").glob("test_*.py"))
    return sum((LayerTests(tree_of(path)).cases(built_in_types()) for path in files), Counter())


@pytest.mark.parametrize("name", built_in_types())
def test_every_layer_type_is_checked_with_two_parameter_sets(checked, name):
    """In tests/layer_types, by check_layer."""
    assert checked[name] >= 2 or name in UNCHECKED


def test_exceptions_are_still_needed(checked):
    assert [name for name in UNCHECKED if checked[name] or name not in built_in_types()] == []


def test_a_type_that_is_only_named_is_not_counted():
    text = """
@pytest.mark.parametrize("kind", ["A", "B"])
@pytest.mark.parametrize("size", SIZES)
def test_one(ops, kind, size):
    check_layer(ops, f"type: '{kind}' more", [size], None)
def test_two(ops):
    text = helper("size: 3")
    check_layer(ops, text, [(2, 3)], lambda x: x)
    make_net("layer { type: 'D' }")
def test_three():
    make_net("layer { type: 'A' }")
def helper(param):
    return f"type: 'C' {param}"
SIZES = [(2,), (3,), (4,)]
"""
    assert LayerTests(ast.parse(text)).cases("ABCD") == {"A": 6, "B": 6, "C": 1}


def test_every_class_of_layer_types_is_a_type_under_its_name():
    for path in (p for p in LAYER_FILES if p.stem != "__init__"):
        module = importlib.import_module(f"pycaffe_lite.layer_types.{path.stem}")
        for name, cls in inspect.getmembers(module, inspect.isclass):
            if issubclass(cls, Layer) and cls.__module__ == module.__name__ and name[0] != "_":
                assert Layer.registry.get(name) is (None if cls.abstract else cls)


@pytest.mark.parametrize("path", LAYER_FILES, ids=name_of)
def test_layers_know_neither_nets_nor_devices(path):
    assert names_in(tree_of(path)).isdisjoint({"cupy", "device", "net", "step", "cuda", "kind"})


NUMPY_MAKES = {
    "array", "asarray", "ascontiguousarray", "zeros", "ones", "empty", "full", "arange",
    "zeros_like", "ones_like", "empty_like", "full_like", "linspace", "eye", "meshgrid",
    "broadcast_to", "concatenate", "stack", "random",
}  # fmt: skip


@pytest.mark.parametrize("path", LAYER_FILES, ids=name_of)
def test_layers_make_no_arrays_with_numpy(path):
    """They would be host arrays in every mode."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert not (node.value.id in ("np", "numpy") and node.attr in NUMPY_MAKES), node.lineno


@pytest.mark.parametrize("path", LAYER_FILES, ids=name_of)
def test_layers_name_no_precision(path):
    """The dtype is the blobs'; integers and the like are fine."""
    names = {"float16", "float32", "float64", "double", "half"}
    assert names_in(tree_of(path)).isdisjoint(names)
    strings = {n.value for n in ast.walk(tree_of(path)) if isinstance(n, ast.Constant)}
    assert strings.isdisjoint(names | {"f4", "f8"})


# ---- who may ask what --------------------------------------------------------------------------


def measures(name):
    """True for the files that time devices and report on them: they have to tell them apart."""
    return name.startswith(("stride", "machine", "commands/"))


def compares_kind(tree):
    """Lines that compare some object's `kind` or `place`."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Attribute) and side.attr in ("kind", "place")
    ]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_who_asks_which_device_it_is(path):
    name = name_of(path)
    allowed = name in ("device.py", "blob.py", "storage.py") or measures(name)
    allowed |= name.startswith("ops/")
    if not allowed:
        assert compares_kind(tree_of(path)) == []


def test_such_a_question_would_be_found():
    assert compares_kind(ast.parse("x = 1\nif ops.kind == 'gpu': pass")) == [2]
    assert compares_kind(ast.parse("y = self.ops.place in ('cpu',)")) == [1]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_ops_know_nothing_of_nets(path):
    if name_of(path).startswith("ops/"):
        ours = {"net", "step", "layer", "blob", "device", "graph", "weights", "prototxt"}
        imported = {
            part
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.ImportFrom) and node.level
            for part in [*(node.module or "").split("."), *(a.name for a in node.names)]
        }
        assert imported.isdisjoint(ours)


# ---- importing ---------------------------------------------------------------------------------

HEAVY = [
    "cupy", "llvmlite", "h5py", "lmdb", "plyvel", "PIL", "cv2", "matplotlib", "pydot", "scipy",
    "rich", "google.protobuf.text_format",
]  # fmt: skip


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, pycaffe_lite; pycaffe_lite.layer_type_list();"
        f"print(*(m for m in {HEAVY} if m in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
    assert done.stderr == ""


def test_every_module_can_be_imported():
    for module in pkgutil.walk_packages(pycaffe_lite.__path__, "pycaffe_lite."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


# ---- words -------------------------------------------------------------------------------------


def public_things(tree):
    """The public classes and functions of a module, and the public methods of such classes."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def is_setter(node):
    return any(getattr(d, "attr", "") == "setter" for d in getattr(node, "decorator_list", ()))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_everything_public_has_a_docstring(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree), "the module says what question it answers"
    bare = [
        name
        for name, node in public_things(tree)
        if not ast.get_docstring(node) and not is_setter(node)
    ]
    assert [name for name in bare if not documented_above(path, name)] == []


def documented_above(path, name):
    """True where a base class documents the method: overriding it needs no words of its own."""
    parts = [part for part in name_of(path).removesuffix(".py").split("/") if part != "__init__"]
    module = importlib.import_module(".".join(["pycaffe_lite", *parts]))
    owner, _, method = name.partition(".")
    bases = getattr(module, owner).__mro__[1:] if method else ()
    return any(getattr(vars(base).get(method), "__doc__", None) for base in bases)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_left_for_later(path):
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text(encoding="utf-8"))
