"""The reference interpreter for results that are too large for memory: it evaluates part by part, along one axis.

A part of a result needs only the parts of its operands that its indices reach, such as its own entry of a batch, or a window and its
surroundings. So a value that only a fragment makes and reads, such as gathered rows, exists as a whole only if a part reads all of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from egraph.errors import EinsatError
from egraph.tensor import LEAVES, Node, walk
from egraph.tensor.expr.bodies import indices_of, mapped, used, walked, with_reads
from egraph.tensor.expr.evaluate import Array, Evaluator
from egraph.tensor.expr.index import DataIndex, Index, atoms, bounds, index, known, length, substitute
from egraph.tensor.expr.index import Iterator as Place
from egraph.tensor.expr.scope import Apply, Guarded, Number, Read, Reduction, Scalar, Scope, Tensor
from egraph.tensor.ops import OPS
from egraph.tensor.ops.reference import meaning

MOST_PLACES = 1 << 25
"""The most places at which a part is evaluated, if one step along the axis has fewer."""
Part: TypeAlias = tuple[range, ...]
"""The places along each axis of a value."""


@dataclass(frozen=True)
class Division:
    """How a value is divided: the axis (None if it is not divided) and the places of each part along it."""

    axis: int | None
    parts: tuple[range, ...]
    step_elements: int
    """Elements of the value at one place along the axis."""
    part_places: int
    """The most places at which a part is evaluated."""

    def elements(self, number: int) -> range:
        """Return the positions of a part's elements in row-major order."""
        return range(self.step_elements * self.parts[number].start, self.step_elements * self.parts[number].stop)


