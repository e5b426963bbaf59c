"""The iterators that indices depend on, and laws of quotients and remainders beyond those that constructors apply.

``LAWS`` lists every law of integers by which indices and conditions are rewritten, here and in ``index``, ``conditions`` and the
prover's facts. Tests prove each law for all integers and check every function against the laws that it names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from egraph.tensor.expr.index import (
    Atom,
    DataIndex,
    Floor,
    Index,
    Iterator,
    Modulo,
    Size,
    atoms,
    bounds,
    floor_divide,
    index,
    modulo,
    substitute,
)


@dataclass(frozen=True, slots=True)
class Law:
    """``left == right`` for all integers at which all of ``given`` holds, in Python's notation; two conditions are equivalent."""

    name: str
    left: str
    right: str
    given: tuple[str, ...] = ()


_DIVISOR = "d >= 1"
_DIGIT = ("a >= 1", "c >= 1", "0 <= low", "low < a")
LAWS = (
    Law("quotient of a sum", "(d * q + r) // d", "q + r // d", (_DIVISOR,)),
    Law("remainder of a sum", "(d * q + r) % d", "r % d", (_DIVISOR,)),
    Law("quotient by range", "r // d", "k", (_DIVISOR, "k * d <= r", "r < k * d + d")),
    Law("remainder by range", "r % d", "r - k * d", (_DIVISOR, "k * d <= r", "r < k * d + d")),
    Law("quotient of a quotient", "(x // d + n) // c", "(x + n * d) // (d * c)", (_DIVISOR, "c >= 1")),
    Law("quotient of high digits", "(a * high + low) // (a * c)", "high // c", _DIGIT),
    Law("remainder of high digits", "(a * high + low) % (a * c)", "a * (high % c) + low", _DIGIT),
    Law("common factor", "(a * x + y) // (a * c)", "(x + y // a) // c", ("a >= 1", "c >= 1")),
    Law("digits joined", "d * (x // d) + x % d", "x", (_DIVISOR,)),
    Law("strictly below", "x < y", "0 <= y - x - 1"),
    Law("bound in lowest terms", "0 <= d * x + c", "0 <= x + c // d", (_DIVISOR,)),
    Law("equation in lowest terms", "0 == d * x + c", "c % d == 0 and 0 == x + c // d", (_DIVISOR,)),
    Law("equation from bounds", "0 <= x and 0 <= -x", "0 == x"),
    Law("quotient at least", "0 <= x // d + r", "0 <= x + d * r", (_DIVISOR,)),
    Law("quotient at most", "0 <= r - x // d", "0 <= d * r + d - 1 - x", (_DIVISOR,)),
)
"""Divisions are floor divisions, as everywhere."""


def iterators_of(*values: Size) -> frozenset[Iterator]:
    """Return every iterator that indices depend on, including those inside divisions and data indices."""
    iterators: set[Iterator] = set()
    for value in values:
        if isinstance(value, Index):
            _note_iterators(value, iterators)
    return frozenset(iterators)


def _note_iterators(value: Index, iterators: set[Iterator]) -> None:
    for monomial, _ in value.terms:
        for atom in monomial:
            match atom:
                case Iterator():
                    iterators.add(atom)
                case Floor(numerator, divisor) | Modulo(numerator, divisor):
                    _note_iterators(numerator, iterators)
                    _note_iterators(divisor, iterators)
                case DataIndex(read):
                    for coordinate in read.indices:
                        _note_iterators(coordinate, iterators)


def coefficient(value: Index, iterator: Iterator) -> int | None:
    """Return c if value = c * iterator + (terms without it), or None if the iterator occurs otherwise."""
    factor = 0
    for monomial, c in value.terms:
        if monomial == (iterator,):
            factor = c
        elif any(iterator in iterators_of(index(atom)) for atom in monomial):
            return None
    return factor


Affine: TypeAlias = tuple[int, dict[Iterator, int]]
"""A constant and the coefficient of each iterator."""


def affine(value: Index) -> Affine | None:
    """Return the constant and the coefficients of an index that is linear in its iterators."""
    coefficients: dict[Iterator, int] = {}
    for monomial, c in value.terms:
        if len(monomial) == 1 and isinstance(monomial[0], Iterator):
            coefficients[monomial[0]] = c
        elif monomial:
            return None
    return value.constant_part, coefficients


def with_atoms(value: Index, change: Callable[[Atom], Index]) -> Index:
    """Return an index with every atom replaced."""
    total = Index(())
    for monomial, c in value.terms:
        product = index(c)
        for atom in monomial:
            product = product * change(atom)
        total = total + product
    return total


