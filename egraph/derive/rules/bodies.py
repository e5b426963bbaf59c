"""Walk and rebuild the bodies of scopes: replace iterators, hoist guards, list factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from egraph.tensor.expr import bodies
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.conditions import undecided
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, substitute
from egraph.tensor.expr.laws import straightened
from egraph.tensor.expr.scope import ZERO, Apply, Compare, Guarded, Number, Read, Reduction, Scalar, Scope

Replacement = Mapping[Iterator, Size]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a rule does not apply."""

    reason: str


def mapped(body: Scalar, change: Callable[[Index], Index]) -> Scalar:
    """Return a body with every index changed; conditions that ranges then decide are dropped, guards of one alternative are joined."""
    return bodies.mapped(body, change, _choice)


def _choice(conditions: Iterable[Compare], then: Scalar, otherwise: Scalar) -> Scalar:
    """[c ? [d ? x : y] : y] = [c, d ? x : y]"""
    body = guarded(conditions, then, otherwise)
    match body:
        case Guarded(outer, Guarded(inner, then, other), otherwise) if other == otherwise:
            return Guarded(tuple(dict.fromkeys(outer + inner)), then, otherwise)
    return body


def replaced(body: Scalar, names: Replacement) -> Scalar:
    """Return a body with iterators replaced by indices."""
    return mapped(body, lambda value: replaced_index(value, names))


def replaced_index(value: Index, names: Replacement) -> Index:
    """Return an index with iterators replaced by indices; divisions that are affine over their ranges are written as affine."""
    full = dict[Iterator | Symbol, Size](names.items())

    def read(inner: Read) -> Read:
        return Read(inner.source, tuple(replaced_index(i, names) for i in inner.indices))

    return straightened(substitute(value, full, read))


def hoisted(body: Scalar) -> tuple[tuple[Compare, ...], Scalar, Number | None]:
    """Return the conditions under which a body is not one fixed number, its value there, and that number."""
    match body:
        case Guarded(conditions, then, Number() as otherwise):
            inner, value, number = hoisted(then)
            return (conditions + inner, value, otherwise) if number in (None, otherwise) else (conditions, then, otherwise)
        case Guarded(conditions, then, otherwise):
            first, second = hoisted(then), hoisted(otherwise)
            if first[0] and set(first[0]) == set(second[0]) and first[2] == second[2]:  # both sides are padded alike
                return first[0], Guarded(conditions, first[1], second[1]), first[2]
        case Apply("mul", (left, right)):
            sides = hoisted(left), hoisted(right)
            if all(number in (None, ZERO) for _, _, number in sides):
                conditions = sides[0][0] + sides[1][0]
                return conditions, Apply("mul", (sides[0][1], sides[1][1])), ZERO if conditions else None
    return (), body, None


def pulled(body: Scalar, reduction: Reduction) -> tuple[tuple[Compare, ...], Scalar]:
    """Return (conditions, rest) with body = [conditions ? rest : the reduction's identity]."""
    conditions, value, otherwise = hoisted(body)
    return (tuple(dict.fromkeys(conditions)), value) if otherwise == reduction.identity else ((), body)


def where(conditions: Iterable[Compare], body: Scalar, reduction: Reduction) -> Scalar:
    """[conditions ? body : the reduction's identity], without conditions that ranges decide"""
    left = undecided(conditions)
    if left is None:
        return reduction.identity
    more, value = pulled(body, reduction)
    every = tuple(dict.fromkeys(left + more))
    return Guarded(every, value, reduction.identity) if every else value


def fresh(name: str, size: int, taken: Iterable[Iterator]) -> Iterator:
    """Return an iterator over [0, size) with a name that is not taken."""
    names = {i.name for i in taken}
    while name in names:
        name += "'"
    return Iterator(name, 0, size)


def every(scope: Scope) -> tuple[Iterator, ...]:
    return scope.traversal + scope.summation


def counted(scope: Scope) -> Refusal | None:
    """Return a refusal for a scope whose ranges are symbolic or do not start at 0 (those of canonical scopes do)."""
    for iterator in every(scope):
        if index(iterator.low).constant != 0 or index(iterator.high).constant is None:
            return Refusal(f"the range of {iterator.name} must be known and start at 0")
    return None
