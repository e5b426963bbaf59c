"""Views: a tensor read at affine indices, rebuilt by Slice, Pad, Reshape, Transpose and Expand so that every iterator is an axis.

Coefficients are compared and nothing is enumerated. Along an axis, the iterators with coefficients c1 > c2 > ... are the digits of a
mixed-radix number if each c divides the one before and no smaller digit exceeds it; a reshape then splits the axis. If an axis is no
such number, or two axes share an iterator, the flat tensor is tried instead, which finds leading dimensions and diagonals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from egraph.derive.matching.conditions import Condition, bounds_index, interval
from egraph.tensor import Node, walk
from egraph.tensor.expr.index import Index, Iterator, bounds, index, length
from egraph.tensor.expr.laws import Affine, affine, tidy
from egraph.tensor.expr.scope import Number
from egraph.tensor.ops import apply

Group = Sequence[Iterator]
"""Iterators that form one axis together, row-major."""


def arrange(source: Node, indices: Sequence[Index], groups: Sequence[Group], *, expand: bool = False) -> Node | None:
    """Return ``source[indices]`` with one axis per group; a group that is not read has size 1 (or is repeated: ``expand``).

    None if the indices are no view of the tensor, or leave it.
    """
    coordinates = [affine(tidy(coordinate)) for coordinate in indices]
    unfolded = None if None in coordinates else _unfolded(source, [coordinate for coordinate in coordinates if coordinate is not None])
    if unfolded is None and len(indices) > 1:
        flat = affine(tidy(_flat(source.type.sizes, indices)))
        unfolded = _unfolded(reshaped(source, (source.type.elements,)), [flat]) if flat is not None and _inside(source, indices) else None
    if unfolded is None:
        return None
    node, axes = unfolded
    order = [i for group in groups for i in group]
    if not set(axes) <= set(order):
        return None
    node = transposed(node, [axes.index(i) for i in order if i in axes])
    full = tuple(length(i) for i in order)
    if any(i not in axes and (expand or not set(axes).isdisjoint(group)) for group in groups for i in group):
        present = [i in axes or not (expand or not set(axes).isdisjoint(group)) for group in groups for i in group]
        absent = [set(axes).isdisjoint(group) and not expand for group in groups for _ in group]
        node = reshaped(node, [1 if i not in axes else size for i, size in zip(order, full, strict=True)])
        sizes = tuple(1 if removed else size for removed, size in zip(absent, full, strict=True))
        node = node if all(present) else expanded(node, sizes)
    sizes = tuple(1 if not expand and set(axes).isdisjoint(group) else math.prod(map(length, group)) for group in groups)
    return reshaped(node, sizes)


def axes_in_order(indices: Sequence[Index]) -> tuple[Iterator, ...]:
    """Return the iterators of affine indices in the order of the tensor's memory."""
    ordered: dict[Iterator, None] = {}
    for coordinate in indices:
        parts = affine(coordinate)
        terms = parts[1].items() if parts is not None else ()
        ordered |= dict.fromkeys(i for i, _ in sorted(terms, key=lambda term: (-abs(term[1]), term[0].name)))
    return tuple(ordered)


def _inside(source: Node, indices: Sequence[Index]) -> bool:
    limits = [bounds(coordinate) for coordinate in indices]
    return all(limit is not None and limit[0] >= 0 and limit[1] < size for limit, size in zip(limits, source.type.sizes, strict=True))


@dataclass(frozen=True, slots=True)
class Padded:
    """A tensor cut and padded along each axis to the range of its indices, and these indices in it."""

    node: Node
    indices: tuple[Index, ...]


def padded(source: Node, indices: Sequence[Index], conditions: Sequence[Condition], fill: Number | None) -> Padded | None:
    """Return a tensor that holds ``fill`` where the conditions on its indices fail; None if it would be read outside."""
    sizes = source.type.sizes
    starts, ends, before, after, moved = list[int](), list[int](), list[int](), list[int](), list[Index]()
    for size, coordinate in zip(sizes, indices, strict=True):
        parts, limits = affine(coordinate), bounds(coordinate)
        if limits is None:
            return None
        kept = interval(parts, size, conditions) if parts is not None else interval((0, {}), size, ())
        if kept.low >= kept.high or (fill is None and (limits[0] < kept.low or limits[1] >= kept.high)):
            return None
        guarded = parts is not None and any(bounds_index(parts, condition) for condition in conditions)
        if not guarded and (limits[0] < 0 or limits[1] >= size):
            return None
        starts.append(kept.low if limits[0] < kept.low else 0)
        ends.append(kept.high if limits[1] >= kept.high else size)
        before.append(max(0, kept.low - limits[0]))
        after.append(max(0, limits[1] - kept.high + 1))
        moved.append(coordinate - starts[-1] + before[-1])
    node = sliced(source, starts, ends, [1] * len(sizes))
    if any(before) or any(after):
        value = float(fill.value) if fill is not None else 0.0
        if fill is not None and value != fill.value:
            return None
        node = apply("Pad", node, before=tuple(before), after=tuple(after), mode="constant", value=value)
    return Padded(node, tuple(moved))


