"""Products of rows by matrices, and the steps that follow them in the same kernel, in the form that kernels in C take (epilogue.h)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from egraph.tensor import Node
from lower.calls.call import Argument, Base, LibraryCall, PostOperation
from lower.views import Reason, Window, read

BINARY = {"add": 0, "sub": 1, "mul": 2, "div": 3}
ELTWISE = {"relu": 4, "clip": 5, "logistic": 6, "swish": 7, "hardsigmoid": 8, "hardswish": 9, "round": 10, "linear": 11,
           "tanh": 12, "gelu_erf": 13, "gelu_tanh": 14}  # fmt: skip
"""Steps, as epilogue.h numbers them."""
MOST_STEPS = 16
MOST_AXES = 8
MATRIX_RANK = 2


def product_operands(anchor: Node, base: Base) -> tuple[Argument, Argument] | Reason:
    """Return x [rows.., K] and weights [.., K, N] of a product, or of a convolution of one tap.

    Weights are one matrix, or one for each index of the result's leading axes.
    """
    left, right = anchor.inputs
    source, weights = read(left, base), read(right, base)
    if isinstance(source, str) or isinstance(weights, str):
        return source if isinstance(source, str) else str(weights)
    (leaf, window), shape = weights, left.type.sizes
    strides = (1,) * len(shape)
    if anchor.op == "Conv":
        a: dict[str, Any] = dict(anchor.attributes)
        if a["layout"] != "NHWC" or any(size != 1 for size in right.type.sizes[2:]) or any(a["pads"]) or a["group"] != 1:
            return "the convolution looks at several positions, pads, has groups or has its channels first"
        window = Window(window.offset, window.shape[:2], window.strides[:2]).transpose((1, 0))
        strides = (1, *a["strides"], 1)
    elif right.type.rank != MATRIX_RANK and right.type.sizes[:-2] != anchor.type.sizes[:-2]:
        return "the right operand has other leading axes than the result"
    rows = source[1].expand(shape).slice((0,) * len(shape), shape, strides)
    if rows.shape[:-1] != anchor.type.sizes[:-1]:
        return "the rows of the left operand are not the result's"
    return Argument("src", source[0].integer("index"), rows), Argument("weights", leaf.integer("index"), window)


def steps_of(operations: Sequence[PostOperation]) -> tuple[list[int], tuple[Argument, ...]] | Reason:
    """Return the steps after a product as the integers that epilogue.h reads, and their operands."""
    if len(operations) > MOST_STEPS:
        return f"{len(operations)} steps are too many"
    integers: list[int] = []
    arguments = []
    for operation in operations:
        kind = (BINARY if operation.kind == "binary" else ELTWISE).get(operation.algorithm)
        if kind is None or operation.kind not in ("binary", "eltwise"):
            return f"{operation.algorithm or operation.kind} is not computed after products"
        integers += kind, *struct.unpack("2I", struct.pack("2f", operation.alpha, operation.beta))
        if operation.window is not None:
            assert operation.operand is not None
            arguments.append(Argument("", operation.operand, operation.window))
    return integers, tuple(arguments)


def misplaced(destination: Window, arguments: Sequence[Argument]) -> Reason | None:
    """Return why a kernel cannot read operands where they lie, or cannot write its result to its destination."""
    placed = [argument.window for argument in arguments if argument.role != "weights"]
    if any(window.strides[-1] and not _is_dense(window) for window in placed) or not _is_dense(destination):
        return "numbers along the last axis do not lie side by side"
    return f"{len(destination.shape)} axes are too many" if len(destination.shape) > MOST_AXES else None


def recipe(call: LibraryCall) -> Mapping[str, Any]:
    """Return a call's part of a plan's step."""
    return call.parameters


def _is_dense(window: Window) -> bool:
    return window.shape[-1] == 1 or window.strides[-1] == 1