def inside_divisions(value: Index, change: Callable[[Index], Index]) -> Index:
    """Return an index with the numerators and divisors of its divisions and remainders changed."""

    def of(atom: Atom) -> Index:
        match atom:
            case Floor(numerator, divisor):
                return floor_divide(change(numerator), change(divisor))
            case Modulo(numerator, divisor):
                return modulo(change(numerator), change(divisor))
        return index(atom)

    return with_atoms(value, of)


def tidy(value: Index) -> Index:
    """Return an equal index: quotients and remainders are simplified by the digits that they cut off, digits of one number are joined."""
    total = with_atoms(value, _tidy_atom)
    joined = rejoined(total)
    return total if joined is total else tidy(joined)


def _tidy_atom(atom: Atom) -> Index:
    """(a H + L) // (a c) = H // c and (a H + L) % (a c) = a (H % c) + L where 0 <= L < a.

    These are ``quotient of high digits`` and ``remainder of high digits``.
    """
    if not isinstance(atom, Floor | Modulo):
        return index(atom)
    numerator, by = tidy(atom.numerator), atom.divisor.constant
    divide = floor_divide if isinstance(atom, Floor) else modulo
    parts = None if by is None else _cut(numerator, by)
    if by is None or parts is None:
        return divide(numerator, atom.divisor)
    unit, high, low = parts
    cut = divide(high, index(by // unit))
    return cut if isinstance(atom, Floor) else cut * unit + low


def _cut(value: Index, divisor: int) -> tuple[int, Index, Index] | None:
    """Return (a, H, L) with value = a H + L and 0 <= L < a, for the largest a > 1 that divides ``divisor`` and a coefficient."""
    borders = {divisor, *(math.gcd(divisor, coefficient) for monomial, coefficient in value.terms if monomial)}
    for a in sorted(borders - {1}, reverse=True):
        for only_multiples in (True, False):
            upper, lower = index(0), index(0)
            for monomial, coefficient in value.terms:
                quotient, remainder = divmod(coefficient, a) if not (only_multiples and monomial and coefficient % a) else (0, coefficient)
                term = Index(((monomial, 1),))
                upper, lower = upper + term * quotient, lower + term * remainder
            limits = bounds(lower)
            if upper.terms and lower.terms and limits is not None and limits[0] >= 0 and limits[1] < a:
                return a, upper, lower
    return None


def rejoined(value: Index) -> Index:
    """c d (x // d) + c (x % d) = c x (``digits joined``), applied repeatedly; the index itself if it has no such terms."""
    terms = dict(value.terms)
    for monomial, c in value.terms:
        factor = monomial[0] if len(monomial) == 1 else None
        if not isinstance(factor, Modulo) or (by := factor.divisor.constant) is None:
            continue
        quotient = floor_divide(factor.numerator, factor.divisor)
        if quotient.atom is not None and terms.get((quotient.atom,)) == c * by:
            return rejoined(value - index(factor) * c - quotient * (c * by) + factor.numerator * c)
    return value


MOST_VALUES = 64
"""The most values of an iterator that are tried to check that a division is affine over its range."""


def straightened(value: Index) -> Index:
    """(p + 1) // 2 = p for p < 2: a division that is affine over the range of its one iterator is written as an affine index."""
    if not any(isinstance(monomial[0], Floor | Modulo) for monomial, _ in value.terms if len(monomial) == 1):
        return value
    total = Index(())
    for monomial, c in value.terms:
        atom = monomial[0] if len(monomial) == 1 else None
        straight = _straight(atom) if isinstance(atom, Floor | Modulo) else None
        total = total + (Index(((monomial, c),)) if straight is None else straight * c)
    return total


@lru_cache(maxsize=1 << 12)
def _straight(atom: Floor | Modulo) -> Index | None:
    iterators = iterators_of(atom.numerator)
    if len(iterators) != 1 or atom.divisor.constant is None or any(isinstance(inner, DataIndex) for inner in atoms(atom.numerator)):
        return None
    (iterator,) = iterators
    limits = bounds(index(iterator))
    if limits is None or limits[1] - limits[0] >= MOST_VALUES:
        return None
    low, high = limits
    values = [substitute(index(atom), {iterator: x}).constant for x in range(low, high + 1)]
    if None in values:
        return None
    first, *later = (value for value in values if value is not None)
    slope = later[0] - first if later else 0
    if any(value != first + slope * k for k, value in enumerate(later, 1)):
        return None
    return index(iterator) * slope + (first - slope * low)
