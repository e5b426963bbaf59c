"""Compose expressions: substitute what computes a tensor for the reads of it (expression fusion)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction

from egraph.tensor.expr.evaluate import EvaluationError
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, bounds, index, substitute
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor

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
    def read(value: Read) -> Read:
        result = _scalar(value, replace, producers, memo)
        if isinstance(result, Read):
            return result
        raise EvaluationError("an index is read from a computed tensor", fix="instantiate that tensor first")

    match body:
        case Number():
            return body
        case IndexNumber(value):
            return IndexNumber(substitute(value, replace, read))
        case Table(shape, values, indices):
            return tabulated(shape, values, tuple(substitute(place, replace, read) for place in indices))
        case Apply(function, arguments):
            return Apply(function, tuple(_scalar(a, replace, producers, memo) for a in arguments))
        case Guarded(conditions, then, otherwise):
            return guarded(
                tuple(Compare(substitute(c.left, replace, read), c.operator, substitute(c.right, replace, read)) for c in conditions),
                _scalar(then, replace, producers, memo),
                _scalar(otherwise, replace, producers, memo),
            )
        case Read(source, indices):
            places = tuple(substitute(place, replace, read) for place in indices)
            producer = producers.get(source.name, source) if isinstance(source, Tensor) else _inline(source, producers, memo)
            if isinstance(producer, Tensor):
                return Read(producer, places)
            return at(producer, places)


def at(producer: Scope, places: tuple[Index, ...]) -> Scalar:
    """producer[places]: its body there when it does not reduce, else a read of it as an inner scope."""
    if producer.summation:
        return Read(producer, places)
    replace: dict[Iterator | Symbol, Size] = dict(zip(producer.traversal, places, strict=True))
    return _scalar(producer.body, replace, {}, {})


def truth(condition: Compare) -> bool | None:
    """Return whether the iterators' ranges decide a condition, and how."""
    limits = bounds(condition.right - condition.left)
    if limits is None:
        return None
    low, high = limits
    match condition.operator:
        case "<":
            return True if low > 0 else (False if high <= 0 else None)
        case "<=":
            return True if low >= 0 else (False if high < 0 else None)
        case "==":
            return True if low == high == 0 else (False if low > 0 or high < 0 else None)
        case "!=":
            return True if low > 0 or high < 0 else (False if low == high == 0 else None)


def undecided(conditions: Iterable[Compare]) -> tuple[Compare, ...] | None:
    """Return the conditions that ranges do not decide, each once; None where one of them is false."""
    left: dict[Compare, None] = {}
    for condition in conditions:
        known = truth(condition)
        if known is False:
            return None
        if known is None:
            left[condition] = None
    return tuple(left)


def guarded(conditions: Iterable[Compare], then: Scalar, otherwise: Scalar) -> Scalar:
    """Build a guard without the conditions that ranges decide."""
    left = undecided(conditions)
    if left is None:
        return otherwise
    return Guarded(left, then, otherwise) if left else then


def tabulated(shape: tuple[int, ...], values: tuple[Fraction, ...], indices: tuple[Index, ...]) -> Scalar:
    """Read a table; axes that are read at a known place are gone, and where all are it is a number."""
    for axis in reversed(range(len(shape))):
        place = indices[axis].constant
        if place is None:
            continue
        if not 0 <= place < shape[axis]:
            raise EvaluationError(f"a table of {shape} is read at {place} along axis {axis}")
        after = math.prod(shape[axis + 1 :])
        values = tuple(v for position, v in enumerate(values) if position // after % shape[axis] == place)
        shape, indices = shape[:axis] + shape[axis + 1 :], indices[:axis] + indices[axis + 1 :]
    return Table(shape, values, indices) if shape else Number(values[0])


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
