"""What a load says about layers that only the file or only the net has."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal
from small_nets import CHAIN, INPUT, fill, ip

from pycaffe_lite import TEST, Net, WeightsError

FORMS = ["binary", "hdf5"]
OTHER = INPUT + ip("a", "x", "y", 4) + ip("new", "y", "z", 6)


@pytest.fixture(params=FORMS)
def stored(request, tmp_path):
    """Saves a filled net of a text and gives the path."""

    def save(text):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.caffemodel"
        net = fill(make_net(text))
        (net.save if request.param == "binary" else net.save_hdf5)(path)
        return path

    return save


def test_no_report_before_a_load():
    assert make_net(CHAIN).load_report is None


def test_a_complete_load(stored, caplog):
    net, path = make_net(CHAIN), stored(CHAIN)
    with caplog.at_level(logging.INFO, "pycaffe_lite"):
        net.copy_from(path, strict=True)
    report = net.load_report
    assert (report.loaded, report.ignored, report.left) == (("a", "b"), (), ())
    assert report.complete
    assert report.path == str(path)
    assert [r.levelname for r in caplog.records] == ["INFO"]
    assert caplog.records[0].getMessage() == f"weights {path}: 2 layers loaded"


def test_layers_of_one_side(stored, caplog):
    """https://github.com/Tencent/ncnn/issues/68"""
    net, path = make_net(OTHER), stored(CHAIN)
    with caplog.at_level(logging.INFO, "pycaffe_lite"):
        net.copy_from(path)
    report = net.load_report
    assert (report.loaded, report.ignored, report.left) == (("a",), ("b",), ("new",))
    assert not report.complete
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    said = caplog.records[0].getMessage()
    assert "ignored, not in the net: b" in said
    assert "left at their fillers, not in the file: new" in said


def test_layers_of_the_file_only_are_no_warning(stored, caplog):
    """A deployed net without the auxiliary losses it was trained with."""
    net, path = make_net(INPUT + ip("a", "x", "y", 4)), stored(CHAIN)
    with caplog.at_level(logging.INFO, "pycaffe_lite"):
        net.copy_from(path)
    assert net.load_report.ignored == ("b",)
    assert [r.levelname for r in caplog.records] == ["INFO"]


def test_strict_loading_changes_nothing_where_it_fails(stored):
    net, path = fill(make_net(OTHER), seed=4), stored(CHAIN)
    before = net.params["a"][0].data.copy()
    with pytest.raises(WeightsError, match=rf"strict.*{path.name}.*not in the net: b; .*file: new"):
        net.copy_from(path, strict=True)
    assert_array_equal(net.params["a"][0].data, before)
    assert net.load_report is None


def test_strict_refuses_layers_of_the_file_only(stored):
    net, path = make_net(INPUT + ip("a", "x", "y", 4)), stored(CHAIN)
    with pytest.raises(WeightsError, match="strict.*not in the net: b$"):
        net.copy_from(path, strict=True)


def test_strict_in_the_constructor(stored, tmp_path):
    model = tmp_path / "net.prototxt"
    model.write_text(OTHER)
    with pytest.raises(WeightsError, match="strict"):
        Net(model, TEST, weights=stored(CHAIN), strict=True)
    net = Net(model, TEST, weights=stored(OTHER), strict=True)
    assert net.load_report.complete


def test_two_files_that_complete_each_other(stored):
    net = make_net(CHAIN)
    net.copy_from(stored(INPUT + ip("a", "x", "y", 4)))
    assert net.load_report.left == ("b",)
    net.copy_from(stored("input: 'y' input_shape { dim: [2, 4] }" + ip("b", "y", "z", 5)))
    assert net.load_report.left == ()
    assert net.load_report.loaded == ("b",)


def test_who_shares_all_with_a_loaded_layer_is_not_left(stored):
    param = "param { name: 'w' } param { name: 'b' }"
    net = make_net(INPUT + ip("a", "x", "y", 3, param) + ip("twin", "y", "z", 3, param))
    net.copy_from(stored(INPUT + ip("a", "x", "y", 3)), strict=True)
    assert net.params["twin"][0].data.any()


def test_values_of_the_models_own_are_not_left_to_fillers(stored):
    net = make_net(
        "input: 'x' input_shape { dim: [2, 3] } layer { name: 'own' type: 'InnerProduct'"
        " bottom: 'x' top: 'y' blobs { shape { dim: [2, 3] } data: [1, 2, 3, 4, 5, 6] }"
        " inner_product_param { num_output: 2 bias_term: false } }" + ip("b", "y", "z", 5)
    )
    net.copy_from(stored("input: 'y' input_shape { dim: [4, 2] }" + ip("b", "y", "z", 5)))
    assert net.load_report.left == ()
    assert_array_equal(net.params["own"][0].data, np.arange(1, 7).reshape(2, 3))


def test_a_long_list_is_cut(stored):
    names = [f"l{k}" for k in range(13)]
    text = INPUT + "".join(ip(name, "x", name, 2) for name in names)
    net = make_net(text)
    net.copy_from(stored(CHAIN))
    assert net.load_report.left == tuple(names)
    assert str(net.load_report).endswith("l9 and 3 more")


def test_sharing_sets_the_report_too():
    other = make_net("name: 'other' " + INPUT + ip("a", "x", "y", 4) + ip("more", "y", "z", 5))
    net = make_net(INPUT + ip("a", "x", "y", 4) + ip("own", "y", "z", 6))
    net.share_with(other)
    report = net.load_report
    assert (report.loaded, report.ignored, report.left) == (("a",), ("more",), ("own",))
    assert "net 'other'" in str(report)
