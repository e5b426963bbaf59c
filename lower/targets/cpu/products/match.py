"""Match products, and convolutions that look at one position at a time, with what stands before and after them."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from egraph.tensor import Node, placeholders, walk
from lower.calls.call import Argument, Base, LibraryCall, PostOperation
from lower.calls.epilogue import Spine, spine
from lower.views import Reason, Window, contiguous, read

PRODUCT, WITH_WINDOWS = "products.product", "products.product_and_windows"
OPERATORS = ("MatMul", "Conv")
BINARY = {"add": 0, "sub": 1, "mul": 2}
ELTWISE = {"relu": 3, "clip": 4, "logistic": 5, "swish": 6, "hardsigmoid": 7, "hardswish": 8}
"""Steps, as products.c numbers them."""
Steps: TypeAlias = tuple[Sequence[int], tuple[Argument, ...]]
MOST_STEPS = 8
MOST_AXES = 8
MOST_TAPS = 16


def implementations(op: str) -> tuple[str, ...]:
    """Return the names of the implementations of an operator by itself."""
    return (PRODUCT,) if op in OPERATORS else ()


def match(
    fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
) -> LibraryCall | Reason:
    """Return the call that computes ``fragment``, or why there is none; row-major places unless told otherwise."""
    if any(node.type.dtype != "float32" or not node.type.is_static or 0 in node.type.sizes for node in walk((fragment,))):
        return "it is not of float32 numbers alone, or of unknown sizes"

    def base(leaf: Node) -> Window:
        return (bases or {}).get(leaf.integer("index")) or contiguous(leaf.type.sizes)

    with_windows = implementation == WITH_WINDOWS
    matched = spine(fragment, frozenset(OPERATORS), destination or contiguous(fragment.type.sizes), base, chained=with_windows)
    if isinstance(matched, str):
        return matched
    if len(matched.destination.shape) > MOST_AXES:
        return f"{len(matched.destination.shape)} axes are too many"
    after = _steps(matched.post_operations)
    if isinstance(after, str):
        return after
    if with_windows:
        return _with_windows(matched, after, base)
    operands = _operands(matched.anchor, base)
    if isinstance(operands, str):
        return operands
    if len(operands) == 3 and math.prod(matched.anchor.type.sizes[:-1]) == 1:
        return "one row is multiplied by its factors in no time"
    arguments = (*operands, *after[1])
    return _complete("product", [int(len(operands) == 3), *after[0]], arguments, matched.destination)


def _complete(function: str, integers: Sequence[int], arguments: Sequence[Argument], destination: Window) -> LibraryCall | Reason:
    placed = [argument for argument in arguments if argument.role not in ("weights", "taps")]
    if any(not _is_along(argument.window) for argument in placed) or not _is_dense(destination):
        return "numbers along the last axis do not lie side by side"
    return LibraryCall(function, {"function": function, "integers": [*integers]}, tuple(arguments), destination)


def _with_windows(matched: Spine, later: Steps, base: Base) -> LibraryCall | Reason:
    """Return the call for a convolution of each channel on its own of a product, whose image it pads with zeros."""
    windows = matched.anchor
    if windows.op != "Conv" or windows.string("layout") != "NHWC" or windows.type.rank != 4:
        return "it is no convolution of images with their channels last"
    a: dict[str, Any] = dict(windows.attributes)
    image, taps = windows.inputs
    if a["group"] != image.type.sizes[-1] or taps.type.sizes[:2] != (a["group"], 1) or max(taps.type.sizes[2:]) > MOST_TAPS:
        return "the convolution is not one of each channel on its own"
    read_taps = read(taps, base)
    if isinstance(read_taps, str):
        return read_taps
    below = spine(image, frozenset(OPERATORS), contiguous(image.type.sizes), base)
    if isinstance(below, str):
        return below
    if below.destination != contiguous(image.type.sizes):
        return "the product is seen through views"
    operands, before = _operands(below.anchor, base), _steps(below.post_operations)
    if isinstance(operands, str) or isinstance(before, str):
        return operands if isinstance(operands, str) else str(before)
    if len(operands) == 3 or below.anchor.type.rank != 4:
        return "the product is not one of an image as it is"
    rows = [pair for argument in before[1] for pair in zip(argument.window.shape[:-1], argument.window.strides[:-1], strict=True)]
    if any(step for size, step in rows if size > 1):
        return "what follows the product reads an image, which is stored then as the product's would be"
    integers = [*a["strides"], *a["pads"][:2], *a["dilations"], len(before[0]) // 3, *before[0], *later[0]]
    arguments = (*operands, *before[1], Argument("taps", read_taps[0].integer("index"), read_taps[1]), *later[1])
    return _complete("product_and_windows", integers, arguments, matched.destination)


def recipe(call: LibraryCall) -> Mapping[str, Any]:
    """Return a call's part of a plan's step."""
    return call.parameters


def _operands(anchor: Node, base: Base) -> tuple[Argument, ...] | Reason:
    """Return x [rows.., K], the factors of its elements where it has any, and the weights [K, N]."""
    left, right = anchor.inputs
    weights = read(right, base)
    if isinstance(weights, str):
        return weights
    leaf, window = weights
    if anchor.op == "Conv":
        a: dict[str, Any] = dict(anchor.attributes)
        if a["layout"] != "NHWC" or any(size != 1 for size in right.type.sizes[2:]) or any(a["pads"]) or a["group"] != 1:
            return "the convolution looks at several positions, pads, has groups or has its channels first"
        window = Window(window.offset, window.shape[:2], window.strides[:2]).transpose((1, 0))
        steps = (1, *a["strides"], 1)
    elif right.type.rank != 2 or left.type.rank < 2:
        return "the right operand is not one matrix"
    else:
        steps = (1,) * left.type.rank
    if window.strides[1] != 1 and window.shape[1] > 1 and not leaf.attribute("constant"):
        return "columns of the right operand do not lie side by side"
    parts = _factors(left)
    found = []
    for role, part in zip(("src", "factors"), parts, strict=False):
        operand = read(part, base)
        if isinstance(operand, str):
            return operand
        shape = left.type.sizes
        rows = operand[1].expand(shape).slice((0,) * len(shape), shape, steps)
        if rows.shape[:-1] != anchor.type.sizes[:-1]:
            return "the strided positions are not the result's"
        found.append(Argument(role, operand[0].integer("index"), rows))
    return *found, Argument("weights", leaf.integer("index"), window)


def has_factors(fragment: Node) -> bool:
    """Return whether a product that matches has factors that are not constant: those weights take in once and for all."""
    product = next(node for node in walk((fragment,)) if node.op in OPERATORS)
    parts = _factors(product.inputs[0])
    return len(parts) == 2 and not all(leaf.attribute("constant") for leaf in placeholders(parts[1]))


def _factors(left: Node) -> tuple[Node, ...]:
    """Return what the left operand of a product is the product of: something of its shape, and factors along its last axis."""
    if left.op != "Mul":
        return (left,)
    first, second = left.inputs
    x, factors = (first, second) if first.type.sizes == left.type.sizes else (second, first)
    is_varied = factors.type.rank > 0 and factors.type.sizes[-1:] == left.type.sizes[-1:]
    return (x, factors) if x.type.sizes == left.type.sizes and is_varied else (left,)


def _steps(operations: Sequence[PostOperation]) -> Steps | Reason:
    """Return what follows a product as the integers that products.c reads, and its operands."""
    if len(operations) > MOST_STEPS:
        return f"{len(operations)} steps are too many"
    integers: list[int] = []
    arguments = []
    for operation in operations:
        step = _step(operation)
        if isinstance(step, str):
            return step
        integers += step
        if operation.window is not None:
            assert operation.operand is not None
            arguments.append(Argument("", operation.operand, operation.window))
    return integers, tuple(arguments)


def _step(operation: PostOperation) -> Sequence[int] | Reason:
    """Return a step as the integers that products.c reads: its kind and the bits of two numbers."""
    if operation.kind == "binary" and operation.algorithm in BINARY:
        return BINARY[operation.algorithm], 0, 0
    if operation.kind == "eltwise" and operation.algorithm in ELTWISE:
        return ELTWISE[operation.algorithm], *struct.unpack("2I", struct.pack("2f", operation.alpha, operation.beta))
    return f"{operation.algorithm or operation.kind} is not computed after products"


def _is_dense(window: Window) -> bool:
    return window.shape[-1] == 1 or window.strides[-1] == 1


def _is_along(window: Window) -> bool:
    """Return whether numbers along the last axis lie side by side, or one repeats."""
    return _is_dense(window) or window.strides[-1] == 0


@lru_cache(maxsize=1 << 14)
def constant_orders(fragment: Node) -> Mapping[int, tuple[int, ...]]:
    """Return the order of axes in which constant weights are stored best: columns, or the channels that windows belong to, last."""
    calls = (match(fragment, implementation) for implementation in (PRODUCT, WITH_WINDOWS))
    call = next((call for call in calls if not isinstance(call, str)), None)
    if call is None:  # chosen by an earlier version: the launch says why there is none
        return {}
    leaves = {leaf.integer("index"): leaf.type.sizes for leaf in placeholders(fragment) if leaf.attribute("constant")}
    orders = {}
    for argument in call.arguments:
        if argument.operand in leaves and argument.role in ("weights", "taps"):
            sizes = leaves[argument.operand]
            stride = argument.window.strides[1 if argument.role == "weights" else 0]
            axes = zip(sizes, contiguous(sizes).strides, strict=True)
            last = next((axis for axis, (size, each) in enumerate(axes) if each == stride and size > 1), len(sizes) - 1)
            if last != len(sizes) - 1:
                orders[argument.operand] = (*(axis for axis in range(len(sizes)) if axis != last), last)
    return orders
