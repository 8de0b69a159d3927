"""Window files: what is read of them, and which line is wrong."""

import numpy as np
import pytest

from pycaffe_lite.data.window_file import read_window_file
from pycaffe_lite.errors import MissingFileError, ModelError

GOOD = """# 0
images/a picture.jpg
3
281
500
2
15 1.0 8 12 352 498
0 0.25 -3 0 10 20

# 1
b.png
3
10
20
0
# 2
c.png
3
10
20
1
7 0.5 0 1 2 3
"""


@pytest.fixture
def write(tmp_path):
    def written(text):
        path = tmp_path / "windows.txt"
        path.write_bytes(text.encode())
        return path

    return written


def test_a_byte_order_mark_is_passed_over(write):
    assert read_window_file(write("\ufeff" + GOOD)).images[0] == "images/a picture.jpg"


@pytest.mark.parametrize("end", ["\n", "\r\n", " \n\n"])
def test_images_and_windows(write, end):
    images, windows = read_window_file(write(GOOD.replace("\n", end)))
    assert images == ["images/a picture.jpg", "b.png", "c.png"]
    columns = ["image", "label", "overlap", "x1", "y1", "x2", "y2"]
    assert [list(row) for row in windows[columns].tolist()] == [
        [0, 15, 1.0, 8, 12, 352, 498],
        [0, 0, 0.25, -3, 0, 10, 20],
        [2, 7, 0.5, 0, 1, 2, 3],
    ]
    if end != " \n\n":
        assert windows["line"].tolist() == [7, 8, 22]


def test_the_number_of_an_image_is_not_read(write):
    images, windows = read_window_file(write(GOOD.replace("# 0", "# 11").replace("# 2", "#2")))
    assert len(images) == 3
    assert windows["image"].tolist() == [0, 0, 2]


def test_a_file_without_windows(write):
    assert len(read_window_file(write("# 0\na.png\n3\n4\n5\n0\n")).windows) == 0


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("# 0", "0", "windows.txt line 1: expected \"#\" and the number of an image, got '0'"),
        ("# 1", "# one", 'line 10: expected "#" and'),
        ("\n3\n281", "\n281", "line 6: expected the number of windows, got '15 1.0 8 12 352 498'"),
        ("281", "28.1", "line 4: expected height, got '28.1'"),
        ("500\n2", "500\n-2", "line 6: expected the number of windows, got '-2'"),
        ("500\n2", "500\n1", 'line 8: expected "#" and the number of an image, got \'0 0.25'),
        ("500\n2", "500\n3", "line 10: expected label overlap x1 y1 x2 y2, got '# 1'"),
        ("20\n\n", "20 5\n\n", "line 8: expected label overlap x1 y1 x2 y2, got '0 0.25"),
        ("352 498", "352", "line 7: expected label"),
        ("0.25", "some", "line 8: expected label"),
        ("0.25", "nan", "line 8: expected label"),
        ("-3", "-3.5", "line 8: expected label"),
        ("-3", "-3e10", "line 8: expected label"),
        ("500\n2", "500\n9999999999", "line 6: expected the number of windows"),
        ("0.25", "1e300", "line 8: expected label"),
        ("\n7 0.5 0 1 2 3", "", "ends after line 21, before window 1 of 1 of its image"),
        ("\n20\n1\n7 0.5 0 1 2 3", "", "ends after line 19, before width"),
    ],
)
def test_errors_name_the_line(write, old, new, text):
    assert GOOD.count(old) == 1
    with pytest.raises(ModelError) as error:
        read_window_file(write(GOOD.replace(old, new)))
    assert text in str(error.value)


def test_a_file_that_is_missing_or_empty(write, tmp_path):
    with pytest.raises(MissingFileError, match=r"failed to open window file .*gone\.txt"):
        read_window_file(tmp_path / "gone.txt")
    with pytest.raises(ModelError, match="failed to open window file"):
        read_window_file(tmp_path)
    with pytest.raises(ModelError, match=r"window file .*windows\.txt is empty"):
        read_window_file(write("\n"))


def test_many_windows(write):
    rng = np.random.default_rng(0)
    boxes = rng.integers(0, 500, (3000, 4))
    overlaps = rng.random(3000).round(3)
    lines = [f"3 {o} {' '.join(map(str, b))}" for o, b in zip(overlaps, boxes, strict=True)]
    text = "# 0\na.png\n3\n4\n5\n3000\n" + "\n".join(lines)
    windows = read_window_file(write(text)).windows
    for k, name in enumerate(["x1", "y1", "x2", "y2"]):
        np.testing.assert_array_equal(windows[name], boxes[:, k])
    np.testing.assert_array_equal(windows["overlap"], overlaps.astype(np.float32))
    np.testing.assert_array_equal(windows["line"], np.arange(7, 3007))
