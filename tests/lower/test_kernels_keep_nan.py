"""Every kernel offered for maxima and softmax keeps NaN. Library kernels that lose a NaN are not offered, however fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from egraph.optimize.estimated import Price, estimated_program, grown, open_program
from egraph.tensor import Candidate, Graph, Implementation, TensorType, attributes, make
from egraph.tensor.ops import apply
from lower.candidates import candidates

IMAGE = make("Input", (), attributes(name="x"), TensorType("float32", (2, 9, 8, 16)))
WINDOW: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
MAXIMA = {
    "max pooling, channels last": apply("MaxPool", IMAGE, layout="NHWC", **WINDOW),
    "max pooling, channels first": apply("MaxPool", IMAGE, layout="NCHW", **WINDOW),
    "softmax": apply("Softmax", IMAGE, axis=3),
    "logarithm of softmax": apply("LogSoftmax", IMAGE, axis=3),
    "maximum": apply("ReduceMax", IMAGE, axes=(3,)),
}


def prefer(kernel: Implementation, laid: Mapping[int, tuple[Candidate, ...]]) -> dict[int, tuple[Candidate, ...]]:
    """Give one implementation a lower price than all others."""
    return {
        number: tuple(replace(each, cost_us=1.0 if each.implementation == kernel else 1000.0) for each in options)
        for number, options in laid.items()
    }


@pytest.mark.parametrize("operator", MAXIMA)
def test_every_kernel_that_is_offered_keeps_nan(operator: str) -> None:
    """The rows contain one NaN, only NaN, or only -infinity, which has no softmax."""
    x = np.random.default_rng(0).standard_normal(IMAGE.type.sizes).astype(np.float32)
    x[0, 3, 4], x[1, 2, 1, 5], x[1, 7] = -np.inf, np.nan, np.nan
    graph = Graph("kernel", (IMAGE,), (("y", MAXIMA[operator]),), {})

    def places(device: str, price: Price | None = None) -> np.ndarray:
        program = estimated_program(graph, (), price=price, device=device)
        (result,) = open_program(program, device=device).run(None, {"x": x})
        return np.asarray(np.isnan(result))

    expected = places("reference")
    offered = {each.implementation for options in candidates(grown(graph, ())).values() for each in options}
    kernels = [each for each in offered if not each.is_free and not each.is_opaque]
    assert kernels and expected.any() and not expected.all()
    for kernel in kernels:
        np.testing.assert_array_equal(places("cpu", partial(prefer, kernel)), expected, str(kernel))
