"""Axes of a window, each composed of axes in memory: how reshapes, transposes, expansions and slices read and write it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from egraph.tensor import Node
from lower.views import Reason, Window, contiguous

SubAxis: TypeAlias = tuple[int, int]
"""Size and stride."""


@dataclass(frozen=True)
class Axes:
    """A window whose axes are each composed of axes in memory, so that every reshape that merges axes is again such a window."""

    offset: int
    axes: tuple[tuple[SubAxis, ...], ...]

    @staticmethod
    def of(window: Window) -> Axes:
        pairs = zip(window.shape, window.strides, strict=True)
        return Axes(window.offset, tuple(((size, stride),) if size > 1 else () for size, stride in pairs))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(math.prod(size for size, _ in axis) for axis in self.axes)

    def transpose(self, permutation: Sequence[int]) -> Axes:
        return Axes(self.offset, tuple(self.axes[p] for p in permutation))

    def reshape(self, shape: tuple[int, ...]) -> Axes | Reason:
        left = [each for axis in self.axes for each in axis]
        axes: list[tuple[SubAxis, ...]] = []
        for size in shape:
            axis: list[SubAxis] = []
            while size > 1:
                here, stride = left.pop(0)
                if size % here == 0:
                    axis.append((here, stride))
                    size //= here
                elif here % size == 0:
                    axis.append((size, stride * (here // size)))
                    left.insert(0, (here // size, stride))
                    size = 1
                else:
                    return f"reshape of {self.shape} to {shape} cuts through an axis"
            axes.append(tuple(axis))
        return Axes(self.offset, tuple(axes))

    def expand(self, shape: tuple[int, ...]) -> Axes:
        aligned = ((),) * (len(shape) - len(self.axes)) + self.axes
        return Axes(self.offset, tuple(axis or (((size, 0),) if size > 1 else ()) for axis, size in zip(aligned, shape, strict=True)))

    def slice(self, node: Node) -> Axes | Reason:
        offset, axes = self.offset, []
        bounds = zip(*(node.integers(name) for name in ("starts", "ends", "steps")), strict=True)
        for axis, size, (start, end, step) in zip(self.axes, self.shape, bounds, strict=True):
            if (start, end, step) == (0, size, 1):
                axes.append(axis)
                continue
            joined = merged(axis)
            if len(joined) != 1:
                return "a slice of an axis that is several in memory"
            count, stride = len(range(start, end, step)), joined[0][1]
            offset += start * stride
            axes.append(((count, stride * step),) if count > 1 else ())
        return Axes(offset, tuple(axes))

    def matrix_strides(self) -> tuple[int, int] | Reason:
        """Return the strides of the last two axes."""
        joined = [merged(axis) for axis in self.axes[-2:]]
        if any(len(axis) > 1 for axis in joined):
            return "rows or columns do not lie at one distance"
        row, column = (axis[0][1] if axis else 0 for axis in joined)
        return row, column

    @property
    def batch(self) -> tuple[SubAxis, ...]:
        return tuple(each for axis in self.axes[:-2] for each in axis)


def merged(axis: Sequence[SubAxis]) -> list[SubAxis]:
    """Return an axis with neighbouring parts merged where they follow each other in memory."""
    joined: list[SubAxis] = []
    for size, stride in axis:
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    return joined


def through(view: Node, axes: Axes) -> Axes | Reason:
    """Return the axes of a view's result, given its operand's."""
    match view.op:
        case "Reshape":
            return axes.reshape(view.type.sizes)
        case "Transpose":
            return axes.transpose(view.integers("perm"))
        case "Expand":
            return axes.expand(view.type.sizes)
    return axes.slice(view)


def below_views(fragment: Node, destination: Window | None) -> tuple[Node, Axes] | Reason:
    """Return the node below reshapes and transposes, and where it is written so that the fragment lies at its destination."""
    node, axes = fragment, Axes.of(destination or contiguous(fragment.type.sizes))
    while node.op in ("Reshape", "Transpose"):
        written = _written_below(node, axes)
        if isinstance(written, str):
            return written
        node, axes = node.inputs[0], written
    return node, axes


def _written_below(view: Node, axes: Axes) -> Axes | Reason:
    """Return where a view's operand is written so that the view's result lies at ``axes``."""
    if view.op == "Reshape":
        return axes.reshape(view.inputs[0].type.sizes)
    permutation = view.integers("perm")
    return axes.transpose([permutation.index(axis) for axis in range(len(permutation))])
