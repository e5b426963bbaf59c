"""Blocks: a convolution is the concatenation of convolutions over rows (with a halo) or images, whose transforms stay in cache.

    conv(x) = concat_H(conv(x[rows of block 0]), conv(x[rows of block 1]), ...)

Inner blocks differ only in the rows that they read, so they share their kernels. Slices of the rows of one image are views, and a
concatenation along the outermost axis is no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from egraph.derive.bilinear.axes import Strided
from egraph.derive.bilinear.programs import ELEMENT_BYTES, Bilinear, program
from egraph.tensor import Node
from egraph.tensor.ops import apply

MOST_BLOCKS = 64
MOST_CUTS = 16
"""The most blocks of all images, and of one image."""
ARITY = 4
"""The most operands of a concatenation. The rules move the operators that follow a convolution into concatenations of this size."""


def stage_bytes(batch: int, bilinear: Bilinear) -> int:
    """Return the size of V and M together, in bytes."""
    return ELEMENT_BYTES * bilinear.group * bilinear.products * bilinear.tiles(batch) * (bilinear.depth + bilinear.width)


def blocks_of(batch: int, bilinear: Bilinear, budget_bytes: int) -> tuple[int, int] | None:
    """Return images and tile rows of a block whose V and M take at most ``budget_bytes``; None if no block is needed or possible.

    A block holds whole images if at least one fits, else rows of one image. All blocks have about the same size. They are larger than the
    budget if there would be too many of them otherwise.
    """
    rows = bilinear.axes[0].tiles
    budget_bytes = max(budget_bytes, -(-stage_bytes(batch, bilinear) // MOST_BLOCKS), -(-stage_bytes(1, bilinear) // MOST_CUTS))
    if stage_bytes(batch, bilinear) <= budget_bytes:
        return None
    images = budget_bytes // stage_bytes(1, bilinear)
    if images:
        return (even_part(batch, images), rows) if batch > 1 else None
    if not isinstance(bilinear.axes[0], Strided):
        return (1, rows) if batch > 1 else None
    least = stage_bytes(1, bilinear) // rows
    count = even_part(rows, max(1, budget_bytes // least))
    return (1, count) if (batch, rows) != (1, count) else None


def even_part(total: int, most: int) -> int:
    """Return the part size of the division of ``total`` into the fewest parts of at most ``most``, all of about the same size."""
    return -(-total // -(-total // most))


def blocked_program(x: Node, w: Node, bilinear: Bilinear, images: int, rows: int) -> Node:
    """Return the concatenation of programs over blocks of ``images`` images and ``rows`` rows of tiles."""
    batch = x.type.sizes[0]
    parts = []
    for first in range(0, batch, images):
        part = _slice(x, 0, first, min(first + images, batch))
        parts.append(_cut(part, w, bilinear, rows))
    return _concat(parts, 0)


def _cut(x: Node, w: Node, bilinear: Bilinear, rows: int) -> Node:
    """Return the program of one image, or a few, in blocks of rows of tiles."""
    axis = bilinear.axes[0]
    if rows >= axis.tiles or not isinstance(axis, Strided):
        return program(x, w, bilinear)
    parts = []
    for tile in range(0, axis.tiles, rows):
        first = tile * axis.algorithm.outputs
        outputs = min(axis.outputs, first + rows * axis.algorithm.outputs) - first
        start = first * axis.stride - axis.before
        low, high = max(0, start), min(axis.size, start + (outputs - 1) * axis.stride + axis.taps)
        if high <= low:  # these outputs read padding alone
            low, high = (0, 1) if high <= 0 else (axis.size - 1, axis.size)
        axis_of_block = replace(axis, size=high - low, outputs=outputs, before=low - start)
        parts.append(program(_slice(x, 1, low, high), w, replace(bilinear, axes=(axis_of_block, *bilinear.axes[1:]))))
    return _concat(parts, 1)


def _slice(x: Node, axis: int, low: int, high: int) -> Node:
    sizes = x.type.sizes
    if (low, high) == (0, sizes[axis]):
        return x
    starts = tuple(low if k == axis else 0 for k in range(len(sizes)))
    ends = tuple(high if k == axis else size for k, size in enumerate(sizes))
    return apply("Slice", x, starts=starts, ends=ends, steps=(1,) * len(sizes))


def _concat(parts: Sequence[Node], axis: int) -> Node:
    """Return the concatenation of parts as a tree of concatenations."""
    while len(parts) > 1:
        size = even_part(len(parts), ARITY)
        groups = [parts[k : k + size] for k in range(0, len(parts), size)]
        parts = [apply("Concat", *group, axis=axis) if len(group) > 1 else group[0] for group in groups]
    return parts[0]
