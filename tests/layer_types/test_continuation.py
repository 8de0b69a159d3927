"""ContinuationIndicator."""

from __future__ import annotations

import numpy as np
import pytest
from harness import check_layer, make_net

from pycaffe_lite import ModelError


# https://github.com/Tencent/ncnn/issues/1186
@pytest.mark.parametrize(("times", "batch"), [(4, 3), (1, 2)])
def test_continuation_indicator(ops, times, batch):
    check_layer(
        ops,
        "type: 'ContinuationIndicator' continuation_indicator_param {"
        f" time_step: {times} batch_size: {batch} }}",
        [],
        lambda: np.array([[0] * batch] + [[1] * batch] * (times - 1)),
    )


def test_both_sizes_are_needed():
    with pytest.raises(ModelError, match=r"layer 'it' \(Cont.*must be > 0, got 4 and 0"):
        make_net(
            "layer { name: 'it' type: 'ContinuationIndicator' top: 'y'"
            " continuation_indicator_param { time_step: 4 } }"
        )
