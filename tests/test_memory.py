"""How much memory may a net take? Refused before anything is allocated."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from harness import make_net
from numpy.testing import assert_array_equal

from pycaffe_lite import Blob, ModelError, memory


def ip_net(rows, outputs, loss_weight=""):
    """(rows, 3) -> (rows, outputs): 12 rows + 16 outputs + 4 rows outputs bytes."""
    return make_net(
        f"input: 'x' input_shape {{ dim: {rows} dim: 3 }} layer {{ name: 'ip' type: 'InnerProduct'"
        f" bottom: 'x' top: 'wide' {loss_weight} inner_product_param {{ num_output: {outputs} }} }}"
    )


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("PYCAFFE_LITE_MEMORY", raising=False)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("64K", 64 * 1024),
        ("512M", 512 * 1024**2),
        ("8G", 8 * 1024**3),
        ("2T", 2 * 1024**4),
        ("8g", 8 * 1024**3),
        ("8GB", 8 * 1024**3),
        ("8GiB", 8 * 1024**3),
        ("8 GB", 8 * 1024**3),
        (" 0.5G ", 1024**3 // 2),
        ("100B", 100),
    ],
)
def test_forms_of_the_variable(monkeypatch, text, size):
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", text)
    assert memory.limit() == size


@pytest.mark.parametrize("text", ["much", "8X", "-1", "8G8", "1e9", "G", "1,5G"])
def test_a_variable_that_is_no_size(monkeypatch, text):
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", text)
    with pytest.raises(ModelError, match=f"PYCAFFE_LITE_MEMORY='{text}' is no size.*512M or 8G"):
        memory.limit()


def test_an_empty_variable_is_none(monkeypatch):
    without = memory.limit()
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "")
    assert memory.limit() == without


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sets what the machine and its cgroups (version 2, version 1) have."""

    def pretend(physical, *cgroups):
        files = []
        for k, text in enumerate(cgroups):
            files.append(tmp_path / f"limit{k}")
            if text is not None:
                files[-1].write_text(text)
        monkeypatch.setattr(memory, "_physical", lambda: physical)
        monkeypatch.setattr(memory, "_LIMITS", tuple(files))

    return pretend


@pytest.mark.parametrize(
    ("physical", "cgroups", "size"),
    [
        (9000, ("4000\n", None), 4000),
        (9000, (None, "4000\n"), 4000),
        (9000, ("max\n", None), 9000),
        (9000, (None, "9223372036854771712\n"), 9000),
        (9000, (None, None), 9000),
        (3000, ("4000", "5000"), 3000),
        (None, ("4000", None), 4000),
        (None, (None, None), None),
        (None, ("", "rubbish"), None),
    ],
)
def test_the_least_of_machine_and_cgroup_counts(machine, physical, cgroups, size):
    machine(physical, *cgroups)
    assert memory.limit() == size


def test_the_variable_overrides_what_the_machine_has(machine, monkeypatch):
    machine(9000, "4000")
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "7000")
    assert memory.limit() == 7000


def test_where_nothing_tells_everything_goes(machine):
    machine(None)
    memory.check([("x", Blob((10**9,)))])


def test_the_limit_itself_still_fits(monkeypatch):
    # 5 rows: 60 bytes of x, 140 of the top; 84 of weights, 28 of bias
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "312")
    ip_net(5, 7)
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "311")
    with pytest.raises(ModelError, match="312 bytes of memory but there are 311 bytes"):
        ip_net(5, 7)


def test_gradients_count_where_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "40")
    blobs = [("x", Blob((2, 3)))]
    memory.check(blobs)
    with pytest.raises(ModelError, match="48 bytes"):
        memory.check(blobs, diffs=True)


def test_shared_storage_counts_once(monkeypatch):
    one, two = Blob((2, 3)), Blob((2, 3))
    two.share_data(one)
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "24")
    memory.check([("one", one), ("two", two)])
    with pytest.raises(ModelError, match="48 bytes"):
        memory.check([("one", one), ("three", Blob((2, 3)))])


@pytest.mark.parametrize(
    ("rows", "outputs", "largest"),
    [(1000, 10, r"'wide' with 39.1 KiB, shape `1000 10 \(10000\)`"), (1, 10**4, "'ip param 0'")],
)
def test_the_largest_blob_is_named(monkeypatch, rows, outputs, largest):
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "10K")
    with pytest.raises(ModelError, match=f"largest is {largest}"):
        ip_net(rows, outputs)


