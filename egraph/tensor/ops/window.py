"""Sliding windows: sizes, input positions and padding guards of convolutions and pools; both data layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from egraph.tensor.expr.index import Index, Size, index, simplify
from egraph.tensor.expr.scope import Compare
from egraph.tensor.ops.sizes import at_least, entries, is_zero, known, one_of, rank_between, refuse
from egraph.tensor.ops.spec import Shape, Values

LAYOUTS = ("NCHW", "NHWC")


@dataclass(frozen=True)
class Layout:
    """The position of the channel axis among ``spatial`` other axes: ``NCHW`` [n,c,...] or ``NHWC`` [n,...,c]."""

    name: str
    spatial: int

    @property
    def channel(self) -> int:
        return 1 if self.name == "NCHW" else self.spatial + 1

    @property
    def first(self) -> int:
        """The first spatial axis."""
        return 2 if self.name == "NCHW" else 1

    def space(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the spatial entries of a shape or of indices."""
        return tuple(values[self.first : self.first + self.spatial])

    def join(self, batch: Any, channel: Any, space: Sequence[Any]) -> tuple[Any, ...]:
        """Return a shape or indices in this layout."""
        return (batch, channel, *space) if self.name == "NCHW" else (batch, *space, channel)


def layout_of(shape: Shape, a: Values) -> Layout:
    """Return the layout of a data operand; refuse unless it has a batch, a channel and 1 to 3 spatial axes."""
    rank_between(shape, 3, 5, "operand 0")
    return Layout(one_of(a["layout"], LAYOUTS, "layout"), len(shape) - 2)


@dataclass(frozen=True)
class Window:
    """The taps of a window along every spatial axis: sizes, strides, dilations, padding per side."""

    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    dilations: tuple[Size, ...]
    before: tuple[Size, ...]
    after: tuple[Size, ...]

    def extent(self, axis: int) -> Size:
        """dilation * (size - 1) + 1"""
        return self.dilations[axis] * (self.sizes[axis] - 1) + 1

    def output_sizes(self, space: Sequence[Size]) -> tuple[Size, ...]:
        """(size + before + after - extent) // stride + 1"""
        result = []
        for axis, size in enumerate(space):
            room = simplify(size + self.before[axis] + self.after[axis] - self.extent(axis))
            at_least(room, 0, f"the window is larger than spatial axis {axis} with its padding: padded size - extent must be at least 0")
            result.append(simplify(room // self.strides[axis] + 1))
        return tuple(result)

    def positions(self, outputs: Sequence[Index], taps: Sequence[Index]) -> tuple[Index, ...]:
        """output * stride + tap * dilation - before"""
        return tuple(
            index(o * s + r * d - p)
            for o, s, r, d, p in zip(outputs, self.strides, taps, self.dilations, self.before, strict=True)
        )

    def guards(self, positions: Sequence[Index], space: Sequence[Size]) -> tuple[Compare, ...]:
        """Return 0 <= position < size on the padded sides."""
        lower = [Compare(index(0), "<=", p) for p, pad in zip(positions, self.before, strict=True) if not is_zero(pad)]
        upper = [Compare(p, "<", index(size)) for p, pad, size in zip(positions, self.after, space, strict=True) if not is_zero(pad)]
        return (*lower, *upper)


def window_of(sizes: Sequence[Size], a: Values) -> Window:
    """Read strides, pads and dilations; refuse values that no window has."""
    count = len(sizes)
    strides, dilations = entries(a["strides"], count, "strides"), entries(a["dilations"], count, "dilations")
    pads = entries(a["pads"], 2 * count, "pads (all begins, then all ends)")
    for name, values, minimum in (("window size", sizes, 1), ("stride", strides, 1), ("dilation", dilations, 1), ("pad", pads, 0)):
        for axis, value in enumerate(values):
            at_least(value, minimum, f"{name} of spatial axis {axis % count} must be at least {minimum}")
    return Window(tuple(sizes), tuple(strides), tuple(dilations), tuple(pads[:count]), tuple(pads[count:]))


def every_window_reads(window: Window, space: Sequence[Size]) -> None:
    """Refuse a pool with a window that lies only in the padding, because its maximum or mean does not exist.

    Also refuse padding that reaches the window's size, which no ONNX runtime accepts.
    """
    for axis, taps in enumerate(window.sizes):
        for pad in (window.before[axis], window.after[axis]):
            at_least(taps - 1 - pad, 0, f"pads of spatial axis {axis} must be smaller than the window: size - 1 - pad must be at least 0")
    for axis, (size, outputs) in enumerate(zip(space, window.output_sizes(space), strict=True)):
        count, stride, step, low = (known(v[axis]) for v in (window.sizes, window.strides, window.dilations, window.before))
        length, total = known(size), known(outputs)
        if count is None or stride is None or step is None or low is None or length is None or total is None:
            continue
        for output in range(total) if step > 1 else ():
            start = output * stride - low
            if not any(0 <= start + tap * step < length for tap in range(count)):
                refuse(f"window {output} of spatial axis {axis} lies in the padding alone")


def draw_window(random: Random, space: Sequence[int], *, largest: int = 3, pooled: bool = False) -> dict[str, tuple[int, ...]]:
    """Return sizes, strides, pads (asymmetric; smaller than a pool's window) and dilations that fit the data, by name."""
    sizes, strides, dilations, before, after = [], [], [], [], []
    for size in space:
        count, dilation = random.randint(1, largest), random.choice((1, 1, 2, 3))
        extent = dilation * (count - 1) + 1
        low, high = (random.choice((0, random.randint(0, (count if pooled else extent) - 1))) for _ in range(2))
        if size + low + high < extent and not pooled:
            low, high = extent - 1, 0
        sizes.append(count)
        strides.append(random.randint(1, 3))
        dilations.append(dilation)
        before.append(low)
        after.append(high)
    return {"kernel_shape": tuple(sizes), "strides": tuple(strides), "dilations": tuple(dilations), "pads": (*before, *after)}
