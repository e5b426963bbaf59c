"""The ONNX backend suite, read without the outputs of its large pools: these take nine of eleven seconds, and no test compares them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

MOST_CELLS = 2000
"""Outputs of larger pools are left out: the suite computes each window in Python."""
LEFT_OUT: list[np.ndarray] = []
"""What stands for them."""


@contextmanager
def without_large_pools() -> Iterator[None]:
    """Have the suite's cases, which are made when they are first imported, hold no numbers where a large pool's outputs would be."""
    from onnx.reference.ops import op_pool_common

    computed = op_pool_common.pool

    def pool(padded: np.ndarray, x_shape: Sequence[int], kernel: Sequence[int], strides: Any, out_shape: Sequence[int], *rest: Any,
             **options: Any) -> np.ndarray:  # fmt: skip
        if math.prod((*x_shape[:2], *out_shape)) <= MOST_CELLS:
            return np.asarray(computed(padded, x_shape, kernel, strides, out_shape, *rest, **options))
        LEFT_OUT.append(np.zeros((*x_shape[:2], *out_shape), padded.dtype))
        return LEFT_OUT[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(op_pool_common, "pool", pool)
        yield


def is_complete(case: Any) -> bool:
    """Return whether all outputs of a case of the suite were computed."""
    outputs = [output for _, expected in case.data_sets or () for output in expected]
    return not any(output is left for output in outputs for left in LEFT_OUT)
