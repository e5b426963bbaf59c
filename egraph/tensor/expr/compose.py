"""Compose expressions: replace the reads of a tensor by the expression that computes it (expression fusion)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egraph.tensor.expr.bodies import guarded, rebuilt
from egraph.tensor.expr.evaluate import EvaluationError
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, substitute
from egraph.tensor.expr.scope import Compare, Number, Read, Scalar, Scope, Table, Tensor

Producers = Mapping[str, Scope | Tensor]
Parts = dict[int, tuple[Scalar, Scalar]]
"""Scalars by identity, each with its replacement. Hashing a scalar would walk all of it; holding it keeps its identity unique."""
Scopes = dict[int, tuple[Scope, Scope]]
"""Scopes by identity, each with its replacement."""


@dataclass(frozen=True)
class Placed:
    """Replacements inside producers: of their parts, by the indices that replace the iterators, and of the scopes that they read."""

    parts: dict[tuple[tuple[Iterator, Index], ...], Parts] = field(default_factory=dict)
    scopes: Scopes = field(default_factory=dict)


def inline(scope: Scope, producers: Producers, placed: Placed | None = None) -> Scope:
    """Return ``scope`` with every read of a named tensor replaced by its producer.

    A producer without a reduction is substituted into the body; a reducing one becomes an inner scope that is read;
    a ``Tensor`` renames. Several calls with one ``placed`` share equal replacements.
    """
    return _inline(scope, producers, {}, placed or Placed())


def _inline(scope: Scope, producers: Producers, scopes: Scopes, placed: Placed) -> Scope:
    entry = scopes.get(id(scope))
    if entry is None:
        body = _Substitution({}, producers, {}, scopes, placed).part(scope.body)
        entry = scopes[id(scope)] = scope, scope if body is scope.body else scope.with_body(body)
    return entry[1]


@dataclass(frozen=True, slots=True)
class _Substitution:
    """A replacement of iterators and of reads of producers. A class, because closures that call each other are cyclic garbage."""

    replace: Mapping[Iterator | Symbol, Size]
    producers: Producers
    parts: Parts
    scopes: Scopes
    placed: Placed

    def part(self, inner: Scalar) -> Scalar:
        """Return a part with its reads replaced; shared parts of the body stay shared, because chains of them would double otherwise."""
        entry = self.parts.get(id(inner))
        if entry is None:
            changed = self._read(inner) if isinstance(inner, Read) else rebuilt(inner, self.part, self._reindexed)
            entry = self.parts[id(inner)] = inner, changed
        return entry[1]

    def _reindexed(self, value: Index) -> Index:
        return substitute(value, self.replace, self._data)

    def _data(self, value: Read) -> Read:
        result = self.part(value)
        if isinstance(result, Read):
            return result
        raise EvaluationError("an index is read from a computed tensor", fix="instantiate that tensor first")

    def _read(self, value: Read) -> Scalar:
        source, coordinates = value.source, tuple(map(self._reindexed, value.indices))
        if isinstance(source, Tensor):
            producer = self.producers.get(source.name, source)
        else:
            producer = _inline(source, self.producers, self.scopes, self.placed)
        if isinstance(producer, Scope) and not producer.summation:
            return _at(producer, coordinates, self.placed)
        return value if producer is source and coordinates == value.indices else Read(producer, coordinates)


def at(producer: Scope, coordinates: tuple[Index, ...]) -> Scalar:
    """producer[coordinates]: its body there when it does not reduce, else a read of it as an inner scope."""
    return Read(producer, coordinates) if producer.summation else _at(producer, coordinates, Placed())


def _at(producer: Scope, coordinates: tuple[Index, ...], placed: Placed) -> Scalar:
    replace = tuple(zip(producer.traversal, coordinates, strict=True))
    parts = placed.parts.setdefault(replace, {})
    return _Substitution(dict(replace), {}, parts, placed.scopes, placed).part(producer.body)


def chosen(table: Table) -> Scalar:
    """Return a table as choices between its values, so that what holds for choices holds for tables."""
    otherwise: Scalar = Number(table.values[-1])
    for position, value in reversed(list(enumerate(table.values[:-1]))):
        conditions = []
        for size, coordinate in zip(reversed(table.shape), reversed(table.indices), strict=True):
            position, digit = divmod(position, size)
            conditions.append(Compare(coordinate, "==", index(digit)))
        otherwise = guarded(reversed(conditions), Number(value), otherwise)
    return otherwise


def identity(tensor: Tensor) -> Scope:
    """Return the scope that copies a tensor."""
    traversal = tuple(Iterator(f"i{k}", 0, size) for k, size in enumerate(tensor.shape))
    return Scope.pointwise(traversal, Read(tensor, tuple(index(i) for i in traversal)))
