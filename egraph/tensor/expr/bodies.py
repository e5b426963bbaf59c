"""Walk and rebuild the bodies of scopes. Inner scopes that a body reads are closed: of them only the indices count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from egraph.tensor.expr.compose import guarded, tabulated
from egraph.tensor.expr.index import Index, length
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table

Choice = Callable[[Iterable[Compare], Scalar, Scalar], Scalar]
"""Builds ``then`` where all conditions hold, else ``otherwise``."""


def mapped(body: Scalar, change: Callable[[Index], Index], choice: Choice = guarded) -> Scalar:
    """Return a body with every index changed; conditions that ranges then decide are gone."""
    match body:
        case Number():
            return body
        case IndexNumber(value):
            return IndexNumber(change(value))
        case Table(shape, values, indices):
            return tabulated(shape, values, tuple(map(change, indices)))
        case Read(source, indices):
            return Read(source, tuple(map(change, indices)))
        case Apply(function, arguments):
            return Apply(function, tuple(mapped(argument, change, choice) for argument in arguments))
        case Guarded(conditions, then, otherwise):
            changed = [Compare(change(c.left), c.operator, change(c.right)) for c in conditions]
            return choice(changed, mapped(then, change, choice), mapped(otherwise, change, choice))


def with_reads(body: Scalar, change: Callable[[Read], Scalar]) -> Scalar:
    """Return a body with every read exchanged; the body itself, where each becomes itself."""
    match body:
        case Read():
            return change(body)
        case Apply(function, arguments):
            changed = tuple(with_reads(argument, change) for argument in arguments)
            return body if all(a is b for a, b in zip(changed, arguments, strict=True)) else Apply(function, changed)
        case Guarded(conditions, then, otherwise):
            one, two = with_reads(then, change), with_reads(otherwise, change)
            return body if one is then and two is otherwise else Guarded(conditions, one, two)
        case Number() | IndexNumber() | Table():
            return body


def reads_of(body: Scalar) -> Iterable[Read]:
    """Yield the reads of tensors and inner scopes in a body, from left to right."""
    match body:
        case Read():
            yield body
        case Apply(_, arguments):
            for argument in arguments:
                yield from reads_of(argument)
        case Guarded(_, then, otherwise):
            yield from reads_of(then)
            yield from reads_of(otherwise)
        case Number() | IndexNumber() | Table():
            pass


def indices_of(body: Scalar) -> Iterable[Index]:
    """Yield every index of a body, those of conditions too."""
    match body:
        case IndexNumber(value):
            yield value
        case Read(_, indices) | Table(_, _, indices):
            yield from indices
        case Apply(_, arguments):
            for argument in arguments:
                yield from indices_of(argument)
        case Guarded(conditions, then, otherwise):
            for condition in conditions:
                yield condition.left
                yield condition.right
            yield from indices_of(then)
            yield from indices_of(otherwise)


def operations(scope: Scope) -> int:
    """Return the arithmetic operations of a scope, its inner scopes' not counted."""
    points = math.prod(map(length, scope.traversal + scope.summation))
    return points * (_operations(scope.body) + bool(scope.summation))


def _operations(body: Scalar) -> int:
    match body:
        case Apply(_, arguments):
            return 1 + sum(map(_operations, arguments))
        case Guarded(_, then, otherwise):
            return max(_operations(then), _operations(otherwise))
        case Number() | IndexNumber() | Read() | Table():
            return 0
