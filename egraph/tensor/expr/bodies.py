"""Walk and rebuild the bodies of scopes.

Inner scopes that a body reads are closed: only the indices at which they are read count. With ``opened``, a walk also enters open
scopes, which have no traversal of their own and whose bodies use the iterators around them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce

from egraph.tensor.expr.conditions import negation, undecided
from egraph.tensor.expr.evaluate import EvaluationError
from egraph.tensor.expr.index import Index, Iterator, length
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table

Choice = Callable[[Iterable[Compare], Scalar, Scalar], Scalar]
"""Builds a scalar that is ``then`` where all conditions hold, else ``otherwise``."""


def guarded(conditions: Iterable[Compare], then: Scalar, otherwise: Scalar) -> Scalar:
    """Build a guard without the conditions that the iterators' ranges decide."""
    left = undecided(conditions)
    if left is None:
        return otherwise
    return Guarded(left, then, otherwise) if left else then


def tabulated(shape: tuple[int, ...], values: tuple[Fraction, ...], indices: tuple[Index, ...]) -> Scalar:
    """Return a read of a table without the axes that are read at a known position; a number if all axes are."""
    for axis in reversed(range(len(shape))):
        entry = indices[axis].constant
        if entry is None:
            continue
        if not 0 <= entry < shape[axis]:
            raise EvaluationError(f"a table of {shape} is read at {entry} along axis {axis}")
        after = math.prod(shape[axis + 1 :])
        values = tuple(v for position, v in enumerate(values) if position // after % shape[axis] == entry)
        shape, indices = shape[:axis] + shape[axis + 1 :], indices[:axis] + indices[axis + 1 :]
    return Table(shape, values, indices) if shape else Number(values[0])


def parts(body: Scalar) -> tuple[Scalar, ...]:
    """Return the scalars that a scalar is made of."""
    match body:
        case Apply(_, arguments):
            return arguments
        case Guarded(_, then, otherwise):
            return then, otherwise
        case Number() | IndexNumber() | Read() | Table():
            return ()


def walked(body: Scalar, *, opened: bool = False) -> Iterable[Scalar]:
    """Yield a scalar and all scalars inside it, from left to right."""
    if opened and (inner := open_scope(body)) is not None:
        yield from walked(inner.body, opened=True)
        return
    yield body
    for part in parts(body):
        yield from walked(part, opened=opened)


def walked_through(body: Scalar) -> Iterable[Scalar]:
    """Yield a scalar, all scalars inside it, and all scalars inside the scopes that it reads, from left to right."""
    for part in walked(body):
        yield part
        if isinstance(part, Read) and isinstance(part.source, Scope):
            yield from walked_through(part.source.body)


def rebuilt(
    body: Scalar, part: Callable[[Scalar], Scalar], reindex: Callable[[Index], Index] | None = None, choice: Choice = guarded
) -> Scalar:
    """Return a scalar with changed parts and indices; the scalar itself if nothing changes, so that shared parts stay shared."""
    match body:
        case Apply(function, arguments):
            changed = tuple(map(part, arguments))
            return body if all(a is b for a, b in zip(changed, arguments, strict=True)) else Apply(function, changed)
        case Guarded(conditions, then, otherwise):
            first, second = part(then), part(otherwise)
            if reindex is None:
                return body if first is then and second is otherwise else Guarded(conditions, first, second)
            reindexed = tuple(Compare(reindex(c.left), c.operator, reindex(c.right)) for c in conditions)
            result = choice(reindexed, first, second)
            return body if first is then and second is otherwise and result == Guarded(conditions, then, otherwise) else result
        case Number():
            return body
    if reindex is None:
        return body
    match body:
        case IndexNumber(value):
            return body if (changed_value := reindex(value)) == value else IndexNumber(changed_value)
        case Table(shape, values, indices):
            return tabulated(shape, values, tuple(map(reindex, indices)))
        case Read(source, indices):
            return body if (coordinates := tuple(map(reindex, indices))) == indices else Read(source, coordinates)


@dataclass
class Rewriter(ABC):
    """Rebuilds scopes with changed scalars; a scope that is read in several places is rebuilt once, and stays shared."""

    _made: dict[int, tuple[Scope, Scope]] = field(default_factory=dict, init=False)

    def scope(self, scope: Scope) -> Scope:
        entry = self._made.get(id(scope))
        if entry is None:
            entry = self._made[id(scope)] = scope, scope.with_body(self.scalar(scope.body))
        return entry[1]

    @abstractmethod
    def scalar(self, body: Scalar) -> Scalar: ...


def open_scope(body: Scalar) -> Scope | None:
    """Return the scope that a scalar reads if it is an open one, else None."""
    return body.source if isinstance(body, Read) and isinstance(body.source, Scope) and not body.source.traversal else None


def mapped(body: Scalar, change: Callable[[Index], Index], choice: Choice = guarded, *, opened: bool = False) -> Scalar:
    """Return a body with every index changed; conditions that ranges then decide are removed."""

    def part(inner: Scalar) -> Scalar:
        if opened and (source := open_scope(inner)) is not None:
            return Read(Scope((), source.summation, source.reduction, part(source.body)), ())
        return rebuilt(inner, part, change, choice)

    return part(body)


def with_reads(body: Scalar, change: Callable[[Read], Scalar]) -> Scalar:
    """Return a body with every read replaced; the body itself if no read changes."""
    return change(body) if isinstance(body, Read) else rebuilt(body, lambda part: with_reads(part, change))


def reads_of(body: Scalar) -> Iterable[Read]:
    """Yield the reads of tensors and inner scopes in a body, from left to right."""
    return (part for part in walked(body) if isinstance(part, Read))


def guarded_reads(body: Scalar, conditions: tuple[Compare, ...] = ()) -> Iterable[tuple[Read | Table, tuple[Compare, ...]]]:
    """Yield the reads and tables of a body, each with conditions that hold wherever its value is used."""
    match body:
        case Read() | Table():
            yield body, conditions
        case Guarded(guard, then, otherwise):
            yield from guarded_reads(then, conditions + guard)
            yield from guarded_reads(otherwise, conditions + ((negation(guard[0]),) if len(guard) == 1 else ()))
        case _:
            for part in parts(body):
                yield from guarded_reads(part, conditions)


def indices_of(body: Scalar, *, opened: bool = False) -> Iterable[Index]:
    """Yield every index of a body, including those of conditions."""
    for part in walked(body, opened=opened):
        match part:
            case IndexNumber(value):
                yield value
            case Read(_, indices) | Table(_, _, indices):
                yield from indices
            case Guarded(conditions, _, _):
                for condition in conditions:
                    yield condition.left
                    yield condition.right


def used(body: Scalar) -> frozenset[Iterator]:
    """Return the iterators that a body depends on, including those that its open inner scopes depend on."""
    iterators = set(iterators_of(*indices_of(body)))
    for read in reads_of(body):
        if (inner := open_scope(read)) is not None:
            iterators |= used(inner.body).difference(inner.summation)
    return frozenset(iterators)


def flattened(function: str, body: Scalar) -> tuple[Scalar, ...]:
    """Return the operands of nested applications of an associative function, from left to right, such as the factors of a product."""
    if isinstance(body, Apply) and body.function == function:
        return tuple(part for argument in body.arguments for part in flattened(function, argument))
    return (body,)


def applied(function: str, operands: Iterable[Scalar]) -> Scalar:
    """operands[0] * operands[1] * ... for an associative function ``*``"""
    return reduce(lambda left, right: Apply(function, (left, right)), operands)


def operations(scope: Scope) -> int:
    """Return the number of arithmetic operations of a scope, without those of its inner scopes."""
    points = math.prod(map(length, scope.traversal + scope.summation))
    return points * (_operations(scope.body) + bool(scope.summation))


def _operations(body: Scalar) -> int:
    below = map(_operations, parts(body))
    return max(below) if isinstance(body, Guarded) else isinstance(body, Apply) + sum(below)
