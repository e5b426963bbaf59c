"""Strided windows: which chains of views cost nothing because a kernel can read (or write) through strides.

``Transpose(Reshape(x))`` is a window over x's bytes: an offset and one stride an axis. If there is no such window, functions return a
``str`` with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from egraph.tensor import Node

Reason: TypeAlias = str
VIEWS = ("Reshape", "Transpose", "Slice", "Expand")


@dataclass(frozen=True, slots=True)
class Window:
    """element[i...] = base[offset + sum(i * stride)], in elements."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Return whether the elements lie side by side in row-major order (axes of size 1 do not count)."""
        return 0 in self.shape or all(
            size == 1 or stride == natural
            for size, stride, natural in zip(self.shape, self.strides, row_major(self.shape), strict=True)
        )

    @property
    def repeats(self) -> bool:
        """Return whether some element is read more than once through a stride of zero."""
        return any(size > 1 and stride == 0 for size, stride in zip(self.shape, self.strides, strict=True))

    @property
    def is_nested(self) -> bool:
        """Return whether every axis steps over the whole extent of the finer ones, as libraries require of strides."""
        axes = sorted((stride, size) for size, stride in zip(self.shape, self.strides, strict=True) if size > 1)
        return all(fine > 0 for fine, _ in axes) and all(
            coarse >= fine * size for (fine, size), (coarse, _) in pairwise(axes)
        )

    def transpose(self, permutation: tuple[int, ...]) -> Window:
        return Window(self.offset, tuple(self.shape[p] for p in permutation), tuple(self.strides[p] for p in permutation))

    def untranspose(self, permutation: tuple[int, ...]) -> Window:
        """Return the window whose ``transpose(permutation)`` is this one."""
        return self.transpose(tuple(permutation.index(axis) for axis in range(len(permutation))))

    def slice(self, starts: tuple[int, ...], ends: tuple[int, ...], steps: tuple[int, ...]) -> Window:
        shape = tuple(len(range(s, e, t)) for s, e, t in zip(starts, ends, steps, strict=True))
        offset = self.offset + sum(s * stride for s, stride in zip(starts, self.strides, strict=True)) if 0 not in shape else 0
        return Window(offset, shape, tuple(stride * step for stride, step in zip(self.strides, steps, strict=True)))

    def expand(self, shape: tuple[int, ...]) -> Window:
        """Broadcast as numpy does: missing leading axes and axes of size 1 repeat with stride 0."""
        missing = len(shape) - len(self.shape)
        sizes, strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        return Window(self.offset, shape, tuple(s if a == b else 0 for a, b, s in zip(sizes, shape, strides, strict=True)))

    def reshape(self, shape: tuple[int, ...]) -> Window | Reason:
        """Split and merge axes without moving data, or return which merge is impossible."""
        if self.shape == shape:
            return self
        if math.prod(shape) != math.prod(self.shape):
            return f"cannot reshape {self.shape} to {shape}"
        if 0 in shape:
            return Window(self.offset, shape, row_major(shape))
        old = [(size, stride) for size, stride in zip(self.shape, self.strides, strict=True) if size != 1]
        strides: list[int] = [0] * len(shape)
        done = 0
        i = 0
        while i < len(old):
            # Take the fewest old axes and new axes with equal products: only inside such a group are axes merged or split.
            first, have, need, last = i, old[i][0], 1, done
            i += 1
            while need != have:
                if need < have:
                    need, last = need * shape[last], last + 1
                else:
                    have, i = have * old[i][0], i + 1
            for (_, outer), (size, inner) in zip(old[first : i - 1], old[first + 1 : i], strict=True):
                if outer != size * inner:
                    return f"reshape of {self.shape} to {shape} merges axes that are not adjacent in memory"
            stride = old[i - 1][1]
            for axis in reversed(range(done, last)):
                strides[axis] = stride
                stride *= shape[axis]
            done = last
        return Window(self.offset, shape, _fill_unit_axes(shape, strides))

    def unbroadcast(self) -> Window:
        """Return the window with repeated axes cut down to size 1, as a library's implicit broadcast requires."""
        shape = tuple(1 if stride == 0 else size for size, stride in zip(self.shape, self.strides, strict=True))
        window = Window(self.offset, shape, self.strides)
        if shape == self.shape:
            return window
        return Window(self.offset, shape, row_major(shape) if window.is_contiguous else _fill_unit_axes(shape, list(self.strides)))

    def in_order(self, axes: tuple[int, ...]) -> Window | None:
        """Return the window if its axes lie densely in memory in this order, the outermost first; else None.

        Axes of size 1 get the strides that they have in that order, because libraries recognise layouts by strides.
        """
        ordered = self.transpose(axes)
        if not ordered.is_contiguous:
            return None
        return Window(self.offset, ordered.shape, row_major(ordered.shape)).untranspose(axes)

    def as_matrix(self) -> Window:
        """Return the window with axes of size 1 stepping over all later ones, as leading dimensions must."""
        strides = list(self.strides)
        for axis, size in enumerate(self.shape):
            if size == 1:
                later = zip(self.shape[axis + 1 :], self.strides[axis + 1 :], strict=True)
                strides[axis] = max([strides[axis], *(n * stride for n, stride in later)])
        return Window(self.offset, self.shape, tuple(strides))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major tensor without gaps."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def contiguous(shape: tuple[int, ...]) -> Window:
    return Window(0, shape, row_major(shape))


