"""Boxes: products of strided ranges of positions, one range per axis.

The positions at which two tensors differ form a set. As disjoint boxes, the set can be read, computed by an operator of the same kind
and written through strided windows. A box is a tuple of ``range``; boxes are values, equal if they hold the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from egraph.tensor.expr.compose import at
from egraph.tensor.expr.index import Iterator, index
from egraph.tensor.expr.scope import Scope
from egraph.tensor.node import Node

Box: TypeAlias = tuple[range, ...]
Mask: TypeAlias = NDArray[np.bool_]
MOST_CELLS = 1 << 26
"""The most positions of a value that are marked one by one, one byte each."""


def boxes_of(mask: Mask) -> tuple[Box, ...]:
    """Return disjoint boxes that hold exactly the positions that a mask marks: few, but not always the fewest.

    Positions of an axis at which the mask is the same are grouped into one kind, so that the work depends on the number of kinds and
    not on the number of positions.
    """
    if not mask.any():
        return ()
    if not mask.ndim:
        return ((),)
    kinds, small = _compressed(mask)
    by_order: list[list[Box]] = []
    for order in permutations(range(mask.ndim)):
        by_order.append(_split(np.transpose(small, order), [kinds[axis] for axis in order], order))
    fewest = min(by_order, key=len)
    return tuple(sorted(fewest, key=lambda box: [(r.start, r.stop, r.step) for r in box]))


def mask_of(boxes: Sequence[Box], shape: Sequence[int]) -> Mask:
    """Return which positions of a tensor lie in any of the boxes."""
    mask = np.zeros(tuple(shape), np.bool_)
    for box in boxes:
        mask[tuple(slice(r.start, r.stop, r.step) for r in box)] = True
    return mask


def widened(boxes: Sequence[Box], shape: Sequence[int]) -> tuple[Box, ...]:
    """Return boxes of the same positions, each widened to a whole axis if the wider box holds no other positions.

    This takes few kernels, but computes some cells twice.
    """
    mask = mask_of(boxes, shape)
    wider_boxes: dict[Box, None] = {}
    for box in boxes:
        for axis, size in enumerate(shape):
            wider = (*box[:axis], range(size), *box[axis + 1 :])
            if mask[tuple(slice(r.start, r.stop, r.step) for r in wider)].all():
                box = wider
        wider_boxes[box] = None
    return _apart([box for box in wider_boxes if not any(other != box and _holds(other, box) for other in wider_boxes)])


def _apart(boxes: Sequence[Box]) -> tuple[Box, ...]:
    """Return boxes, each without the cells of earlier boxes if the rest is a box; disjoint parts can be written in any order."""
    result: list[Box] = []
    for box in boxes:
        for earlier in result:
            crossing = [axis for axis, (r, e) in enumerate(zip(box, earlier, strict=True)) if not set(r) <= set(e)]
            if len(crossing) == 1 and not set(box[crossing[0]]).isdisjoint(earlier[crossing[0]]):
                (axis,) = crossing
                left = progressions(sorted(set(box[axis]) - set(earlier[axis])))
                if len(left) == 1:
                    box = (*box[:axis], left[0], *box[axis + 1 :])
        result.append(box)
    return tuple(result)


def _holds(outer: Box, inner: Box) -> bool:
    return all(set(b) <= set(a) for a, b in zip(outer, inner, strict=True))


def cells(boxes: Sequence[Box]) -> int:
    """Return the number of positions in disjoint boxes."""
    return sum(int(np.prod([len(r) for r in box], dtype=np.int64)) for box in boxes)


def runs(box: Box, shape: Sequence[int]) -> int:
    """Return the number of contiguous pieces of a box in a row-major tensor."""
    whole = len(shape)
    while whole and box[whole - 1] == range(shape[whole - 1]):
        whole -= 1
    if whole and (box[whole - 1].step == 1 or len(box[whole - 1]) == 1):
        whole -= 1
    return prod(len(positions) for positions in box[:whole])


def progressions(positions: Sequence[int]) -> tuple[range, ...]:
    """Return disjoint ranges that hold exactly these ascending positions: runs, or ranges with steps if these are fewer."""
    runs: list[range] = []
    for position in positions:
        if runs and runs[-1].stop == position:
            runs[-1] = range(runs[-1].start, position + 1)
        else:
            runs.append(range(position, position + 1))
    steps = _with_steps(positions) if len(runs) > 1 else runs
    return tuple(sorted(steps if len(steps) < len(runs) else runs, key=lambda r: r.start))


def _with_steps(positions: Sequence[int]) -> list[range]:
    """Return ranges that hold exactly these positions, chosen greedily: the longest one first."""
    left = set(positions)
    ranges: list[range] = []
    while left:
        best = max(_progressions_in(left), key=lambda r: (len(r), -r.step, -r.start))
        ranges.append(best)
        left.difference_update(best)
    return ranges


def describe_boxes(boxes: Sequence[Box], shape: Sequence[int], names: Sequence[str]) -> str:
    """Return ``h = 7 mod 8`` or ``n = 0, w in 3..5 or n = 1, w = 0``: the conditions under which a position lies in a box."""
    return " or ".join(dict.fromkeys(_described(box, shape, names) for box in boxes)) or "nowhere"


def restricted(scope: Scope, box: Box) -> Scope:
    """Return an expression at the positions of a box, counted from 0 along every axis."""
    iterators = tuple(Iterator(f"box{axis}", 0, len(positions)) for axis, positions in enumerate(box))
    coordinates = tuple(
        index(positions.start if len(positions) == 1 else positions.start + positions.step * index(iterator))
        for iterator, positions in zip(iterators, box, strict=True)
    )
    body = at(Scope(scope.traversal, (), scope.reduction, scope.body), coordinates)
    return Scope(iterators, scope.summation, scope.reduction, body)


def axis_names(node: Node) -> tuple[str, ...]:
    """Return a name for every axis of a result: from its layout if it has one, else from its number."""
    layout = next((value for key, value in node.attributes if key == "layout"), None)
    if layout in ("NCHW", "NHWC") and node.type.rank == 4:
        return tuple(str(layout).lower())
    return tuple(f"axis {axis}" for axis in range(node.type.rank))


def _described(box: Box, shape: Sequence[int], names: Sequence[str]) -> str:
    parts = [text for r, size, name in zip(box, shape, names, strict=True) if (text := _condition(r, size, name))]
    return ", ".join(parts) or "everywhere"


def _condition(positions: range, size: int, name: str) -> str:
    if positions == range(size):
        return ""
    if len(positions) == 1:
        return f"{name} = {positions[0]}"
    if positions.step == 1:
        return f"{name} in {positions[0]}..{positions[-1]}"
    if len(positions) == 2:
        return f"{name} in {{{positions[0]}, {positions[-1]}}}"
    if positions == range(positions.start % positions.step, size, positions.step):
        return f"{name} = {positions.start} mod {positions.step}"
    return f"{name} in {positions[0]}..{positions[-1]} by {positions.step}"


def _compressed(mask: Mask) -> tuple[list[list[list[int]]], Mask]:
    """Return the positions of every axis grouped by kind (equal slices of the mask), and the mask over kinds."""
    kinds: list[list[list[int]]] = []
    for axis in range(mask.ndim):
        slabs = np.moveaxis(mask, axis, 0).reshape(mask.shape[axis], -1)
        by_slab: dict[bytes, list[int]] = {}
        for position, slab in enumerate(np.packbits(slabs, axis=1)):
            by_slab.setdefault(slab.tobytes(), []).append(position)
        kinds.append(list(by_slab.values()))
        mask = np.take(mask, [positions[0] for positions in kinds[-1]], axis=axis)
    return kinds, mask


def _split(mask: Mask, kinds: Sequence[list[list[int]]], order: Sequence[int]) -> list[Box]:
    """Return the boxes of a mask over kinds whose axes are permuted by ``order``, outermost first, as boxes over the original axes."""
    by_axis = [dict(zip(order, box, strict=True)) for box in _boxes(mask, kinds)]
    return [tuple(box[axis] for axis in range(len(order))) for box in by_axis]


def _boxes(mask: Mask, kinds: Sequence[list[list[int]]]) -> list[Box]:
    if not mask.ndim:
        return [()] if mask else []
    by_slab: dict[bytes, list[int]] = {}
    for kind, slab in enumerate(mask):
        by_slab.setdefault(slab.tobytes(), []).append(kind)
    result: list[Box] = []
    for together in by_slab.values():
        inner = _boxes(mask[together[0]], kinds[1:])
        if inner:
            outer = progressions(sorted(position for kind in together for position in kinds[0][kind]))
            result += [(positions, *box) for positions in outer for box in inner]
    return result


def _progressions_in(positions: set[int]) -> list[range]:
    """Return the least position alone, and for every other position the longest range from the least one by the step between them."""
    ordered = sorted(positions)
    first, candidates = ordered[0], [range(ordered[0], ordered[0] + 1)]
    for second in ordered[1:]:
        step, stop = second - first, second
        while stop in positions:
            stop += step
        candidates.append(range(first, stop - step + 1, step))
    return candidates