def test_both_sizes_and_the_variable_are_in_the_text(monkeypatch):
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "1M")
    text = r"need 7.\d\d GiB of memory but there are 1.0 MiB \(PYCAFFE_LITE_MEMORY overrides\)"
    with pytest.raises(ModelError, match=text):
        ip_net(2 * 10**6, 1000)


@pytest.mark.parametrize("loss_weight", ["", "loss_weight: 2"])
def test_nothing_is_allocated_before_the_error(monkeypatch, loss_weight):
    """A weighted top is no exception: its gradient holds the weight only once it may exist."""
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "1M")
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="'wide' with 38.1 MiB"):
            ip_net(10000, 1000, loss_weight)
        assert tracemalloc.get_traced_memory()[1] < 5 * 2**20
    finally:
        tracemalloc.stop()


def test_far_more_than_any_machine_has():
    tops = " ".join(f"top: 't{k}'" for k in range(1000))
    with pytest.raises(ModelError, match=r"need 7.81 TiB.*'t0' with 8.00 GiB"):
        make_net(
            f"layer {{ name: 'in' type: 'Input' {tops}"
            " input_param { shape { dim: 65536 dim: 32767 } } }"
        )


WIDE = np.float32([[1, 2, 3]])


@pytest.fixture
def net(monkeypatch):
    """A net that fits for one row and not for a thousand, with weights of its own."""
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "4K")
    net = ip_net(1, 5)
    net.params["ip"][0].data[...] = np.arange(15).reshape(5, 3)
    return net


TOP = [[8, 26, 44, 62, 80]]  # by hand: row k of the weights is 3k, 3k + 1, 3k + 2


@pytest.mark.parametrize("verb", ["reshape", "forward"])
@pytest.mark.parametrize("ran", [True, False], ids=["ran before", "never ran"])
def test_too_large_after_a_reshape_and_usable_after_another(net, verb, ran):
    if ran:
        net.forward(x=WIDE)
    for _ in range(2):
        net.blobs["x"].reshape(1000, 3)
        with pytest.raises(ModelError, match=r"need 31.3 KiB.*are 4.0 KiB.*'wide' with 19.5 KiB"):
            getattr(net, verb)()
    net.blobs["x"].reshape(1, 3)
    assert_array_equal(net.forward(x=WIDE)["wide"], TOP)
    assert net.blobs["wide"].storages[0].nbytes == 20
    net.blobs["x"].reshape(2, 3)
    assert_array_equal(net.forward(x=[WIDE[0], WIDE[0]])["wide"], TOP * 2)


def test_a_reshape_that_is_refused_allocates_nothing(net):
    net.forward(x=WIDE)
    net.blobs["x"].reshape(300000, 3)
    tracemalloc.start()
    try:
        for verb in (net.reshape, net.forward):
            with pytest.raises(ModelError, match="9.2 MiB"):
                verb()
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_the_limits_are_those_of_linux():
    assert all(isinstance(path, Path) for path in memory._LIMITS)
    assert str(memory._LIMITS[0]) == "/sys/fs/cgroup/memory.max"


PADDED = {
    "Convolution": "convolution_param { num_output: 2 kernel_size: 3 pad: 999 stride: 998 }",
    "Deconvolution": "convolution_param { num_output: 2 kernel_size: 3 dilation: 999 pad: 999 }",
    "Im2col": "convolution_param { kernel_size: 3 pad: 999 dilation: 999 }",
    "Pooling": "pooling_param { kernel_size: 999 stride: 999 }",
    "LRN": "lrn_param { norm_region: WITHIN_CHANNEL local_size: 999 }",
    "Correlation": "bottom: 'x' correlation_param { pad: 999 kernel_size: 1"
    " max_displacement: 999 stride_1: 1 stride_2: 999 }",
}


@pytest.mark.parametrize("kind", PADDED)
def test_a_pad_that_needs_too_much_is_refused(kind, monkeypatch):
    text = (
        "input: 'x' input_shape { dim: [2, 3, 5, 4] } layer { name: 'it' type: '"
        f"{kind}' bottom: 'x' top: 'y' {PADDED[kind]} }}"
    )
    make_net(text)
    monkeypatch.setenv("PYCAFFE_LITE_MEMORY", "1M")
    with pytest.raises(ModelError, match=rf"'it' \({kind}\): the input with its pad, `.*MiB"):
        make_net(text)
