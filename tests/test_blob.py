"""Where do arrays live? Storage, blobs and views; copies are counted on the pretend device."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest
from fake_device import FakeArray, FakeOps
from numpy.testing import assert_array_equal

from pycaffe_lite import Blob, ModelError, device
from pycaffe_lite.blob import BlobVec, View, canonical_axis, describe
from pycaffe_lite.ops.base import Ops
from pycaffe_lite.storage import SyncedArray

HOST = Ops()


@pytest.fixture
def fake() -> FakeOps:
    return FakeOps()


@pytest.fixture
def storage() -> SyncedArray:
    """Six float32 elements, nothing allocated yet."""
    array = SyncedArray(np.float32)
    array.resize(6)
    return array


# ---- storage -----------------------------------------------------------------------------------


def test_nothing_is_allocated_before_the_first_touch(fake, storage):
    assert fake.counters.allocations == 0
    storage.on(fake)
    storage.on(fake)
    assert fake.counters.allocations == 1


def test_the_first_touch_gives_zeros(ops, storage):
    assert_array_equal(ops.to_host(storage.on(ops)), np.zeros(6))


def test_values_reach_the_other_place_once(fake, storage):
    storage.on(HOST)[...] = 5
    for _ in range(3):
        assert_array_equal(fake.to_host(storage.on(fake, write=False)), [5] * 6)
    assert fake.counters.uploads == 1
    assert fake.counters.upload_elements == 6


def test_reading_leaves_both_places_up_to_date(fake, storage):
    storage.on(fake)[...] = 5
    fake.counters.reset()
    for _ in range(3):
        storage.on(HOST, write=False)
        storage.on(fake, write=False)
    assert (fake.counters.downloads, fake.counters.uploads) == (1, 0)


def test_an_undeclared_access_counts_as_a_write(fake, storage):
    """Forgetting to declare costs a copy, never a wrong number."""
    storage.on(fake)[...] = 5
    storage.on(HOST)[...] = 6
    assert_array_equal(fake.to_host(storage.on(fake)), [6] * 6)
    storage.on(fake)[...] = 7
    assert_array_equal(storage.on(HOST), [7] * 6)


def test_what_will_be_overwritten_is_not_copied(fake, storage):
    storage.on(HOST)[...] = 5
    storage.on(fake, read=False)[...] = 6
    assert fake.counters.uploads == 0
    assert_array_equal(storage.on(HOST), [6] * 6)


def test_values_travel_between_two_devices(storage):
    one, two = FakeOps("fake:1"), FakeOps("fake:2")
    storage.on(one)[...] = 5
    assert_array_equal(two.to_host(storage.on(two)), [5] * 6)
    storage.on(two)[...] = 6
    assert_array_equal(one.to_host(storage.on(one)), [6] * 6)


def test_backends_of_one_place_share_the_array(storage):
    other = Ops()
    assert storage.on(HOST) is storage.on(other)


def test_growing_gives_zeros_and_leaves_held_arrays_alive(storage):
    held = storage.on(HOST)
    held[...] = 5
    storage.resize(8)
    assert_array_equal(storage.on(HOST), np.zeros(8))
    assert_array_equal(held, [5] * 6)


def test_shrinking_and_growing_back_keeps_array_and_values(storage):
    held = storage.on(HOST)
    held[...] = range(6)
    storage.resize(2)
    storage.resize(6)
    assert storage.on(HOST) is held
    assert_array_equal(held, range(6))


def test_only_the_elements_in_use_are_copied(fake, storage):
    """What a larger shape has left behind goes along once, and never again."""
    storage.on(HOST)
    storage.resize(2)
    storage.on(fake)
    assert fake.counters.upload_elements == 6
    fake.counters.reset()
    for _ in range(3):
        storage.on(HOST)
        storage.on(fake)
    assert fake.counters.upload_elements == fake.counters.download_elements == 6


def test_a_size_that_never_got_memory_takes_none(storage):
    storage.resize(10**12)
    storage.resize(3)
    assert storage.nbytes == 12
    assert storage.on(HOST).size == 3


def test_the_version_moves_with_accesses_that_may_write(fake, storage):
    storage.on(HOST)
    before = storage.version
    storage.on(HOST, write=False)
    storage.on(fake, write=False)
    assert storage.version == before
    storage.on(fake)
    assert storage.version > before


@pytest.mark.parametrize("read", [True, False])
def test_what_a_smaller_shape_hides_comes_back(fake, read):
    """Also where the values changed places meanwhile, and each element is copied only once."""
    blob = Blob((10,))
    blob.data[...] = np.arange(10)
    blob.reshape(4)
    for _ in range(3):
        blob.array(fake, read=read)[...] = 7
        blob.data[...] = blob.data + 1
    assert fake.counters.upload_elements == (18 if read else 6)
    blob.reshape(10)
    assert_array_equal(blob.data, [8] * 4 + [4, 5, 6, 7, 8, 9])
    assert_array_equal(fake.to_host(blob.array(fake)), [8] * 4 + [4, 5, 6, 7, 8, 9])


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_arrays_start_at_64_bytes_and_have_room_behind_them(count):
    arrays = [Blob((count,)).data for _ in range(5)]
    for array in arrays:
        assert array.ctypes.data % 64 == 0
        owner = array
        while isinstance(owner.base, np.ndarray | memoryview):
            owner = owner.base if isinstance(owner.base, np.ndarray) else owner.base.obj
        end = owner.ctypes.data + owner.nbytes
        assert end - (array.ctypes.data + array.nbytes) >= 64 * array.itemsize


# ---- blobs -------------------------------------------------------------------------------------


def test_data_and_diff_are_separate_writable_float32_zeros():
    blob = Blob((2, 3, 4))
    for array in (blob.data, blob.diff):
        assert array.dtype == np.float32
        assert array.shape == (2, 3, 4)
        assert not array.any()
    blob.data[...] = 5
    blob.diff[0, 1, 2] = 7
    assert (blob.data == 5).all()
    assert blob.diff.sum() == 7


def test_data_is_made_anew_each_time_over_the_same_memory():
    blob = Blob((2, 3))
    first, second = blob.data, blob.data
    assert first is not second
    first[1, 2] = 9
    assert second[1, 2] == 9


def test_shape_given_as_numbers_or_as_one_sequence():
    blob = Blob()
    for dims in [
        (2, 3, 4),
        ((2, 3, 4),),
        ([2, 3, 4],),
        (np.array([2, 3, 4]),),
        (np.int64(2), 3, 4),
    ]:
        blob.reshape(1)
        blob.reshape(*dims)
        assert blob.shape == (2, 3, 4)
        assert all(type(d) is int for d in blob.shape)
        assert blob.count == 24
    blob.reshape(np.int32(7))
    assert blob.shape == (7,)


@pytest.mark.parametrize("dims", [(2.0, 3), (2.5,), ("2", 3), (None,)])
def test_dims_must_be_integers(dims):
    with pytest.raises(TypeError, match="integer|iterable"):
        Blob((2, 3)).reshape(*dims)


def test_a_blob_without_axes_is_a_scalar():
    blob = Blob((2, 3))
    blob.reshape()
    assert blob.shape == ()
    assert blob.count == 1
    assert blob.data.shape == ()
    blob.data[...] = 4
    assert float(blob.data) == 4


def test_a_dimension_may_be_0():
    blob = Blob()
    blob.reshape(0, 5)
    assert blob.count == 0
    assert blob.data.shape == (0, 5)


def test_a_view_stays_valid_where_the_blob_needs_no_more_memory():
    blob = Blob((4, 5))
    held = blob.data
    blob.reshape(2, 3)
    blob.data[...] = [[1, 2, 3], [4, 5, 6]]
    assert_array_equal(held.ravel()[:7], [1, 2, 3, 4, 5, 6, 0])
    blob.reshape(5, 4)
    held[0, 0] = 8
    assert_array_equal(blob.data[0], [8, 2, 3, 4])


def test_a_view_is_left_behind_where_the_blob_grows():
    blob = Blob((2, 3))
    held = blob.data
    held[...] = 5
    blob.reshape(4, 5)
    assert not blob.data.any()
    assert (held == 5).all()


def test_data_outlives_its_blob():
    data = Blob((2, 3)).data
    data[...] = 5
    gc.collect()
    assert (data == 5).all()


# https://github.com/BVLC/caffe/issues/6307
@pytest.mark.parametrize("name", ["data", "diff"])
def test_assigning_instead_of_writing_into_it(name):
    with pytest.raises(AttributeError, match=rf"can't set attribute.*blob.{name}\[...\] = "):
        setattr(Blob((2, 3)), name, np.ones((2, 3)))


def test_legacy_names_of_the_axes():
    blob = Blob((2, 3, 5, 7))
    assert (blob.num, blob.channels, blob.height, blob.width) == (2, 3, 5, 7)
    blob.reshape(2, 3)
    assert (blob.num, blob.channels, blob.height, blob.width) == (2, 3, 1, 1)
    blob.reshape()
    assert (blob.num, blob.channels, blob.height, blob.width) == (1, 1, 1, 1)


@pytest.mark.parametrize("name", ["num", "channels", "height", "width"])
def test_legacy_names_end_at_4_axes(name):
    with pytest.raises(ModelError, match=r"legacy accessors on blobs with > 4 axes.*2 3 4 5 6"):
        getattr(Blob((2, 3, 4, 5, 6)), name)


def test_too_many_elements():
    blob = Blob((2, 3))
    with pytest.raises(ModelError, match=r"exceeds INT_MAX: 65536 x 32768 is 2147483648 elements"):
        blob.reshape(65536, 32768)
    assert blob.shape == (2, 3), "the blob is as it was"


def test_as_many_elements_as_an_int_holds():
    blob = Blob((2**31 - 1,))
    assert blob.count == 2**31 - 1


def test_too_many_axes():
    assert Blob((1,) * 32).count == 1
    with pytest.raises(ModelError, match="at most 32 axes, not 33"):
        Blob((1,) * 33)


def test_negative_dimension():
    with pytest.raises(ModelError, match=r"must not be negative: \(2, -1\)"):
        Blob((2, -1))


def test_sharing_values_leaves_gradients_apart():
    one, two = Blob((2, 3)), Blob((3, 2))
    one.data[...] = 4
    two.share_data(one)
    assert two.data.shape == (3, 2)
    two.data[0, 1] = 9
    assert one.data[0, 1] == 9
    two.diff[...] = 1
    assert not one.diff.any()
    assert two.shares_data(one)
    assert not one.shares_data(Blob((2, 3)))


def test_sharing_gradients_leaves_values_apart():
    one, two = Blob((2, 3)), Blob((2, 3))
    held = two.diff
    two.share_diff(one)
    two.diff[...] = 1
    two.data[...] = 2
    assert (one.diff == 1).all()
    assert not one.data.any()
    assert not held.any(), "the old storage is no longer the blob's"


def test_the_other_blob_of_a_shared_storage_becoming_smaller():
    one, two = Blob((2, 3)), Blob((2, 3))
    two.share_data(one)
    one.reshape(2)
    with pytest.raises(ModelError, match=r"`2 3 \(6\)`.*reshaped to 2 elements.*net.reshape"):
        _ = two.data
    two.reshape(2)
    one.data[...] = 5
    assert_array_equal(two.data, [5, 5])


def test_blobvec_adds_blobs_by_shape():
    blobs = BlobVec()
    blobs.add_blob(2, 3)
    blobs.add_blob()
    assert [b.shape for b in blobs] == [(2, 3), ()]
    assert not blobs[0].data.any()


# ---- a blob on a device ------------------------------------------------------------------------


def test_an_array_has_the_blobs_shape_at_its_place(ops):
    blob = Blob((2, 3))
    blob.data[...] = [[1, 2, 3], [4, 5, 6]]
    array = blob.array(ops)
    assert array.shape == (2, 3)
    array *= 2
    assert_array_equal(blob.data, [[2, 4, 6], [8, 10, 12]])


def test_what_is_written_on_the_host_reaches_the_device(ops):
    """Values and gradients alike, and after the device has had its own."""
    blob = Blob((2, 3))
    for diff in (False, True):
        blob.array(ops, diff=diff)[...] = 1
        face = blob.diff if diff else blob.data
        face[...] = 5
        assert_array_equal(ops.to_host(blob.array(ops, diff=diff)), np.full((2, 3), 5))


def test_a_reshaped_blob_has_its_new_shape_everywhere(ops):
    blob = Blob((2, 3))
    blob.data[...] = 5
    blob.array(ops)
    blob.reshape(3, 2)
    assert blob.array(ops).shape == (3, 2)
    blob.reshape(4, 5)
    assert_array_equal(ops.to_host(blob.array(ops)), np.zeros((4, 5)))


def test_read_only_arrays_of_the_host_refuse_writes():
    blob = Blob((2, 3))
    array = View(blob, HOST, "r", "w").data
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 1
    blob.data[...] = 5  # the same memory, still the user's to write
    assert (array == 5).all()


def test_a_view_declares_what_it_reads_and_writes(fake):
    blob = Blob((2, 3))
    blob.data[...] = 5
    blob.diff[...] = 6
    view = View(blob, fake, "w", "r")
    assert isinstance(view.data, FakeArray)
    assert fake.counters.uploads == 0, "values that will be overwritten are not copied"
    view.data[...] = 7
    assert (fake.to_host(view.diff) == 6).all()
    fake.counters.reset()
    assert (blob.diff == 6).all()
    assert fake.counters.downloads == 0, "what is only read stays current on the host"
    assert (blob.data == 7).all()
    assert fake.counters.downloads == 1


def test_a_view_follows_its_blob():
    blob = Blob((2, 3))
    view = View(blob, HOST)
    blob.reshape(4, 5)
    assert (view.shape, view.count) == ((4, 5), 20)
    assert view.data.shape == (4, 5)
    view.reshape(3, 7)
    assert blob.shape == (3, 7)


def test_sharing_through_views(ops):
    one, two = Blob((2, 3)), Blob((2, 3))
    top = View(two, ops)
    top.share_data(View(one, ops))
    top.data[...] = 5
    top.diff[...] = 6
    assert (one.data == 5).all()
    assert not one.diff.any()
    top.share_diff(View(one, ops))
    top.diff[...] = 7
    assert (one.diff == 7).all()


# ---- axes --------------------------------------------------------------------------------------


def test_axes_count_from_either_end():
    assert [canonical_axis(axis, (2, 3, 5)) for axis in (-3, -1, 0, 2)] == [0, 2, 0, 2]


@pytest.mark.parametrize("axis", [3, 2, -3])
def test_axis_out_of_range(axis):
    text = rf"axis {axis} out of range for 2-D blob with shape `2 3 \(6\)`"
    with pytest.raises(ModelError, match=text):
        canonical_axis(axis, (2, 3))


def test_shapes_are_described_with_their_count():
    assert describe((2, 3, 4)) == "2 3 4 (24)"
    assert describe(()) == "(1)"
    assert "2 3 (6)" in repr(Blob((2, 3)))


def test_addresses_on_the_gpu(monkeypatch):
    """Those of the backend's arrays; in CPU mode there are none."""
    blob = Blob((2, 3))
    for name in ("_gpu_data_ptr", "_gpu_diff_ptr"):
        with pytest.raises(RuntimeError, match="cannot use GPU.*check mode"):
            getattr(blob, name)

    class Memory:
        def __init__(self, ptr):
            self.data = self
            self.ptr = ptr

    with device.pretend(FakeOps()):
        monkeypatch.setattr(Blob, "array", lambda self, ops, diff=False: Memory(16 + diff))
        assert (blob._gpu_data_ptr, blob._gpu_diff_ptr) == (16, 17)


@pytest.mark.parametrize(
    "cut",
    [lambda a: a, lambda a: a[1], lambda a: a.T[2:], memoryview, lambda a: a.reshape(5, 3)[1:]],
)
def test_storage_is_exposed_while_data_or_a_view_of_it_lives(cut):
    blob = Blob((3, 5))
    storage = blob.storages[0]
    blob.data[...] = 1
    assert not storage.is_exposed
    part = cut(blob.data)
    assert storage.is_exposed
    del part
    assert not storage.is_exposed


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 5)])
def test_data_is_a_plain_writable_array_that_can_be_copied(shape):
    blob = Blob(shape)
    data = blob.data
    assert type(data) is np.ndarray
    assert data.flags.writeable
    assert data.shape == shape
    assert data.dtype == np.float32
    for other in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):
        assert_array_equal(other, data)
        assert not np.shares_memory(other, data)
