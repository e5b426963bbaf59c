"""Give equivalent cases of a rule a common name: cases that are equal up to the names of symbols and iterators and the order of axes.

A case is a graph of its conditions, the sizes of its tensors, and both sides with inner scopes inlined. Its leaves are symbols,
iterators, and axes of tensors and of the result. Leaves are ordered by their uses (colours, refined until no more leaves are
distinguished) and numbered in that order, and the graph is written down with these numbers. If two graphs are then equal, the numbers
are a map between the cases. It maps symbols to symbols of the same least value; axes of a tensor to axes of that tensor, consistently in
its shape and in every read; and axes of the result to axes of the result, consistently on both sides. An equation holds for all values
of its symbols and all operands, so it holds in both cases or in neither. Signed and unsigned bytes are one type here, because a proof
uses the same facts about them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from zlib import crc32

from egraph.tensor.expr.bodies import walked_through
from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, RealSymbol, Size, Symbol, index
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor

Label: TypeAlias = tuple[object, ...]
Name: TypeAlias = tuple[object, ...]
Written: TypeAlias = tuple[Label, bool, tuple[int, ...]]
"""A node: its label, whether the order of its parts matters, and its parts."""
Inner: TypeAlias = tuple[int, bool, tuple[int, ...]]
"""An inner node, whether the order of its parts matters, and its parts."""
_MASK = (1 << 61) - 1
ALIKE: Mapping[str, str] = {"int8": "byte", "uint8": "byte"}
"""Element types that count as one. A proof knows only the largest magnitude of their elements (``whole_numbers``), which is the same for
both. If the range of a type matters, the meanings contain its ends as numbers."""


@dataclass
class Names:
    """Names of the graphs of some cases; equal names mean equal graphs."""

    numbers: dict[Name, int] = field(default_factory=dict)
    written: dict[tuple[Written, ...], int] = field(default_factory=dict)
    """Names by graphs in construction order. Cases that differ only in their symbols and iterators are found here without colours."""
    forms: dict[int, int] = field(default_factory=dict)
    """Names by the numbers of graphs whose leaves are numbered by their colours."""
    same: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Names by cases and their constants as they are written, because 0.0 == -0.0; equal cases are found here without their graphs."""
    only: dict[int, tuple[_Graph, int] | None] = field(default_factory=dict)
    """By form, the only graph that was seen of it, with its name. It is written down when there is a second one, if ever."""

    def of(self, conditions: tuple[Compare, ...], lefts: tuple[Scope, ...], rights: tuple[Scope, ...]) -> int:
        """Return the name of a case."""
        parts = (part for side in (*lefts, *rights) for part in walked_through(side.body))
        case = conditions, lefts, rights, tuple(repr(part.value) for part in parts if isinstance(part, Number))
        if case not in self.same:
            graph = _Graph()
            graph.add_case(conditions, lefts, rights)
            made = tuple(graph.nodes)
            if made not in self.written:
                self.written[made] = self._name(graph, len(self.written))
            self.same[case] = self.written[made]
        return self.same[case]

    def _name(self, graph: _Graph, new: int) -> int:
        """Return the name of a graph that equals this one, or ``new`` if there is none."""
        form = graph.form()
        if form not in self.only:
            self.only[form] = graph, new
            return new
        if (first := self.only[form]) is not None:
            self.only[form] = None
            self.forms[self._number(first[0])] = first[1]
        return self.forms.setdefault(self._number(graph), new)

    def _number(self, graph: _Graph) -> int:
        """Return the number of a graph's last node, with leaves numbered by their colours; equal numbers mean equal graphs."""
        places = {leaf: place for place, leaf in enumerate(sorted(graph.leaves, key=graph.colours().__getitem__))}
        numbers: list[int] = []
        for node, (label, ordered, children) in enumerate(graph.nodes):
            inner = [numbers[child] for child in children]
            name: Name = (label, places.get(node), tuple(inner if ordered else sorted(inner)))
            numbers.append(self.numbers.setdefault(name, len(self.numbers)))
        return numbers[-1]


