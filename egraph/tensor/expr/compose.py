"""Compose expressions: substitute what computes a tensor for the reads of it (expression fusion)."""

from __future__ import annotations

from collections.abc import Mapping

from egraph.tensor.expr.bodies import guarded, rebuilt
from egraph.tensor.expr.evaluate import EvaluationError
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, substitute
from egraph.tensor.expr.scope import Compare, Number, Read, Scalar, Scope, Table, Tensor

Producers = Mapping[str, Scope | Tensor]


def inline(scope: Scope, producers: Producers) -> Scope:
    """Return ``scope`` with every read of a named tensor replaced by its producer.

    A producer without a reduction disappears into the body; a reducing one becomes an inner scope that is read;
    a ``Tensor`` renames.
    """
    memo: dict[int, tuple[Scope, Scope]] = {}
    return _inline(scope, producers, memo)


def _inline(scope: Scope, producers: Producers, memo: dict[int, tuple[Scope, Scope]]) -> Scope:
    known = memo.get(id(scope))  # hashing a scope walks all of it; the memo keeps it alive, so that its id stays its own
    if known is None:
        body = _scalar(scope.body, {}, producers, memo)
        known = memo[id(scope)] = scope, Scope(scope.traversal, scope.summation, scope.reduction, body)
    return known[1]


def _scalar(body: Scalar, replace: Mapping[Iterator | Symbol, Size], producers: Producers, memo: dict[int, tuple[Scope, Scope]]) -> Scalar:
    def data(value: Read) -> Read:
        result = part(value)
        if isinstance(result, Read):
            return result
        raise EvaluationError("an index is read from a computed tensor", fix="instantiate that tensor first")

    def place(value: Index) -> Index:
        return substitute(value, replace, data)

    def part(inner: Scalar) -> Scalar:
        """Return a part with its reads replaced; what is one object in the body stays one, or chains of such parts would double."""
        known = parts.get(id(inner))
        if known is None:
            known = parts[id(inner)] = read(inner) if isinstance(inner, Read) else rebuilt(inner, part, place)
        return known

    def read(value: Read) -> Scalar:
        source, places = value.source, tuple(map(place, value.indices))
        producer = producers.get(source.name, source) if isinstance(source, Tensor) else _inline(source, producers, memo)
        if isinstance(producer, Tensor):
            return Read(producer, places)
        key = id(producer), places
        if key not in reads:
            reads[key] = at(producer, places)
        return reads[key]

    parts: dict[int, Scalar] = {}
    reads: dict[tuple[int, tuple[Index, ...]], Scalar] = {}
    return part(body)


def at(producer: Scope, places: tuple[Index, ...]) -> Scalar:
    """producer[places]: its body there when it does not reduce, else a read of it as an inner scope."""
    if producer.summation:
        return Read(producer, places)
    replace: dict[Iterator | Symbol, Size] = dict(zip(producer.traversal, places, strict=True))
    return _scalar(producer.body, replace, {}, {})


def chosen(table: Table) -> Scalar:
    """Return a table as choices between its values: what is true of choices is true of tables."""
    otherwise: Scalar = Number(table.values[-1])
    for position, value in reversed(list(enumerate(table.values[:-1]))):
        conditions = []
        for size, place in zip(reversed(table.shape), reversed(table.indices), strict=True):
            position, digit = divmod(position, size)
            conditions.append(Compare(place, "==", index(digit)))
        otherwise = guarded(reversed(conditions), Number(value), otherwise)
    return otherwise


def identity(tensor: Tensor) -> Scope:
    """Return the scope that copies a tensor."""
    traversal = tuple(Iterator(f"i{k}", 0, size) for k, size in enumerate(tensor.shape))
    return Scope.pointwise(traversal, Read(tensor, tuple(index(i) for i in traversal)))
