"""Forget what scalar functions mean: sides that are equal even then need no law about finite or non-zero values."""

from __future__ import annotations

from fractions import Fraction

from egraph.expr.index import DataIndex, Floor, Index, Modulo, index
from egraph.expr.scope import Apply, Compare, Guarded, Number, Read, Scalar, Scope

KEPT = frozenset({"add", "sub", "neg", "mul"})
"""Functions whose laws hold for all numbers, up to rounding."""


def forgotten(scope: Scope) -> Scope:
    """Return the scope with every other function, and every constant that is not a fraction, as one that nothing is known of."""
    memo: dict[int, tuple[Scope, Scope]] = {}
    return _scope(scope, memo)


def _scope(scope: Scope, memo: dict[int, tuple[Scope, Scope]]) -> Scope:
    known = memo.get(id(scope))
    if known is None:
        known = memo[id(scope)] = scope, Scope(scope.traversal, scope.summation, scope.reduction, _scalar(scope.body, memo))
    return known[1]


def _scalar(body: Scalar, memo: dict[int, tuple[Scope, Scope]]) -> Scalar:
    match body:
        case Number(value) if not isinstance(value, Fraction) or value.denominator >= 1 << 30:
            return Apply(f"~{value}", ())
        case Apply(function, arguments):
            name = function if function in KEPT else f"~{function}"
            return Apply(name, tuple(_scalar(argument, memo) for argument in arguments))
        case Guarded(conditions, then, otherwise):
            return Guarded(tuple(_compare(c, memo) for c in conditions), _scalar(then, memo), _scalar(otherwise, memo))
        case Read():
            return _read(body, memo)
    return body


def _read(read: Read, memo: dict[int, tuple[Scope, Scope]]) -> Read:
    source = _scope(read.source, memo) if isinstance(read.source, Scope) else read.source
    return Read(source, tuple(_index(place, memo) for place in read.indices))


def _compare(condition: Compare, memo: dict[int, tuple[Scope, Scope]]) -> Compare:
    return Compare(_index(condition.left, memo), condition.operator, _index(condition.right, memo))


def _index(value: Index, memo: dict[int, tuple[Scope, Scope]]) -> Index:
    if not any(isinstance(atom, DataIndex | Floor | Modulo) for monomial, _ in value.terms for atom in monomial):
        return value
    total = Index(())
    for monomial, coefficient in value.terms:
        product = index(coefficient)
        for atom in monomial:
            match atom:
                case DataIndex(read):
                    product = product * index(DataIndex(_read(read, memo)))
                case Floor(a, b):
                    product = product * (_index(a, memo) // _index(b, memo))
                case Modulo(a, b):
                    product = product * (_index(a, memo) % _index(b, memo))
                case _:
                    product = product * index(atom)
        total = total + product
    return total
