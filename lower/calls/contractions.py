"""Conv, ConvTranspose and MatMul as calls of a library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from egraph.tensor import Node
from lower.calls.call import Anchor, Argument, Base
from lower.views import Reason, Window, read

FUSES = frozenset({"eltwise", "binary", "prelu"})


def operand(node: Node, role: str, base: Base) -> tuple[Argument, Node] | Reason:
    """Return a view of a placeholder as an argument (constants may be packed), and the placeholder."""
    argument = read(node, base)
    if isinstance(argument, str):
        return argument
    leaf, window = argument
    return Argument(role, leaf.integer("index"), window, packed=bool(leaf.attribute("constant"))), leaf


def channels_first(layout: str, rank: int) -> Callable[[Window], Window]:
    """Return the map of windows over data in this layout to the library's order [N, C, spatial...]."""
    if layout == "NCHW":
        return lambda window: window
    permutation = (0, rank - 1, *range(1, rank - 1))
    return lambda window: window.transpose(permutation)


def split_pads(pads: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    half = len(pads) // 2
    return tuple(pads[:half]), tuple(pads[half:])


def dilations(steps: tuple[int, ...], taps: tuple[int, ...]) -> list[int]:
    """Return the steps between taps; 1 if there is a single tap, because the library requires a number."""
    return [step if count > 1 else 1 for step, count in zip(steps, taps, strict=True)]


def _with_window(argument: Argument, window: Window) -> Argument:
    return Argument(argument.role, argument.operand, window, argument.packed)


def convolution(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """dst[n,o,...] = sum of src[n,i,...] * weights[o,i,...]"""
    a: dict[str, Any] = dict(node.attributes)
    source, weights = operand(node.inputs[0], "src", base), operand(node.inputs[1], "weights", base)
    if isinstance(source, str) or isinstance(weights, str):
        return source if isinstance(source, str) else str(weights)
    arrange = channels_first(a["layout"], node.type.rank)
    kernel = weights[0].window
    if a["group"] > 1:
        outputs, *filter_shape = kernel.shape
        grouped = kernel.reshape((a["group"], outputs // a["group"], *filter_shape))
        if isinstance(grouped, str):
            return grouped
        kernel = grouped
    before, after = split_pads(a["pads"])
    steps = dilations(a["dilations"], node.inputs[1].type.sizes[2:])
    parameters = {"strides": list(a["strides"]), "dilations": steps, "pads_before": list(before), "pads_after": list(after)}
    arguments = (_with_window(source[0], arrange(source[0].window)), _with_window(weights[0], kernel))
    unpacked = Argument("src", arguments[0].operand, arguments[0].window)
    return (Anchor("convolution", parameters, (unpacked, arguments[1]), arrange, 1, FUSES),)


def transposed_convolution(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """The gradient of a convolution: weights[i,o,...] in the model, [o,i,...] in the library."""
    a: dict[str, Any] = dict(node.attributes)
    source, weights = operand(node.inputs[0], "src", base), operand(node.inputs[1], "weights", base)
    if isinstance(source, str) or isinstance(weights, str):
        return source if isinstance(source, str) else str(weights)
    arrange = channels_first(a["layout"], node.type.rank)
    kernel: Window | Reason = weights[0].window
    assert isinstance(kernel, Window)
    inputs, outputs, *space = kernel.shape
    spatial = tuple(range(len(space)))
    if a["group"] > 1:
        kernel = kernel.reshape((a["group"], inputs // a["group"], outputs, *space))
        if isinstance(kernel, str):
            return kernel
        kernel = kernel.transpose((0, 2, 1, *(3 + axis for axis in spatial)))
    else:
        kernel = kernel.transpose((1, 0, *(2 + axis for axis in spatial)))
    before, after = split_pads(a["pads"])
    trimmed = [pad - extra for pad, extra in zip(after, a["output_padding"], strict=True)]
    if min(trimmed) < 0:
        return f"output_padding {a['output_padding']} is larger than the end padding {after}"
    steps = dilations(a["dilations"], node.inputs[1].type.sizes[2:])
    parameters = {"strides": list(a["strides"]), "dilations": steps, "pads_before": list(before), "pads_after": trimmed}
    arguments = (
        Argument("src", source[0].operand, arrange(source[0].window)),
        Argument("weights", weights[0].operand, kernel, packed=weights[0].packed),
    )
    return (Anchor("deconvolution", parameters, arguments, arrange, 1, FUSES),)


def convolution_as_matmul(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """A convolution with one tap and no padding: pixels times weights."""
    a: dict[str, Any] = dict(node.attributes)
    kernel_space = node.inputs[1].type.sizes[2:]
    if math.prod(kernel_space) != 1:
        return f"the kernel has {math.prod(kernel_space)} taps, not one"
    if any(a["pads"]) or a["group"] != 1:
        return "the convolution pads or has groups"
    source, weights = operand(node.inputs[0], "src", base), operand(node.inputs[1], "weights", base)
    if isinstance(source, str) or isinstance(weights, str):
        return source if isinstance(source, str) else str(weights)
    kernel = weights[0].window.reshape(weights[0].window.shape[:2])
    if isinstance(kernel, str):
        return kernel
    if a["layout"] == "NCHW":
        return _matrix_of_channels(node, a, source[0], _with_window(weights[0], kernel))
    shape = node.inputs[0].type.sizes
    steps = (1, *a["strides"], 1)
    pixels = source[0].window.slice((0,) * len(shape), shape, steps)
    if pixels.shape[:-1] != node.type.sizes[:-1]:
        return "the strided pixels are not the result's"
    rank, outputs = node.type.rank, node.type.sizes[-1]
    rows = math.prod(pixels.shape[:-1])
    right = Argument("weights", weights[0].operand, kernel.transpose((1, 0)), packed=weights[0].packed)
    anchors = []
    flat = pixels.reshape((rows, pixels.shape[-1]))
    if isinstance(flat, Window):
        anchors.append(
            Anchor("matmul", {}, (Argument("src", source[0].operand, flat), right), lambda w: w.reshape((rows, outputs)), -1, FUSES)
        )
    lifted = right.window.reshape((1,) * (rank - 2) + right.window.shape)
    assert isinstance(lifted, Window)
    wide = Argument("weights", right.operand, lifted, packed=right.packed)
    anchors.append(Anchor("matmul", {}, (Argument("src", source[0].operand, pixels), wide), lambda w: w, -1, FUSES))
    return tuple(anchors)


def _matrix_of_channels(node: Node, a: dict[str, Any], source: Argument, weights: Argument) -> tuple[Anchor, ...] | Reason:
    """dst[n] = weights[o,i] x src[n][i, pixels]"""
    if any(step != 1 for step in a["strides"]):
        return "a strided convolution of channels-first data has no rows of pixels"
    batch, channels, *space = node.inputs[0].type.sizes
    pixels = source.window.reshape((batch, channels, math.prod(space)))
    if isinstance(pixels, str):
        return pixels
    left = weights.window.reshape((1, *weights.window.shape))
    assert isinstance(left, Window)
    shape = (batch, node.type.sizes[1], math.prod(space))
    arguments = (Argument("src", weights.operand, left, packed=weights.packed), Argument("weights", source.operand, pixels))
    return (Anchor("matmul", {}, arguments, lambda w: w.reshape(shape), None, FUSES),)


def matmul(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """numpy.matmul: leading axes are batches, vectors are matrices with one row or column."""
    source, weights = operand(node.inputs[0], "src", base), operand(node.inputs[1], "weights", base)
    if isinstance(source, str) or isinstance(weights, str):
        return source if isinstance(source, str) else str(weights)
    left, right = source[0].window, weights[0].window
    if left.repeats or right.repeats:
        return "an operand is broadcast by strides"
    result = node.type.sizes
    row, column = len(left.shape) == 1, len(right.shape) == 1
    for_left = left.reshape((1, *left.shape)) if row else left
    for_right = right.reshape((*right.shape, 1)) if column else right
    assert isinstance(for_left, Window) and isinstance(for_right, Window)
    batch = result[: len(result) - (not row) - (not column)]
    shape = (*batch, for_left.shape[-2], for_right.shape[-1])
    anchors = []
    if len(for_right.shape) == 2 and len(shape) > 2:
        rows = math.prod(shape[:-1])
        flat = for_left.reshape((rows, for_left.shape[-1]))
        if isinstance(flat, Window):
            arguments = (_with_window(source[0], flat), _with_window(weights[0], for_right))
            anchors.append(Anchor("matmul", {}, arguments, lambda w: w.reshape((rows, shape[-1])), -1, FUSES))
    lifted = [w.reshape((1,) * (len(shape) - len(w.shape)) + w.shape) for w in (for_left, for_right)]
    assert isinstance(lifted[0], Window) and isinstance(lifted[1], Window)
    arguments = (_with_window(source[0], lifted[0]), _with_window(weights[0], lifted[1]))
    anchors.append(Anchor("matmul", {}, arguments, lambda w: w.reshape(shape), -1, FUSES))
    return tuple(anchors)
