"""Stitches: a value that is one tensor except in boxes, which others fill; no kernel is needed if these are written into the first.

{i} if i lies in a box: P[(i - start) / step], else M[i]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from egraph.tensor import Node
from egraph.tensor.boxes import MOST_CELLS, Box, boxes_of, mask_of
from egraph.tensor.expr.conditions import truth
from egraph.tensor.expr.index import Index, Iterator, atoms, index, simplify, substitute
from egraph.tensor.expr.scope import Compare, Guarded, Read, Scalar, Scope, Tensor
from egraph.tensor.ops.reference import meaning

MOST_STITCHED = 1 << 12
"""The longest axis whose positions are enumerated."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operand (by its position) that fills a box; ``is_entire``: whether the box holds all of its elements, in order."""

    operand: int
    box: Box
    is_entire: bool


@dataclass(frozen=True, slots=True)
class Stitch:
    """The operand (by number) that is the background, and the operands that fill disjoint boxes of it."""

    background: int
    parts: tuple[tuple[int, Box], ...]


def parts_of(node: Node) -> tuple[Part, ...] | None:
    """Return the parts that a choice by boxes puts together; None if the node is not such a choice.

    Where boxes overlap, the first part counts. The last part fills all other positions, and its box is all of the result.
    """
    if node.op != "Expression" or not node.type.sizes or max(node.type.sizes) > MOST_STITCHED:
        return None
    scope = meaning(node)
    body, parts = scope.body, list[Part]()
    while isinstance(body, Guarded):
        box = _box(body.conditions, scope.traversal, node.type.sizes)
        if box is None or (part := _part(body.then, scope.traversal, box)) is None:
            return None
        parts.append(part)
        body = body.otherwise
    last = _part(body, scope.traversal, tuple(map(range, node.type.sizes)))
    if scope.summation or not parts or last is None or not last.is_entire:
        return None
    parts.append(last)
    return tuple(parts) if len({part.operand for part in parts}) == len(parts) else None


def boxes_by_choice(scope: Scope) -> tuple[Box, ...]:
    """Return disjoint boxes that together hold all positions, in each of which one operand of a choice by boxes counts.

    There are none if the body is not such a choice, or an axis has no known size or too many positions.
    """
    sizes = [iterator.high for iterator in scope.traversal if isinstance(iterator.high, int)]
    if len(sizes) < len(scope.traversal) or max(sizes, default=0) > MOST_STITCHED or prod(sizes) > MOST_CELLS:
        return ()
    body, boxes, rest = scope.body, list[Box](), mask_of([tuple(map(range, sizes))], sizes)
    while isinstance(body, Guarded):
        box = _box(body.conditions, scope.traversal, sizes)
        if box is None:
            return ()
        inside = mask_of([box], sizes) & rest
        boxes += boxes_of(inside)
        rest &= ~inside
        body = body.otherwise
    return (*boxes, *boxes_of(rest)) if boxes else ()


@lru_cache(maxsize=1 << 10)
def stitch_of(fragment: Node) -> Stitch | None:
    """Return the stitch of a fragment that only puts whole operands into disjoint boxes and needs no kernel; None for any other."""
    leaves = [_reshaped(operand) for operand in fragment.inputs]
    if any(leaf.op != "Placeholder" for leaf in leaves) or len(set(leaves)) != len(leaves):
        return None
    found = parts_of(fragment)
    if found is None or len(found) != len(leaves) or not all(part.is_entire for part in found) or not _are_disjoint(found[:-1]):
        return None
    *parts, whole = ((leaves[part.operand].integer("index"), part.box) for part in found)
    return Stitch(whole[0], tuple(parts))


def _reshaped(node: Node) -> Node:
    """Return the value of which a node is a reshape: the same elements in order."""
    while node.op == "Reshape":
        node = node.inputs[0]
    return node


def _box(conditions: Iterable[Compare], iterators: Sequence[Iterator], sizes: Sequence[int]) -> Box | None:
    """Return the positions at which conditions of one iterator each hold, as a box."""
    positions = [list(range(size)) for size in sizes]
    for condition in conditions:
        axes = [axis for axis, iterator in enumerate(iterators) if iterator in atoms(condition.left) | atoms(condition.right)]
        if len(axes) != 1:
            return None
        (axis,) = axes
        kept = []
        for position in positions[axis]:
            substitution = {iterators[axis]: index(position)}
            holds = truth(Compare(substitute(condition.left, substitution), condition.operator, substitute(condition.right, substitution)))
            if holds is None:
                return None
            kept += [position] if holds else []
        positions[axis] = kept
    ranges = [_range(kept) for kept in positions]
    return None if any(each is None for each in ranges) else tuple(each for each in ranges if each is not None)


def _range(positions: Sequence[int]) -> range | None:
    if not positions:
        return None
    step = positions[1] - positions[0] if len(positions) > 1 else 1
    positions_of_step = range(positions[0], positions[-1] + 1, step)
    return positions_of_step if list(positions_of_step) == list(positions) else None


def _part(body: Scalar, iterators: Sequence[Iterator], box: Box) -> Part | None:
    """Return the operand that a scalar reads in a box; None if it does not read one."""
    if not isinstance(body, Read) or not isinstance(body.source, Tensor):
        return None
    is_entire = body.source.shape == tuple(map(len, box)) and all(
        len(positions) == 1 or _counts(place, iterator, positions)
        for place, iterator, positions in zip(body.indices, iterators, box, strict=True)
    )
    return Part(int(body.source.name), box, is_entire)


def _counts(coordinate: Index, iterator: Iterator, positions: range) -> bool:
    return all(simplify(substitute(coordinate, {iterator: index(at)})) == count for count, at in enumerate(positions))


def _are_disjoint(parts: Sequence[Part]) -> bool:
    boxes = [[set(positions) for positions in part.box] for part in parts]
    return all(
        any(a.isdisjoint(b) for a, b in zip(first, second, strict=True)) for k, first in enumerate(boxes) for second in boxes[k + 1 :]
    )
