"""Turn a fragment's meaning into terms over flat memory: the form that loops are chosen for.

A term is a scalar at one output element: reads become flat offsets (so that a reshape disappears), inner scopes
become ``reduce`` terms over fresh iterators, and a guard that the iterators' ranges decide is gone. Terms are
hash-consed in their ``Terms`` table: equal terms are one object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from egraph.tensor.expr.bodies import tabulated
from egraph.tensor.expr.conditions import undecided
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, known, length, substitute
from egraph.tensor.expr.laws import iterators_of, rejoined
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Reduction, Scalar, Scope, Table, Tensor

Kind: TypeAlias = Literal["number", "index", "read", "table", "apply", "guard", "reduce"]
Replacement: TypeAlias = Mapping[Iterator | Symbol, Size]


_NOTHING = {each.combine: each.identity.value for each in (Reduction.SUM, Reduction.MAX, Reduction.MIN)}
"""The neutral operand of each function of two; products keep a factor of one."""


class Term:
    """A scalar. ``data`` by kind: number; Index; (tensor name, offset); (shape, values, indices); function; conditions;
    (reduction, iterators)."""

    __slots__ = ("children", "data", "free", "kind")
    kind: Kind
    data: Any
    children: tuple[Term, ...]
    free: frozenset[Iterator]

    def __repr__(self) -> str:
        return f"<{self.kind} {self.data}>"


class Terms:
    """A table of hash-consed terms over flat tensors with the given strides (by tensor name)."""

    def __init__(self, strides: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]) -> None:
        self.strides, self.dtypes = strides, dtypes
        self._interned: dict[Any, Term] = {}
        self._scopes: dict[tuple[Scope, tuple[Index, ...]], Term] = {}
        self._fresh = 0

    def fresh(self, prefix: str, extent: int) -> Iterator:
        self._fresh += 1
        return Iterator(f"{prefix}{self._fresh}", 0, extent)

    def _make(self, kind: Kind, data: Any, children: tuple[Term, ...], free: frozenset[Iterator]) -> Term:
        key = (kind, data, type(data), tuple(id(c) for c in children))
        term = self._interned.get(key)
        if term is None:
            term = Term()
            term.kind, term.data, term.children, term.free = kind, data, children, free
            self._interned[key] = term
        return term

    def number(self, value: Fraction | float) -> Term:
        return self._make("number", value, (), frozenset())

    def index_number(self, value: Index) -> Term:
        constant = value.constant
        return self.number(Fraction(constant)) if constant is not None else self._make("index", value, (), iterators_of(value))

    def read(self, name: str, offset: Index) -> Term:
        return self._make("read", (name, offset), (), iterators_of(offset))

    def table(self, shape: tuple[int, ...], values: tuple[Fraction, ...], indices: tuple[Index, ...]) -> Term:
        """Build a read of a table; a number where its place is known, zero outside (where a guard that fails forbids it)."""
        positions = [coordinate.constant for coordinate in indices]
        if any(coordinate is not None and not 0 <= coordinate < size for coordinate, size in zip(positions, shape, strict=True)):
            return self.number(Fraction(0))
        entry = tabulated(shape, values, indices)
        if isinstance(entry, Table):
            return self._make("table", (entry.shape, entry.values, entry.indices), (), iterators_of(*entry.indices))
        assert isinstance(entry, Number), "a table without axes is a number"
        return self.number(entry.value)

    def apply(self, function: str, children: Iterable[Term]) -> Term:
        arguments = tuple(children)
        nothing = _NOTHING.get(function)
        if nothing is not None:  # a tap that a guard excluded
            effective = tuple(a for a in arguments if not (a.kind == "number" and a.data == nothing))
            if len(effective) == 1:
                return effective[0]
        return self._make("apply", function, arguments, frozenset().union(*(a.free for a in arguments)))

    def guard(self, conditions: Iterable[Compare], then: Term, otherwise: Term) -> Term:
        """Build a guard without the conditions that the iterators' ranges decide."""
        left = undecided(conditions)
        if left is None:
            return otherwise
        if not left or then is otherwise:
            return then
        free = then.free.union(otherwise.free, *(iterators_of(c.left - c.right) for c in left))
        return self._make("guard", left, (then, otherwise), free)

    def reduce(self, reduction: Reduction, iterators: tuple[Iterator, ...], body: Term) -> Term:
        """Build a reduction; iterators of extent one are substituted away."""
        single: dict[Iterator | Symbol, Size] = {i: known(i.low) for i in iterators if length(i) == 1}
        if single:
            body = self.substitute(body, single)
            iterators = tuple(i for i in iterators if i not in single)
        if not iterators:
            return body
        return self._make("reduce", (reduction, iterators), (body,), body.free - frozenset(iterators))

    def offset(self, read: Read, replace: Replacement) -> tuple[str, Index]:
        """Return (tensor, flat offset) of a read of a named tensor."""
        assert isinstance(read.source, Tensor)
        total = index(0)
        for coordinate, stride in zip(read.indices, self.strides[read.source.name], strict=True):
            total = total + substitute(coordinate, replace, lambda r: self._data(r, replace)) * stride
        return read.source.name, rejoined(total)

    def _data(self, read: Read, replace: Replacement) -> Read:
        if read.source in [Tensor("flat " + name, (), self.dtypes[name]) for name in self.strides]:
            return Read(read.source, tuple(substitute(p, replace, lambda r: self._data(r, replace)) for p in read.indices))
        name, offset = self.offset(read, replace)
        return Read(Tensor("flat " + name, (), self.dtypes[name]), (offset,))

    def instantiate(self, scope: Scope, coordinates: tuple[Index, ...]) -> Term:
        """Return scope[places] as a term."""
        key = (scope, coordinates)
        if key not in self._scopes:
            replace: dict[Iterator | Symbol, Size] = dict(zip(scope.traversal, coordinates, strict=True))
            summed = []
            for iterator in scope.summation:
                low = index(iterator.low).constant or 0
                summed.append(self.fresh("k", length(iterator)))
                replace[iterator] = index(summed[-1]) + low
            body = self._scalar(scope.body, replace, {})
            self._scopes[key] = self.reduce(scope.reduction, tuple(summed), body) if summed else body
        return self._scopes[key]

    def _scalar(self, body: Scalar, replace: Replacement, made: dict[int, tuple[Scalar, Term]]) -> Term:
        """Return a scalar as a term; ``made``: those of its parts, by identity, as an expression holds one part in many places."""

        def data(read: Read) -> Read:
            return self._data(read, replace)

        def part(inner: Scalar) -> Term:
            entry = made.get(id(inner))
            if entry is None:
                entry = made[id(inner)] = inner, built(inner)
            return entry[1]

        def built(inner: Scalar) -> Term:
            match inner:
                case Number(value):
                    return self.number(value)
                case IndexNumber(value):
                    return self.index_number(substitute(value, replace, data))
                case Table(shape, values, indices):
                    return self.table(shape, values, tuple(self.index(coordinate, replace) for coordinate in indices))
                case Apply(function, arguments):
                    return self.apply(function, map(part, arguments))
                case Guarded(conditions, then, otherwise):
                    sides = [(substitute(c.left, replace, data), c.operator, substitute(c.right, replace, data)) for c in conditions]
                    return self.guard((Compare(*each) for each in sides), part(then), part(otherwise))
                case Read(Tensor(), _):
                    return self.read(*self.offset(inner, replace))
                case Read(source, coordinates):
                    assert isinstance(source, Scope)
                    return self.instantiate(source, tuple(substitute(p, replace, data) for p in coordinates))

        return part(body)

    def substitute(self, term: Term, replace: Replacement) -> Term:
        """Return a term with iterators replaced, offsets recombined and guards decided anew."""
        return self._substitute(term, replace, frozenset(i for i in replace if isinstance(i, Iterator)), {})

    def exchange(self, root: Term, replacements: Mapping[Term, Term]) -> Term:
        """Return ``root`` with terms replaced by others, wherever they occur."""
        memo = dict(replacements)
        for term in subterms((root,)):
            if term in memo:
                continue
            children = tuple(memo[child] for child in term.children)
            memo[term] = term if children == term.children else self.rebuilt(term, children)
        return memo[root]

    def rebuilt(self, term: Term, children: tuple[Term, ...]) -> Term:
        """Return a term over other children."""
        match term.kind:
            case "apply":
                return self.apply(term.data, children)
            case "guard":
                return self.guard(term.data, *children)
            case "reduce":
                reduction, iterators = term.data
                return self.reduce(reduction, iterators, children[0])
        return term

    def index(self, value: Index, replace: Replacement) -> Index:
        return rejoined(substitute(value, replace, lambda r: self._data(r, replace)))

    def _substitute(self, term: Term, replace: Replacement, changed: frozenset[Iterator], memo: dict[Term, Term]) -> Term:
        if not term.free & changed:
            return term
        if term in memo:
            return memo[term]
        children = tuple(self._substitute(child, replace, changed, memo) for child in term.children)
        match term.kind:
            case "index":
                result = self.index_number(self.index(term.data, replace))
            case "read":
                result = self.read(term.data[0], self.index(term.data[1], replace))
            case "table":
                shape, values, indices = term.data
                result = self.table(shape, values, tuple(self.index(coordinate, replace) for coordinate in indices))
            case "guard":
                conditions = [Compare(self.index(c.left, replace), c.operator, self.index(c.right, replace)) for c in term.data]
                result = self.guard(conditions, *children)
            case _:
                result = self.rebuilt(term, children)
        memo[term] = result
        return result


def subterms(roots: Iterable[Term]) -> list[Term]:
    """Return every term below ``roots`` once, operands first."""
    order: dict[Term, None] = {}

    def visit(term: Term) -> None:
        if term not in order:
            for child in term.children:
                visit(child)
            order[term] = None

    for root in roots:
        visit(root)
    return list(order)


def indices_of(roots: Iterable[Term]) -> list[Index]:
    """Return every index below ``roots``: offsets, index numbers, and both sides of conditions."""
    indices: list[Index] = []
    for term in subterms(roots):
        match term.kind:
            case "read":
                indices.append(term.data[1])
            case "index":
                indices.append(term.data)
            case "table":
                indices += term.data[2]
            case "guard":
                indices += [c.left - c.right for c in term.data]
    return indices
