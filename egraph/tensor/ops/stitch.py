"""Stitches: a value that is one tensor but for boxes, which others fill; no kernel is needed where these are written into the first.

{i} if i lies in a box: P[(i - start) / step], else M[i]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from egraph.tensor import Node
from egraph.tensor.boxes import Box
from egraph.tensor.expr.conditions import truth
from egraph.tensor.expr.index import Index, Iterator, atoms, index, simplify, substitute
from egraph.tensor.expr.scope import Compare, Guarded, Read, Scalar, Tensor
from egraph.tensor.ops.reference import meaning

MOST_STITCHED = 1 << 12
"""The longest axis whose positions are enumerated."""


@dataclass(frozen=True, slots=True)
class Stitch:
    """The operand (by number) that is the background, and those that fill disjoint boxes of it."""

    background: int
    parts: tuple[tuple[int, Box], ...]


@lru_cache(maxsize=1 << 10)
def stitch_of(fragment: Node) -> Stitch | None:
    """Return the stitch that a fragment is, None where it computes anything else."""
    leaves = [_reshaped(operand) for operand in fragment.inputs]
    if fragment.op != "Expression" or any(leaf.op != "Placeholder" for leaf in leaves) or len(set(leaves)) != len(leaves):
        return None
    scope, sizes = meaning(fragment), fragment.type.sizes
    if scope.summation or max(sizes, default=0) > MOST_STITCHED:
        return None
    body: Scalar = scope.body
    parts: list[tuple[int, Box]] = []
    while isinstance(body, Guarded):
        box = _box(body.conditions, scope.traversal, sizes)
        operand = None if box is None else _operand(body.then, scope.traversal, box)
        if box is None or operand is None:
            return None
        parts.append((operand, box))
        body = body.otherwise
    background = _operand(body, scope.traversal, tuple(map(range, sizes)))
    if background is None or not parts or len({background, *(part for part, _ in parts)}) != len(leaves) or not _are_disjoint(parts):
        return None
    number = [leaf.integer("index") for leaf in leaves]
    return Stitch(number[background], tuple((number[part], box) for part, box in parts))


def _reshaped(node: Node) -> Node:
    """Return what a node is a reshape of: the same elements one after the other."""
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


def _operand(body: Scalar, iterators: Sequence[Iterator], box: Box) -> int | None:
    """Return which operand a scalar reads, all of it, one element after the other as the box has positions."""
    if not isinstance(body, Read) or not isinstance(body.source, Tensor) or body.source.shape != tuple(map(len, box)):
        return None
    for coordinate, iterator, positions in zip(body.indices, iterators, box, strict=True):
        if len(positions) > 1 and not _counts(coordinate, iterator, positions):
            return None
    return int(body.source.name)


def _counts(coordinate: Index, iterator: Iterator, positions: range) -> bool:
    return all(simplify(substitute(coordinate, {iterator: index(at)})) == count for count, at in enumerate(positions))


def _are_disjoint(parts: Sequence[tuple[int, Box]]) -> bool:
    boxes = [[set(positions) for positions in box] for _, box in parts]
    return all(
        any(a.isdisjoint(b) for a, b in zip(first, second, strict=True)) for k, first in enumerate(boxes) for second in boxes[k + 1 :]
    )
