"""Scripts that say `import caffe`: under install_as_caffe(), and through `pycaffe-lite run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import cv2
import numpy as np
import pytest

import pycaffe_lite
from pycaffe_lite.__main__ import main

PLACE = str(Path(pycaffe_lite.__file__).parents[1])
Done = subprocess.CompletedProcess


def python(*args: str, cwd: Path) -> Done[str]:
    """`python ARGS` in a process of its own, warnings being errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": PLACE},
    )


def installed(code: str, cwd: Path) -> Done[str]:
    """The code after install_as_caffe()."""
    start = "import sys, pycaffe_lite; pycaffe_lite.install_as_caffe()\n"
    return python("-c", start + dedent(code), cwd=cwd)


def run_script(code: str, *args: str, cwd: Path) -> Done[str]:
    """The code as a script of `pycaffe-lite run`."""
    (cwd / "script.py").write_text(dedent(code))
    return python("-m", "pycaffe_lite", "run", "script.py", *args, cwd=cwd)


def fine(done: Done[str]) -> str:
    """What it printed, all being well."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# ---- install_as_caffe ---------------------------------------------------------------------------


def test_both_names_mean_the_same_modules(tmp_path: Path) -> None:
    code = """
        before = pycaffe_lite.__spec__, pycaffe_lite.proto.__spec__
        import caffe
        import caffe.proto.caffe_pb2
        from caffe.proto import caffe_pb2
        import pycaffe_lite.proto.caffe_pb2 as ours
        assert caffe is pycaffe_lite and caffe_pb2 is ours and caffe.proto.caffe_pb2 is ours
        assert caffe_pb2.NetParameter(name="a").name == "a"
        import caffe.pycaffe, caffe._caffe
        from caffe.pycaffe import Net
        from caffe._caffe import Blob, Layer
        assert (Net, Blob, Layer) == (caffe.Net, caffe.Blob, caffe.Layer)
        assert caffe.pycaffe is caffe._caffe is caffe
        import caffe.weights
        assert caffe.weights is sys.modules["pycaffe_lite.weights"]
        after = pycaffe_lite.__spec__, pycaffe_lite.proto.__spec__
        assert after == before and before[0].name == "pycaffe_lite"
        import pickle
        assert pickle.loads(pickle.dumps(caffe.Layer)) is caffe.Layer
    """
    fine(installed(code, tmp_path))


def test_a_submodule_that_nobody_listed(tmp_path: Path) -> None:
    """As io and net_spec are found: by being there."""
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "drawing.py").write_text("print('once')\nfrom . import fine\n")
    (tmp_path / "later" / "fine.py").write_text("pen = 3\n")
    code = """
        pycaffe_lite.__path__.append("later")
        import caffe.drawing
        from caffe import fine
        from caffe.drawing import fine as same
        assert caffe.drawing is sys.modules["pycaffe_lite.drawing"]
        assert fine is same and fine.pen == 3
    """
    assert fine(installed(code, tmp_path)) == "once\n"


def test_twice_is_once(tmp_path: Path) -> None:
    code = """
        finders = list(sys.meta_path)
        import caffe
        caffe.install_as_caffe()
        assert sys.meta_path == finders and sys.modules["caffe"] is pycaffe_lite
    """
    fine(installed(code, tmp_path))


def test_what_is_not_there_is_an_import_error(tmp_path: Path) -> None:
    code = """
        for name in ("caffe.nothing", "caffe.proto.nothing", "caffe.blob.nothing"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                print(error)
    """
    lines = fine(installed(code, tmp_path)).splitlines()
    assert lines[:2] == [
        "No module named 'caffe.nothing'",
        "No module named 'caffe.proto.nothing'",
    ]
    assert "caffe.blob.nothing" in lines[2]


def test_another_caffe_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "caffe.py").write_text("mine = True\n")
    code = """
        import caffe, sys, pycaffe_lite
        finders = list(sys.meta_path)
        try:
            pycaffe_lite.install_as_caffe()
        except ImportError as error:
            print(error)
        assert sys.modules["caffe"] is caffe and caffe.mine
        assert sys.meta_path == finders and "caffe.pycaffe" not in sys.modules
    """
    said = fine(python("-c", dedent(code), cwd=tmp_path))
    assert "another module named 'caffe' is already imported, from " in said
    assert "caffe.py: call install_as_caffe() before" in said


def test_a_caffe_in_the_folder_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "caffe.py").write_text("raise AssertionError\n")
    fine(installed("import caffe; caffe.Net", tmp_path))


# ---- pycaffe-lite run ---------------------------------------------------------------------------


def test_a_script_with_a_layer_of_its_own(tmp_path: Path) -> None:
    """Net, a Python layer from the script's folder and one of the script, and messages."""
    (tmp_path / "thirds.py").write_text(
        dedent(
            """
            import caffe

            class Third(caffe.Layer):
                def setup(self, bottom, top):
                    pass
                def reshape(self, bottom, top):
                    top[0].reshape(*bottom[0].shape)
                def forward(self, bottom, top):
                    top[0].data[...] = bottom[0].data / 3
                def backward(self, top, propagate_down, bottom):
                    pass
            """
        )
    )
    (tmp_path / "net.prototxt").write_text(
        """
        input: "x" input_shape { dim: 2 dim: 3 }
        layer { name: "a" type: "Python" bottom: "x" top: "y"
                python_param { module: "thirds" layer: "Third" } }
        layer { name: "b" type: "Python" bottom: "y" top: "z"
                python_param { module: "__main__" layer: "Negative" } }
        """
    )
    code = """
        import caffe
        from caffe.proto import caffe_pb2
        from google.protobuf import text_format
        from pathlib import Path
        import thirds

        class Negative(thirds.Third):
            def forward(self, bottom, top):
                top[0].data[...] = -bottom[0].data

        text = Path("net.prototxt").read_text()
        model = text_format.Parse(text, caffe_pb2.NetParameter())
        caffe.set_mode_cpu()
        net = caffe.Net("net.prototxt", caffe.TEST)
        out = net.forward(x=[[3, 6, 9], [12, 15, 18]])
        print([str(layer.name) for layer in model.layer], out["z"].tolist())
    """
    said = fine(run_script(code, cwd=tmp_path))
    assert said == "['a', 'b'] [[-1.0, -2.0, -3.0], [-4.0, -5.0, -6.0]]\n"


SEES = """
import os, sys
print(__name__, __file__, __package__, __spec__, type(__builtins__).__name__)
print(sys.argv, os.path.realpath(sys.path[0]))
print(sys.modules["__main__"].__dict__ is globals())
import neighbour
"""


ARGUMENTS = ["-v", "--ver", "--version", "--help", "-x=1", "a b", "--", "stride"]


@pytest.mark.parametrize("more", [ARGUMENTS, ["--", "-v"], []])
def test_it_sees_what_python_shows_it(more: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "sees.py").write_text(SEES)
    (folder / "neighbour.py").write_text("print('hello')\n")
    args = ["scripts/sees.py", *more]
    plain = fine(python(*args, cwd=tmp_path))
    assert fine(python("-m", "pycaffe_lite", "run", *args, cwd=tmp_path)) == plain
    assert f"{folder} " not in plain
    assert str(args) in plain


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no data')",
        "raise SystemExit",
        "raise ValueError('wrong')",
        "def f():\n    raise RuntimeError('deep')\nf()",
        "open('missing.txt')",
        "import missing_module",
        "x = (1,\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    [][1]",
        "import sys\nsys.excepthook = lambda *e: print(e[0].__name__, e[1])\nint('x')",
        "import atexit; atexit.register(print, 'bye'); 1 / 0",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_ends_as_under_python(code: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(code)
    plain = python("script.py", cwd=tmp_path)
    done = run_script(code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr == plain.stderr


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    plain = python("none.py", cwd=tmp_path)
    done = python("-m", "pycaffe_lite", "run", "none.py", cwd=tmp_path)
    assert done.returncode == plain.returncode == 2
    assert f"can't open file '{tmp_path / 'none.py'}'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_script_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run"])
    assert "SCRIPT" in capsys.readouterr().err


# ---- what pycaffe's own scripts do --------------------------------------------------------------

DEPLOY = """
input: "data" input_shape { dim: 2 dim: 3 dim: 7 dim: 9 }
layer { name: "a" type: "InnerProduct" bottom: "data" top: "a" inner_product_param { num_output: 4
        weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "prob" type: "Softmax" bottom: "a" top: "prob" }
"""


@pytest.fixture
def deploy(tmp_path: Path) -> Path:
    """A folder with a net, weights of it, two images and a mean."""
    (tmp_path / "net.prototxt").write_text(DEPLOY)
    net = pycaffe_lite.Net(tmp_path / "net.prototxt", pycaffe_lite.TEST)
    net.save(tmp_path / "x.caffemodel")
    draw = np.random.default_rng(3)
    for name in ("1.png", "2.png"):
        cv2.imwrite(str(tmp_path / name), draw.integers(0, 256, (14, 19, 3), dtype=np.uint8))
    np.save(tmp_path / "mean.npy", draw.random((3, 10, 12)) * 255)
    return tmp_path


def test_a_script_that_classifies(deploy: Path) -> None:
    code = """
        import sys
        import numpy as np
        import caffe

        caffe.set_mode_cpu()
        mean = np.load("mean.npy")
        classifier = caffe.Classifier("net.prototxt", "x.caffemodel", image_dims=[10, 12],
                mean=mean, input_scale=None, raw_scale=255.0, channel_swap=[2, 1, 0])
        inputs = [caffe.io.load_image(name) for name in sys.argv[1:]]
        predictions = classifier.predict(inputs, True)
        np.save("out.npy", predictions)
        """
    fine(run_script(code, "1.png", "2.png", cwd=deploy))
    predictions = np.load(deploy / "out.npy")
    assert predictions.shape == (2, 4)
    np.testing.assert_allclose(predictions.sum(axis=1), 1, rtol=1e-5)


def test_a_script_that_detects(deploy: Path) -> None:
    code = """
        import numpy as np
        import caffe

        mean = np.load("mean.npy")
        if mean.shape[1:] != (1, 1):
            mean = mean.mean(1).mean(1)
        detector = caffe.Detector("net.prototxt", "x.caffemodel", mean=mean, input_scale=None,
                raw_scale=255.0, channel_swap=[2, 1, 0], context_pad=2)
        windows = np.array([[0, 0, 6, 8], [3, 2, 13, 15]])
        detections = detector.detect_windows([("1.png", windows), ("2.png", windows[1:])])
        print([d["filename"] for d in detections])
        print(np.vstack([d["window"] for d in detections]).tolist())
        print(np.vstack([d["prediction"] for d in detections]).sum(1).round(4).tolist())
        """
    assert fine(run_script(code, cwd=deploy)).splitlines() == [
        "['1.png', '1.png', '2.png']",
        "[[0, 0, 6, 8], [3, 2, 13, 15], [3, 2, 13, 15]]",
        "[1.0, 1.0, 1.0]",
    ]


def test_a_script_that_draws(deploy: Path) -> None:
    code = """
        import sys
        from google.protobuf import text_format
        import caffe
        import caffe.draw
        from caffe.proto import caffe_pb2

        net = caffe_pb2.NetParameter()
        with open(sys.argv[1]) as file:
            text_format.Merge(file.read(), net)
        caffe.draw.draw_net_to_file(net, sys.argv[2], "LR", caffe.TEST, True)
        """
    fine(run_script(code, "net.prototxt", "net.dot", cwd=deploy))
    assert '"a_InnerProduct" -> "a_blob"' in (deploy / "net.dot").read_text()


def test_a_script_for_several_gpus(tmp_path: Path) -> None:
    code = """
        import caffe
        for start in (caffe.NCCL.new_uid, lambda: caffe.NCCL(None, b"")):
            try:
                start()
            except RuntimeError as error:
                print(caffe.has_nccl(), error)
        """
    said = fine(run_script(code, cwd=tmp_path)).splitlines()
    assert len(said) == 2
    assert all(line.startswith("False NCCL is not there: pycaffe_lite trains on") for line in said)


# ---- the other commands -------------------------------------------------------------------------


def test_a_python_layer_of_a_command_that_says_import_caffe(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(
        dedent(
            """
            import caffe

            class Halves(caffe.Layer):
                def setup(self, bottom, top):
                    pass
                def reshape(self, bottom, top):
                    top[0].reshape(2, 3)
                def forward(self, bottom, top):
                    top[0].data[...] = 0.5
                def backward(self, top, propagate_down, bottom):
                    pass
            """
        )
    )
    (tmp_path / "net.prototxt").write_text(
        "layer { name: 'x' type: 'Python' top: 'x'"
        " python_param { module: 'halves' layer: 'Halves' } }"
    )
    args = ["test", "-model", "net.prototxt", "-iterations", "1"]
    done = python("-m", "pycaffe_lite", *args, cwd=tmp_path)
    assert done.returncode == 0
    assert "Batch 0, x = 0.5" in done.stderr