def divided(root: Node, most_places: int = MOST_PLACES) -> Division:
    """Return how the value of a fragment is divided: along its first axis that has several places, so that parts are contiguous."""
    elements = math.prod(root.type.sizes)
    axis = next((axis for axis, size in enumerate(root.type.sizes) if size > 1), None) if _is_by_meaning(root) and elements else None
    if axis is None:
        return Division(None, (range(1),), elements, elements)
    size, most = root.type.sizes[axis], max(_places(node) for node in walk((root,)) if _is_by_meaning(node))
    step = max(1, min(size, most_places * size // most))
    step = next((k for k in range(step, step // 2, -1) if size % k == 0), step)  # parts of merged values lie on one side of a border
    return Division(axis, tuple(range(k, min(k + step, size)) for k in range(0, size, step)), elements // size, -(-most * step // size))


def evaluate_in_parts(
    root: Node, leaves: Mapping[Node, np.ndarray], most_places: int = MOST_PLACES, only: Collection[int] | None = None
) -> Iterator[Array]:
    """Yield the value of a fragment in float64, part by part, in row-major order; leaves keep the type that they are given in.

    ``only``: the numbers of the parts that are wanted, if not all.
    """
    yield from _Evaluation(leaves, most_places).parts(root, only)


@dataclass
class _Evaluation:
    """One evaluation; ``wholes`` are the values that parts need as a whole."""

    leaves: Mapping[Node, np.ndarray]
    most_places: int
    wholes: dict[Node, Array] = field(default_factory=dict)

    def parts(self, root: Node, only: Collection[int] | None = None) -> Iterator[Array]:
        """Yield the value of a node, or some parts of it."""
        division = divided(root, self.most_places)
        for number, places in enumerate(division.parts):
            if only is None or number in only:
                value = self._whole(root) if division.axis is None else self._part(root, _along(root, division.axis, places), {})
                yield np.asarray(value, np.float64)

    def _whole(self, node: Node) -> Array:
        if node in self.leaves:
            return self.leaves[node]
        if node not in self.wholes:
            if node.op in LEAVES:
                raise EinsatError(f"no value was given for {node.op} {dict(node.attributes)}")
            axis = divided(node, self.most_places).axis
            self.wholes[node] = self._evaluated(node) if axis is None else np.concatenate(list(self.parts(node)), axis=axis)
        return self.wholes[node]

    def _evaluated(self, node: Node) -> Array:
        """Return a node's value at once."""
        operands = [self._whole(operand) for operand in node.inputs]
        if node.op not in OPS:
            raise EinsatError(f"{node.op} has no meaning to evaluate", fix="evaluate opaque nodes with onnxruntime")
        if (step_by_step := OPS[node.op].evaluate) is not None:
            value: Array = step_by_step([np.asarray(operand, np.float64) for operand in operands], dict(node.attributes))
            return value
        return _Widening({str(i): operand for i, operand in enumerate(operands)}, "float64", {}).tensor(meaning(node))

    def _part(self, node: Node, part: Part, made: dict[tuple[Node, Part], Array]) -> Array:
        """Return a node's value at some places; ``made``: the values computed so far for the current part of the root."""
        if node in self.leaves or node in self.wholes or not _is_by_meaning(node):
            return self._whole(node)[tuple(slice(places.start, places.stop) for places in part)]
        if (node, part) not in made:
            narrowing = _Narrowing()
            scope = narrowing.scope(meaning(node), part)
            operands = {}
            for source in narrowing.spans:
                if isinstance(source, Tensor):
                    operand, read = node.inputs[int(source.name)], narrowing.spans[source]
                    is_whole = all(len(places) == size for places, size in zip(read, operand.type.sizes, strict=True))
                    operands[source.name] = self._whole(operand) if is_whole else self._part(operand, read, made)
            made[node, part] = _Widening(operands, "float64", {}).tensor(scope)
        return made[node, part]


class _Widening(Evaluator):
    """Widens to float64 only the elements that are read from operands."""

    def read(self, read: Read, env: Mapping[Place, Array], mask: Array | None) -> Array:
        return np.asarray(super().read(read, env, mask), np.float64)


def _is_by_meaning(node: Node) -> bool:
    return node.op in OPS and OPS[node.op].evaluate is None


def _places(node: Node) -> int:
    """Return the number of places of the largest array that evaluating a node's meaning makes."""
    return max(max(math.prod(map(length, scope.traversal)), _factor_places(scope)) for scope in _scopes(meaning(node)))


def _factor_places(scope: Scope) -> int:
    """Return the places of the largest factor of a sum of products, which is contracted factor by factor, else those of the body."""
    if not scope.summation or scope.reduction != Reduction.SUM:
        return math.prod(map(length, scope.traversal + scope.summation))
    most, bodies = 1, [scope.body]
    while bodies:
        match bodies.pop():
            case Apply("mul", factors):
                bodies += factors
            case Guarded(_, then, Number(value)) if value == 0:
                bodies.append(then)
            case factor:
                most = max(most, math.prod(map(length, used(factor))))
    return most


def _scopes(scope: Scope) -> Iterator[Scope]:
    yield scope
    for read in _reads(scope.body):
        if isinstance(read.source, Scope):
            yield from _scopes(read.source)


@dataclass
class _Narrowing:
    """Narrows a scope to some places, and its sources to the places that it reads there."""

    spans: dict[Tensor | Scope, Part] = field(default_factory=dict)
    """The part of each source that is read."""

    def scope(self, scope: Scope, part: Part) -> Scope:
        """Return a scope at some places only."""
        self._note(scope, part)
        return self._narrowed(scope, part)

    def _note(self, scope: Scope, part: Part) -> None:
        """Record what is read, directly or indirectly, for a part of a scope."""
        body, before = _moved(scope, part), dict(self.spans)
        for read in _reads(body):
            self._add(read.source, tuple(_span(value, size) for value, size in zip(read.indices, _shape(read.source), strict=True)))
        for read in (read for value in indices_of(body) for read in _data_reads(value)):
            self._add(read.source, tuple(map(range, _shape(read.source))))
        for source in dict.fromkeys(read.source for read in _reads(body)):
            if isinstance(source, Scope) and self.spans[source] != before.get(source):
                self._note(source, self.spans[source])

    def _add(self, source: Tensor | Scope, part: Part) -> None:
        known = self.spans.get(source, part)
        self.spans[source] = tuple(range(min(a.start, b.start), max(a.stop, b.stop)) for a, b in zip(known, part, strict=True))

    def _narrowed(self, scope: Scope, part: Part) -> Scope:
        def moved(read: Read) -> Scalar:
            span = self.spans[read.source]
            source = self._narrowed(read.source, span) if isinstance(read.source, Scope) else read.source
            return Read(source, tuple(value - places.start for value, places in zip(read.indices, span, strict=True)))

        traversal = tuple(_at(place, places) for place, places in zip(scope.traversal, part, strict=True))
        return Scope(traversal, scope.summation, scope.reduction, with_reads(_moved(scope, part), moved))


def _along(node: Node, axis: int, places: range) -> Part:
    return tuple(places if k == axis else range(size) for k, size in enumerate(node.type.sizes))


def _at(place: Place, places: range) -> Place:
    return Place(place.name, places.start, places.stop)


def _moved(scope: Scope, part: Part) -> Scalar:
    """Return a scope's body at some places."""
    replace = {place: index(_at(place, places)) for place, places in zip(scope.traversal, part, strict=True)}

    def change(value: Index) -> Index:
        return substitute(value, replace, lambda read: Read(read.source, tuple(map(change, read.indices))))

    return mapped(scope.body, change)


def _shape(source: Tensor | Scope) -> tuple[int, ...]:
    return tuple(map(known, source.shape))


def _span(value: Index, size: int) -> range:
    """Return the places of an axis that an index may take; a guard forbids reads outside of the axis."""
    limits = bounds(value)
    if limits is None or size == 0:
        return range(size)
    low, high = (min(max(limit, 0), size - 1) for limit in limits)
    return range(low, high + 1)


def _reads(body: Scalar) -> Iterable[Read]:
    return (part for part in walked(body) if isinstance(part, Read))


def _data_reads(value: Index) -> Iterator[Read]:
    """Yield the reads that an index depends on."""
    for atom in atoms(value):
        if isinstance(atom, DataIndex):
            yield atom.read
            for inner in atom.read.indices:
                yield from _data_reads(inner)
