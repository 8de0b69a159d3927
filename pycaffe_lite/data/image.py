"""What pixels does an image file hold, as Caffe's data layers see them? Through OpenCV.

Pixels are uint8, channels are blue, green, red. OpenCV is imported at the first use; a missing one
is a RuntimeError that names the extra to install.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from ..errors import MissingFileError, ModelError
from ..extras import opencv


def read_image(
    path: str | os.PathLike[str], color: bool = True, size: tuple[int, int] | None = None
) -> np.ndarray:
    """An image file as a new array (C, H, W), uint8: C is 3 (blue, green, red), or 1 without color.

    `size` (height, width) resizes it, bilinear, as OpenCV's `resize` does. Grey images get three
    equal channels and the reverse, 16 bits become 8, alpha is dropped, and a camera's note on how
    to turn the picture is followed: what `cv2.imread` makes of it. Raises MissingFileError, and
    ModelError where it is no image, both with "could not load" and the path.
    """
    pixels = read_pixels(path, color)
    return _channels_first(pixels if size is None else resize_pixels(pixels, size))


def read_pixels(path: str | os.PathLike[str], color: bool = True) -> np.ndarray:
    """As `read_image`, in OpenCV's own order of axes: (H, W, C), uint8."""
    return decode_pixels(read_content(path), color, os.fspath(path))


def read_content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of an image file. Raises MissingFileError, and ModelError, as `read_image`."""
    name = os.fspath(path)
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise MissingFileError(f"could not load {name}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"could not load {name}: {reason}") from error


def decode_image(content: bytes, color: bool | None = None, what: str = "an image") -> np.ndarray:
    """The bytes of an image file (a JPEG, say) as a new array (C, H, W), uint8.

    `color` True gives 3 channels, False 1, None as many as the file has: 1, 3, or 4 with alpha.
    Raises ModelError, which calls the image `what`, where OpenCV cannot read it or, for None, its
    pixels have other than 8 bits.
    """
    return _channels_first(decode_pixels(content, color, what))


def decode_pixels(content: bytes, color: bool | None = None, what: str = "an image") -> np.ndarray:
    """As `decode_image`, in OpenCV's own order of axes: (H, W, C), uint8."""
    cv2 = opencv()
    flags = {True: cv2.IMREAD_COLOR, False: cv2.IMREAD_GRAYSCALE, None: cv2.IMREAD_UNCHANGED}
    pixels = None
    with suppress(cv2.error):  # of no bytes at all, or an image above its limits; else None
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flags[color])
    if pixels is None:
        raise ModelError(f"could not load {what}: no image that OpenCV can read")
    if pixels.dtype != np.uint8:
        raise ModelError(f"could not load {what}: its pixels are {pixels.dtype}, not 8 bits")
    return np.atleast_3d(pixels)


def encode_image(image: np.ndarray, extension: str) -> bytes:
    """An image (C, H, W), uint8, C 1, 3 or 4, as the bytes of a file: "jpg", ".png", ...

    Raises ModelError for another array, and for a kind of file that OpenCV cannot write.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[0] not in (1, 3, 4):
        raise ModelError(
            f"cannot encode an array {image.shape} of {image.dtype} as an image: "
            "(C, H, W) of uint8 with 1, 3 or 4 channels can be"
        )
    cv2 = opencv()
    done, content = False, np.empty(0, np.uint8)
    pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
    with suppress(cv2.error):  # of an extension it does not know, or an image it cannot hold
        done, content = cv2.imencode("." + extension.removeprefix("."), pixels)
    if not done:
        raise ModelError(f"OpenCV cannot encode an image {image.shape} as {extension!r}")
    return bytes(content)


def resize_pixels(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Pixels (H, W, C) bilinearly resized to `size` (height, width): a new (h, w, C), same dtype.

    Raises ModelError where a side is below 1.
    """
    height, width = size
    if height < 1 or width < 1:
        raise ModelError(f"cannot resize an image to {height} x {width} pixels")
    resized: np.ndarray = opencv().resize(pixels, (width, height))
    return resized.reshape(height, width, pixels.shape[2])


def _channels_first(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
