"""How the library computes pooling, reductions, normalisations and resizing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from egraph.tensor import Node
from lower.calls.call import Anchor, Argument, Base
from lower.calls.contractions import channels_first, dilations, operand, split_pads
from lower.views import Reason, Window

FUSES = frozenset({"eltwise"})
"""Binary post-operations are missing: pooling of channels-first data reads the second operand from the wrong place (oneDNN 3.2)."""
MOST_ADDED = 1 << 14
"""The most numbers of one sum, which are added one after the other: a mean of 25,600 numbers near 1000 is off by 2e-4, of 12,544 by
5e-6."""
ALGORITHMS = {"ReduceSum": "sum", "ReduceMean": "mean"}
"""Maxima, also of windows, are missing: the library's ignore NaN, and generated kernels, which do not, are as fast."""


def pooling(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """The mean of every window."""
    a: dict[str, Any] = dict(node.attributes)
    source = operand(node.inputs[0], "src", base)
    if isinstance(source, str):
        return source
    before, after = split_pads(a["pads"])
    if reason := _loses_digits(math.prod(a["kernel_shape"])):
        return reason
    parameters = {
        "algorithm": "average_include_padding" if a["count_include_pad"] else "average_exclude_padding",
        "kernel": list(a["kernel_shape"]), "strides": list(a["strides"]), "dilations": dilations(a["dilations"], a["kernel_shape"]),
        "pads_before": list(before), "pads_after": list(after),
    }  # fmt: skip
    arrange = channels_first(a["layout"], node.type.rank)
    return (Anchor("pooling", parameters, (_plain(source[0], arrange(source[0].window)),), arrange, None, FUSES),)


def global_pooling(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """A mean over all spatial axes, as one window."""
    axes = node.integers("axes")
    source = operand(node.inputs[0], "src", base)
    if isinstance(source, str):
        return source
    if reason := _loses_digits(node.inputs[0].type.elements // max(1, node.type.elements)):
        return reason
    rank = node.type.rank
    if not 3 <= rank <= 5:
        return "pooling needs one to three spatial axes"
    if axes == tuple(range(2, rank)):
        arrange = channels_first("NCHW", rank)
    elif axes == tuple(range(1, rank - 1)):
        arrange = channels_first("NHWC", rank)
    else:
        return f"the axes {axes} are not all spatial axes"
    kernel = [node.inputs[0].type.sizes[axis] for axis in axes]
    parameters = {
        "algorithm": "average_include_padding", "kernel": kernel, "strides": [1] * len(kernel),
        "dilations": [1] * len(kernel), "pads_before": [0] * len(kernel), "pads_after": [0] * len(kernel),
    }  # fmt: skip
    return (Anchor("pooling", parameters, (_plain(source[0], arrange(source[0].window)),), arrange, None, FUSES),)


def reduction(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """A sum or mean over axes, whose sizes become 1."""
    source = operand(node.inputs[0], "src", base)
    if isinstance(source, str):
        return source
    if source[0].window.shape == node.type.sizes:
        return "nothing is reduced"
    if not _reduces_innermost(source[0].window, node.type.sizes):
        return "axes are reduced that do not lie innermost, and only the reference implementation does that"
    if reason := _loses_digits(node.inputs[0].type.elements // max(1, node.type.elements)):
        return reason
    return (Anchor("reduction", {"algorithm": ALGORITHMS[node.op]}, (_plain(source[0], source[0].window),), lambda w: w, None, FUSES),)


def _reduces_innermost(source: Window, result_sizes: tuple[int, ...]) -> bool:
    """Return whether every kept axis lies outside of every reduced one in memory."""
    axes = list(zip(source.shape, source.strides, result_sizes, strict=True))
    reduced = [stride for size, stride, kept in axes if size > kept]
    return all(stride > max(reduced) for _, stride, kept in axes if kept > 1)


def _loses_digits(added: int) -> Reason | None:
    return f"{added:,} numbers, which the library adds one after the other" if added > MOST_ADDED else None


def layer_normalization(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the trailing axes."""
    a: dict[str, Any] = dict(node.attributes)
    arguments = [operand(n, role, base) for n, role in zip(node.inputs, ("src", "scale", "shift"), strict=True)]
    for argument in arguments:
        if isinstance(argument, str):
            return argument
    axis = a["axis"] % node.type.rank
    channels = math.prod(node.type.sizes[axis:])
    rows = math.prod(node.type.sizes[:axis])

    def arrange(window: Window) -> Window | Reason:
        return window.reshape((rows, channels))

    windows: list[Argument] = []
    for argument in arguments:
        assert not isinstance(argument, str)
        bound = argument[0]
        if bound.role != "src" and math.prod(bound.window.shape) != channels:
            return f"the {bound.role} must hold one number an element of the normalised axes"
        window = arrange(bound.window) if bound.role == "src" else bound.window.reshape((channels,))
        if isinstance(window, str):
            return window
        if bound.role != "src" and not window.is_contiguous:
            return f"the {bound.role} is not contiguous"
        windows.append(_plain(bound, window))
    return (Anchor("layer_normalization", {"epsilon": float(a["epsilon"])}, tuple(windows), _in_the_layout_of(windows[0].window, arrange)),)


def local_response(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """x / (k + alpha/size * sum of squares of neighbouring channels) ^ beta"""
    a: dict[str, Any] = dict(node.attributes)
    source = operand(node.inputs[0], "src", base)
    if isinstance(source, str):
        return source
    rank, axis = node.type.rank, a["axis"]
    if not 3 <= rank <= 5 or axis not in (1, rank - 1):
        return "the channels are neither the second nor the last axis of image data"
    if a["size"] % 2 == 0:
        return "the library's window is symmetric, so its size must be odd"
    arrange = channels_first("NCHW" if axis == 1 else "NHWC", rank)
    parameters = {"size": a["size"], "alpha": float(a["alpha"]), "beta": float(a["beta"]), "k": float(a["bias"])}
    window = arrange(source[0].window)
    return (Anchor("lrn", parameters, (_plain(source[0], window),), _in_the_layout_of(window, arrange)),)


def _in_the_layout_of(source: Window, arrange: Callable[[Window], Window | Reason]) -> Callable[[Window], Window | Reason]:
    """Return ``arrange`` restricted to results that lie in memory in the order of the source (axes of size 1 may lie anywhere)."""

    def same(result: Window) -> Window | Reason:
        arranged = arrange(result)
        if isinstance(arranged, str):
            return arranged
        pairs = zip(arranged.shape, arranged.strides, source.strides, strict=True)
        if any(size > 1 and stride != other for size, stride, other in pairs):
            return "the primitive keeps the layout of the data"
        return Window(arranged.offset, arranged.shape, source.strides)

    return same


def resampling(node: Node, base: Base) -> tuple[Anchor, ...] | Reason:
    """Nearest neighbours by whole factors, or linear interpolation with centres at halves."""
    a: dict[str, Any] = dict(node.attributes)
    source = operand(node.inputs[0], "src", base)
    if isinstance(source, str):
        return source
    before, after = node.inputs[0].type.sizes, node.type.sizes
    rank = len(after)
    if not 3 <= rank <= 5:
        return "resampling needs one to three spatial axes"
    if before[:2] == after[:2]:
        layout = "NCHW"
    elif (before[0], before[-1]) == (after[0], after[-1]):
        layout = "NHWC"
    else:
        return "the batch or the channels are resized"
    if any(abs(scale * b - r) > 1e-6 * r for scale, b, r in zip(a["scales"], before, after, strict=True)):
        return "the scales are not the ratios of the sizes"
    if a["mode"] == "nearest":
        is_integral = all(r % b == 0 for b, r in zip(before, after, strict=True))
        modes = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")}
        if not is_integral or (a["coordinate_mode"], a["nearest_mode"]) not in modes:
            return "nearest neighbours by a fraction, or rounded in another way than the library does"
    elif a["mode"] != "linear" or a["coordinate_mode"] != "half_pixel":
        return f"the library does not interpolate {a['mode']} with {a['coordinate_mode']}"
    arrange = channels_first(layout, rank)
    return (Anchor("resampling", {"algorithm": a["mode"]}, (_plain(source[0], arrange(source[0].window)),), arrange, None, FUSES),)


def _plain(argument: Argument, window: Window) -> Argument:
    return Argument(argument.role, argument.operand, window)