def image_orders(rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the orders of an image's axes in memory, the outermost first: channels first, channels last."""
    return tuple(range(rank)), (0, *range(2, rank), 1)


def in_one_order(windows: Sequence[Window], orders: Iterable[tuple[int, ...]]) -> list[Window] | None:
    """Return the windows in the first of the orders in which all of them lie densely; None if there is no such order."""
    for axes in orders:
        ordered = [dense for window in windows if (dense := window.in_order(axes)) is not None]
        if len(ordered) == len(windows):
            return ordered
    return None


def lying(bases: Mapping[int, Window] | None) -> Callable[[Node], Window]:
    """Return the window of each placeholder, by its number; row-major if none is given."""
    return lambda leaf: (bases or {}).get(leaf.integer("index")) or contiguous(leaf.type.sizes)


def _fill_unit_axes(shape: tuple[int, ...], strides: list[int]) -> tuple[int, ...]:
    """Give axes of size 1 the stride that row-major order would, because libraries recognise layouts by strides."""
    filled = list(strides)
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            filled[axis] = max(1, filled[axis + 1] * shape[axis + 1]) if axis + 1 < len(shape) else 1
    return tuple(filled)


def through(node: Node, window: Window) -> Window | Reason:
    """Return the window of a view node's result, given its operand's."""
    attributes: dict[str, Any] = dict(node.attributes)
    match node.op:
        case "Reshape":
            return window.reshape(node.type.sizes)
        case "Transpose":
            return window.transpose(attributes["perm"])
        case "Slice":
            return window.slice(attributes["starts"], attributes["ends"], attributes["steps"])
        case "Expand":
            return window.expand(node.type.sizes)
    return f"{node.op} is not a view"


def back(node: Node, window: Window) -> Window | Reason:
    """Return the window of a view node's operand, given its result's: where to write so that the view reads it correctly."""
    match node.op:
        case "Reshape":
            return window.reshape(node.inputs[0].type.sizes)
        case "Transpose":
            return window.untranspose(node.integers("perm"))
    return f"{node.op} cannot be written through"


def read(node: Node, base: Callable[[Node], Window]) -> tuple[Node, Window] | Reason:
    """Follow views down to a placeholder: return it and the window over it, or why the chain is not a window."""
    chain = []
    while node.op in VIEWS:
        chain.append(node)
        node = node.inputs[0]
    if node.op != "Placeholder":
        return f"{node.op} computes: only views of an operand can be read in place"
    window: Window | Reason = base(node)
    for view in reversed(chain):
        assert isinstance(window, Window)
        window = through(view, window)
        if isinstance(window, str):
            return window
    assert isinstance(window, Window)
    return node, window
