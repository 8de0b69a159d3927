"""Does the README tell the truth? Its Python blocks run, and print what they should."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import pycaffe_lite

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run one of the blocks in an empty folder: its names and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(which: str) -> tuple[dict, str]:
        (block,) = [b for b in BLOCKS if which in b]
        names: dict = {}
        exec(compile(block, "README.md", "exec"), names)
        return names, capsys.readouterr().out

    return run


def test_the_tour(run):
    names, printed = run("net.prototxt")
    assert len(names["net"].layers) == 6
    assert names["out"]["prob"].shape == (2, 10)
    np.testing.assert_allclose(names["out"]["prob"].sum(axis=1), 1, rtol=1e-5)
    assert "(2, 8, 7, 6)" in printed
    (block,) = [b for b in BLOCKS if "net.prototxt" in b]
    assert len(block.splitlines()) <= 25


def test_a_layer_of_ones_own(run, tmp_path):
    (model,) = re.findall(r"```\n(input.*?)```", README, re.DOTALL)
    (tmp_path / "scaled.prototxt").write_text(model)
    _, printed = run("class Scaled")
    assert printed == "[[2.5 5.  7.5]]\n"
    assert "Scaled" in pycaffe_lite.layer_type_list()
    (block,) = [b for b in BLOCKS if "class Scaled" in b]
    assert len(block.splitlines()) <= 15


def test_every_file_of_the_code_map_exists():
    package = Path(pycaffe_lite.__file__).parent
    named = re.findall(r"`(?:pycaffe_lite/)?([\w/]+(?:\.py|/))`", README.split("reading order")[1])
    missing = [n for n in named if not (package / n).exists()]
    assert not missing
