"""Padding of convolutions and pools as ONNX states it: explicit, SAME_UPPER, SAME_LOWER, VALID, ceil_mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from egraph.onnx.importer.state import Call, NotCore


@dataclass(frozen=True)
class Window:
    """A sliding window; ``pads`` holds all begins, then all ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]


def window_of(call: Call, kernel: Sequence[int], space: Sequence[int]) -> Window:
    """Read a node's window with its padding made explicit."""
    count = len(space)
    strides = tuple(int(n) for n in call.attribute("strides", [1] * count))
    dilations = tuple(int(n) for n in call.attribute("dilations", [1] * count))
    pads = [int(n) for n in call.attribute("pads", [0] * (2 * count))]
    automatic = str(call.attribute("auto_pad", "NOTSET"))
    if not count or not len(kernel) == len(strides) == len(dilations) == count or len(pads) != 2 * count:
        raise NotCore("the window does not fit the rank")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(count):
            extent = (kernel[axis] - 1) * dilations[axis] + 1
            total = max(0, (-(-space[axis] // strides[axis]) - 1) * strides[axis] + extent - space[axis])
            small, large = total // 2, total - total // 2
            pads[axis], pads[axis + count] = (small, large) if automatic == "SAME_UPPER" else (large, small)
    elif automatic == "VALID":
        pads = [0] * (2 * count)
    elif automatic not in ("NOTSET", ""):
        raise NotCore(f"auto_pad {automatic}")
    if min(pads) < 0:
        raise NotCore("negative padding")
    return Window(tuple(int(n) for n in kernel), strides, dilations, tuple(pads))


def without_overhang(window: Window, space: Sequence[int]) -> Window:
    """Return a window of ``ceil_mode`` no larger than the padded input: the only position of a larger window sees no more elements."""
    count = len(space)
    kernel = (
        min(k, size + before + after) if dilation == 1 else k
        for k, size, before, after, dilation in zip(
            window.kernel, space, window.pads[:count], window.pads[count:], window.dilations, strict=True)
    )
    return replace(window, kernel=tuple(kernel))


def ceil_growth(call: Call, window: Window, space: Sequence[int]) -> tuple[int, ...]:
    """Return the additional padding at each end with which floor division gives the same number of outputs as ``ceil_mode``."""
    count = len(space)
    if not int(call.attribute("ceil_mode", 0)):
        return (0,) * count
    growth = []
    for axis, size in enumerate(space):
        stride, before = window.strides[axis], window.pads[axis]
        extent = (window.kernel[axis] - 1) * window.dilations[axis] + 1
        room = size + before + window.pads[axis + count] - extent
        outputs = -(-room // stride) + 1
        if (outputs - 1) * stride >= size + before:  # a last window that starts in the end padding is dropped
            outputs -= 1
        growth.append(max(0, (outputs - 1) * stride - room))
    return tuple(growth)
