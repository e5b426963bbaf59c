"""In which order kernels read constants: vectors lie along the innermost axis of the result, and what they read should, too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from egraph.tensor import Node, walk

OUTPUT_CHANNELS = {"Conv": 0, "ConvTranspose": 1}
"""The axis of the weights along which the channels of the result lie."""


@lru_cache(maxsize=1 << 14)
def constant_orders(fragment: Node) -> Mapping[int, tuple[int, ...]]:
    """Return for weights of convolutions with channels last: places of the window, channels of the operand, channels of the result.

    As they are given, every vector of weights is gathered element by element, once for each part of the result with other guards.
    """
    orders: dict[int, tuple[int, ...]] = {}
    for node in walk((fragment,)):
        if node.op in OUTPUT_CHANNELS and node.string("layout") == "NHWC":
            weights, outputs = node.inputs[1], OUTPUT_CHANNELS[node.op]
            if weights.op == "Placeholder" and weights.attribute("constant"):
                orders[weights.integer("index")] = (*range(2, weights.type.rank), 1 - outputs, outputs)
    return orders
