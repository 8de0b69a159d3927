"""Windows of images as R-CNN trains on them. Needs OpenCV, at the first batch read."""

from __future__ import annotations

import logging
from typing import Any

from ..data.prefetch import Source
from ..data.window_source import WindowSource
from .data_layer import PrefetchingData

log = logging.getLogger("pycaffe_lite")


class WindowData(PrefetchingData):
    """Two tops, windows (batch_size, 3, crop_size, crop_size) and their labels (batch_size,).

    `window_data_param { source }` lists windows of images (see window_file.py). Windows that
    overlap an object by `fg_threshold` or more are foreground, those by less than `bg_threshold`
    background, with label 0; the rest are not used. A batch has the background ones first, then
    the share `fg_fraction` (rounded down) of foreground, each drawn by chance from all of its kind.

    A window is cut out and resized to transform_param's crop_size. With `context_pad` it is first
    made larger about its middle, so that this many pixels of the result are around it; with
    `crop_mode` "square" also its shorter side made as long as the other. What of that lies outside
    the image is 0 in the result. `mirror` flips one of two, by chance. The middle of the mean image
    or the mean values are taken off, and the result is multiplied by `scale` of window_data_param;
    that of transform_param says nothing here, as in Caffe. `root_folder` is put before each name as
    it is. With `cache_images` the files are read once, at setup.
    """

    tops = (2, 2)
    moved_fields = ("mean_file", "crop_size", "mirror")

    def make_source(self, top: Any, seed: int) -> Source:
        transform = self.spec.transform_param
        if transform.HasField("scale"):
            log.warning(
                "layer %r (WindowData) multiplies by scale of window_data_param, %g; scale of"
                " transform_param, %g, is not used, as in Caffe",
                self.name, self.param.scale, transform.scale,
            )  # fmt: skip
        return WindowSource(self.param, transform, self.phase, top[0].dtype, seed)