def _flat(sizes: Sequence[int], indices: Sequence[Index]) -> Index:
    flat = index(0)
    for size, coordinate in zip(sizes, indices, strict=True):
        flat = flat * size + coordinate
    return flat


def _unfolded(source: Node, coordinates: Sequence[Affine]) -> tuple[Node, tuple[Iterator, ...]] | None:
    """Return the tensor with one axis per iterator, in the tensor's own order."""
    starts, ends, steps, after = list[int](), list[int](), list[int](), list[int]()
    split: list[int] = []
    cut: list[tuple[int, int, int]] = []
    axes: list[Iterator] = []
    for size, (constant, coefficients) in zip(source.type.sizes, coordinates, strict=True):
        terms = sorted(coefficients.items(), key=lambda term: (-abs(term[1]), term[0].name))
        if any(i in axes for i, _ in terms):
            return None
        low = constant + sum(c * (length(i) - 1) for i, c in terms if c < 0)
        high = constant + sum(c * (length(i) - 1) for i, c in terms if c > 0)
        if low < 0 or high >= size:
            return None
        radices = _radices([(length(i), abs(c)) for i, c in terms])
        if radices is None:
            return None
        single = len(terms) == 1 and terms[0][1] < 0
        step = abs(terms[-1][1]) if terms else 1
        count = math.prod(radices)
        after.append(max(0, low + (count - 1) * step + 1 - size))
        starts.append(high if single else low)
        steps.append(-step if single else step)
        ends.append(starts[-1] + count * steps[-1])
        split += radices
        for (i, c), radix in zip(terms, radices, strict=True):
            axes.append(i)
            cut.append((length(i) - 1, -1, -1) if c < 0 and not single else (0, length(i), 1))
            assert length(i) <= radix
    node = source
    if any(after):
        node = apply("Pad", node, before=(0,) * len(after), after=tuple(after), mode="constant", value=0.0)
    node = reshaped(sliced(node, starts, ends, steps), split)
    return sliced(node, *(list(column) for column in zip(*cut, strict=True))) if cut else node, tuple(axes)


def _radices(terms: Sequence[tuple[int, int]]) -> list[int] | None:
    """Return the sizes of the axes that (length, coefficient) terms split an axis into; None if they overlap."""
    radices = [terms[0][0]] if terms else []
    for (_, upper), (count, lower) in pairwise(terms):
        if upper % lower or count * lower > upper:
            return None
        radices.append(upper // lower)
    return radices


def reshaped(node: Node, shape: Sequence[int]) -> Node:
    """Reshape, unless the node has this shape; a reshape of a reshape becomes one."""
    if node.op == "Reshape":
        return reshaped(node.inputs[0], shape)
    return node if node.type.sizes == tuple(shape) else apply("Reshape", node, shape=tuple(shape))


def transposed(node: Node, perm: Sequence[int]) -> Node:
    """Transpose, by a reshape if only axes of size 1 move."""
    sizes = node.type.sizes
    moved = [axis for axis in perm if sizes[axis] != 1]
    if moved == sorted(moved):
        return reshaped(node, [sizes[axis] for axis in perm])
    return apply("Transpose", node, perm=tuple(perm))


def sliced(node: Node, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> Node:
    """Slice, unless the slice is the whole tensor."""
    if list(zip(starts, ends, steps, strict=True)) == [(0, size, 1) for size in node.type.sizes]:
        return node
    return apply("Slice", node, starts=tuple(starts), ends=tuple(ends), steps=tuple(steps))


def expanded(node: Node, shape: Sequence[int]) -> Node:
    """Expand, unless the node has this shape."""
    return node if node.type.sizes == tuple(shape) else apply("Expand", node, shape=tuple(shape))


def moved_elements(program: Node) -> int:
    """Return the number of elements that the movements of a program write; movements of constants do not count."""
    constant: dict[Node, bool] = {}
    total = 0
    for node in walk((program,)):
        constant[node] = all(constant[i] for i in node.inputs) if node.inputs else is_constant(node)
        if node.op in ("Transpose", "Slice", "Pad", "Expand", "Concat") and not constant[node]:
            total += node.type.elements
    return total


def is_constant(leaf: Node) -> bool:
    """Return whether a leaf is a weight."""
    return leaf.op == "Constant" or (leaf.op == "Placeholder" and bool(leaf.attribute("constant")))
