"""Walk and rebuild the bodies of scopes: iterators replaced, guards gathered in front, factors listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from egraph.tensor.expr import bodies
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.conditions import undecided
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, Size, Symbol, floor_divide, index, iterators_of, modulo, substitute
from egraph.tensor.expr.scope import Apply, Compare, Guarded, Read, Reduction, Scalar, Scope

MOST_VALUES = 64
"""Values of an iterator that are tried to see that a division is affine over its range."""
Replacement = Mapping[Iterator, Size]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a rule does not apply."""

    reason: str


def inside_divisions(value: Index, change: Callable[[Index], Index]) -> Index:
    """Return an index with what stands inside its divisions and remainders changed."""
    total = Index(())
    for monomial, coefficient in value.terms:
        product = index(1)
        for atom in monomial:
            match atom:
                case Floor(a, b):
                    product = product * floor_divide(change(a), change(b))
                case Modulo(a, b):
                    product = product * modulo(change(a), change(b))
                case _:
                    product = product * index(atom)
        total = total + product * coefficient
    return total


def mapped(body: Scalar, change: Callable[[Index], Index]) -> Scalar:
    """Return a body with every index changed; conditions that ranges then decide are gone, guards of one alternative are one."""
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
    return mapped(body, lambda value: place(value, names))


def place(value: Index, names: Replacement) -> Index:
    """Return an index with iterators replaced by indices, divisions that are affine over their ranges written so."""
    full = dict[Iterator | Symbol, Size](names.items())

    def read(inner: Read) -> Read:
        return Read(inner.source, tuple(place(i, names) for i in inner.indices))

    return straightened(substitute(value, full, read))


def straightened(value: Index) -> Index:
    """(p + 1) // 2 = p for p < 2: a division that is affine over the range of its one iterator is written so."""
    if not any(isinstance(monomial[0], Floor | Modulo) for monomial, _ in value.terms if len(monomial) == 1):
        return value
    total = Index(())
    for monomial, coefficient in value.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        affine = _affine(atom) if isinstance(atom, Floor | Modulo) else None
        total = total + (Index(((monomial, coefficient),)) if affine is None else affine * coefficient)
    return total


@lru_cache(maxsize=1 << 12)
def _affine(atom: Floor | Modulo) -> Index | None:
    iterators = iterators_of(atom.numerator)
    if len(iterators) != 1 or atom.divisor.constant is None:
        return None
    (iterator,) = iterators
    low, high = index(iterator.low).constant, index(iterator.high).constant
    if low is None or high is None or not 0 < high - low <= MOST_VALUES:
        return None
    values = [substitute(index(atom), {iterator: x}).constant for x in range(low, high)]
    if any(v is None for v in values):
        return None
    known = [v for v in values if v is not None]
    slope = known[1] - known[0] if len(known) > 1 else 0
    if any(v != known[0] + slope * k for k, v in enumerate(known)):
        return None
    return index(iterator) * slope + (known[0] - slope * low)


def pulled(body: Scalar, reduction: Reduction) -> tuple[tuple[Compare, ...], Scalar]:
    """Return (conditions, rest) with body = [conditions ? rest : the reduction's identity]; products pull from their factors."""
    match body:
        case Guarded(conditions, then, otherwise) if otherwise == reduction.identity:
            more, rest = pulled(then, reduction)
            return tuple(dict.fromkeys(conditions + more)), rest
        case Apply("mul", (left, right)) if reduction == "sum":
            (a, x), (b, y) = pulled(left, reduction), pulled(right, reduction)
            return tuple(dict.fromkeys(a + b)), Apply("mul", (x, y)) if a or b else body
    return (), body


def where(conditions: Iterable[Compare], body: Scalar, reduction: Reduction) -> Scalar:
    """[conditions ? body : the reduction's identity], conditions that ranges decide left out."""
    left = undecided(conditions)
    if left is None:
        return reduction.identity
    more, rest = pulled(body, reduction)
    every = tuple(dict.fromkeys(left + more))
    return Guarded(every, rest, reduction.identity) if every else rest


def fresh(name: str, size: int, taken: Iterable[Iterator]) -> Iterator:
    """Return an iterator over [0, size) with a name that is not taken."""
    names = {i.name for i in taken}
    while name in names:
        name += "'"
    return Iterator(name, 0, size)


def every(scope: Scope) -> tuple[Iterator, ...]:
    return scope.traversal + scope.summation


def counted(scope: Scope) -> Refusal | None:
    """Refuse a scope whose ranges are symbolic or do not start at 0 (canonical scopes do)."""
    for iterator in every(scope):
        if index(iterator.low).constant != 0 or index(iterator.high).constant is None:
            return Refusal(f"the range of {iterator.name} must be known and start at 0")
    return None