class _Graph:
    """The nodes of a case, each after its parts: a label, whether the order of the parts matters, and the parts."""

    def __init__(self) -> None:
        self.nodes: list[Written] = []
        self.leaves: list[int] = []
        self._made: dict[Written, int] = {}
        self._leaves: dict[object, int] = {}
        self._indices: dict[tuple[Index, int], int] = {}
        self._scopes: dict[tuple[int, tuple[int, ...]], int] = {}
        self._bodies: dict[tuple[int, int], int] = {}
        self._places: list[Mapping[Iterator, int]] = []
        self._kept: list[object] = []
        self._tensors: dict[Tensor, None] = {}
        """The tensors that are read; tensors of one name may have their sizes written in several ways."""

    def add_case(self, conditions: Iterable[Compare], lefts: Sequence[Scope], rights: Sequence[Scope]) -> None:
        nowhere = self._environment({})
        parts = [self._node(("given",), [self._condition(condition, nowhere)]) for condition in conditions]
        for position, (left, right) in enumerate(zip(lefts, rights, strict=True)):
            places = [self._leaf(("result", position, axis), ("result", position)) for axis in range(len(left.shape))]
            for place, size, twin in zip(places, left.shape, right.shape, strict=True):
                parts.append(self._node(("size",), [place, self._index(size, nowhere), self._index(twin, nowhere)]))
            sides = [self._scope(side, places) for side in (left, right)]
            parts.append(self._node(("equation", position), sides))
        for tensor in self._tensors:
            for axis, size in enumerate(tensor.shape):
                parts.append(self._node(("extent",), [self._axis(tensor, axis), self._index(size, nowhere)]))
        self._node(("case",), sorted(set(parts)), ordered=False)

    def _node(self, label: Label, children: Sequence[int] = (), *, ordered: bool = True) -> int:
        key = label, ordered, tuple(children)
        number = self._made.get(key)
        if number is None:
            number = self._made[key] = len(self.nodes)
            self.nodes.append(key)
        return number

    def _leaf(self, thing: object, label: Label) -> int:
        """Return the leaf of a thing."""
        number = self._leaves.get(thing)
        if number is None:
            number = self._leaves[thing] = len(self.nodes)
            self.nodes.append((label, True, ()))
            self.leaves.append(number)
        return number

    def _axis(self, tensor: Tensor, axis: int) -> int:
        self._tensors[tensor] = None
        return self._leaf((tensor.name, axis), ("axis", tensor.name))

    def _environment(self, places: Mapping[Iterator, int]) -> int:
        self._places.append(places)
        return len(self._places) - 1

    def _scope(self, scope: Scope, places: Sequence[int]) -> int:
        """Return a scope's value at places."""
        key = id(scope), tuple(places)
        if key in self._scopes:
            return self._scopes[key]
        self._kept.append(scope)
        where = dict(zip(scope.traversal, places, strict=True))
        outer = self._environment(where)
        bound = {iterator: self._leaf((key, iterator), ("bound",)) for iterator in scope.summation}
        ranges = [self._node(("range",), [leaf, *(self._index(end, outer) for end in (i.low, i.high))]) for i, leaf in bound.items()]
        body = self._scalar(scope.body, self._environment({**where, **bound}) if bound else outer)
        if ranges:
            body = self._node(("reduced", str(scope.reduction)), [self._node(("ranges",), sorted(ranges), ordered=False), body])
        self._scopes[key] = body
        return body

    def _scalar(self, body: Scalar, where: int) -> int:
        key = id(body), where
        if key not in self._bodies:
            self._kept.append(body)
            self._bodies[key] = self._written(body, where)
        return self._bodies[key]

    def _written(self, body: Scalar, where: int) -> int:
        match body:
            case Number(value):
                return self._node(("number", type(value).__name__, repr(value)))
            case IndexNumber(value):
                return self._node(("value",), [self._index(value, where)])
            case Read():
                return self._read(body, where)
            case Table(shape, values, indices):
                return self._node(("table", shape, values), [self._index(value, where) for value in indices])
            case Apply(function, arguments):
                return self._node(("call", function), [self._scalar(argument, where) for argument in arguments])
            case Guarded(conditions, then, otherwise):
                tests = self._node(("all",), sorted({self._condition(each, where) for each in conditions}), ordered=False)
                return self._node(("guarded",), [tests, self._scalar(then, where), self._scalar(otherwise, where)])

    def _read(self, read: Read, where: int) -> int:
        places = [self._index(value, where) for value in read.indices]
        if isinstance(read.source, Scope):
            return self._scope(read.source, places)
        along = [self._node(("along",), [self._axis(read.source, axis), place]) for axis, place in enumerate(places)]
        dtype = ALIKE.get(read.source.dtype, read.source.dtype)
        return self._node(("read", read.source.name, dtype, len(places)), sorted(along), ordered=False)

    def _condition(self, condition: Compare, where: int) -> int:
        return self._node(("compare", condition.operator), [self._index(condition.left, where), self._index(condition.right, where)])

    def _index(self, value: Size, where: int) -> int:
        key = index(value), where
        if key not in self._indices:
            self._indices[key] = self._polynomial(*key)
        return self._indices[key]

    def _polynomial(self, value: Index, where: int) -> int:
        if value.atom is not None:
            return self._atom(value.atom, where)
        terms = [
            self._node(("term", coefficient), sorted(self._atom(atom, where) for atom in monomial), ordered=False)
            for monomial, coefficient in value.terms
        ]
        return self._node(("sum",), sorted(terms), ordered=False)

    def _atom(self, atom: object, where: int) -> int:
        match atom:
            case Iterator():
                return self._places[where][atom]  # sides are closed: every iterator has an enclosing scope
            case Symbol(_, minimum):
                return self._leaf(atom, ("symbol", minimum))
            case RealSymbol():
                return self._leaf(atom, ("real",))
            case Floor(numerator, divisor):
                return self._node(("floor",), [self._index(numerator, where), self._index(divisor, where)])
            case Modulo(numerator, divisor):
                return self._node(("modulo",), [self._index(numerator, where), self._index(divisor, where)])
            case DataIndex(read):
                return self._node(("data",), [self._read(read, where)])
        raise TypeError(f"not an atom: {atom!r}")

    def form(self) -> int:
        """Return a hash of the graph in which all leaves with the same label count as one; equal graphs have equal hashes."""
        form: list[int] = []
        for label, ordered, children in self.nodes:
            below = [form[child] for child in children]
            form.append(hash((crc32(repr(label).encode()), *(below if ordered else sorted(below)))))
        return form[-1]

    def colours(self) -> dict[int, int]:
        """Return a distinct number for every leaf; leaves that no use distinguishes are numbered in the order of their creation."""
        labels = [crc32(repr(label).encode()) for label, _, _ in self.nodes]
        colour = {leaf: labels[leaf] for leaf in self.leaves}
        inner = [(node, ordered, children) for node, (_, ordered, children) in enumerate(self.nodes) if node not in colour]
        count = 0
        while True:
            while True:  # as long as refinement distinguishes more leaves
                colour = self._refined(labels, inner, colour)
                different = len(set(colour.values()))
                if different == len(colour):
                    return colour
                if different == count:
                    break
                count = different
            alike: dict[int, list[int]] = defaultdict(list)
            for leaf, number in colour.items():
                alike[number].append(leaf)
            chosen = min(number for number, leaves in alike.items() if len(leaves) > 1)
            colour[min(alike[chosen])] = hash((chosen, 1)) & _MASK
            count = len(set(colour.values()))

    def _refined(self, labels: Sequence[int], inner: Sequence[Inner], colour: Mapping[int, int]) -> dict[int, int]:
        """Return the colours of leaves refined by their surroundings."""
        down = [0] * len(self.nodes)
        for leaf, number in colour.items():
            down[leaf] = number
        below = down.__getitem__
        for node, ordered, children in inner:
            down[node] = hash((labels[node], *(map(below, children) if ordered else sorted(map(below, children)))))
        around = [0] * len(self.nodes)
        for node, ordered, children in reversed(inner):
            above, itself = around[node] & _MASK, down[node]
            if ordered:
                for position, child in enumerate(children):
                    around[child] += hash((above, itself, position)) & _MASK
            else:
                number = hash((above, itself, -1)) & _MASK
                for child in children:
                    around[child] += number
        return {leaf: hash((number, around[leaf] & _MASK)) & _MASK for leaf, number in colour.items()}
