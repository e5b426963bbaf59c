"""Laws of indices that hold by ranges or between terms: mixed-radix numbers taken apart, quotients and remainders joined again."""

from __future__ import annotations

import math
from collections.abc import Callable

from egraph.tensor.expr.compose import guarded, tabulated
from egraph.tensor.expr.index import Atom, Floor, Index, Iterator, Modulo, bounds, floor_divide, index, modulo
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table

Affine = tuple[int, dict[Iterator, int]]
"""A constant and the coefficient of each iterator."""


def affine(value: Index) -> Affine | None:
    """Return the constant and the coefficients of an index that is linear in its iterators."""
    constant, coefficients = 0, dict[Iterator, int]()
    for monomial, coefficient in value.terms:
        if not monomial:
            constant = coefficient
        elif len(monomial) == 1 and isinstance(monomial[0], Iterator):
            coefficients[monomial[0]] = coefficient
        else:
            return None
    return constant, coefficients


def tidy(value: Index) -> Index:
    """Return an equal index: ``d*(x//d) + x%d`` is x, and divisions see which terms they cut off.

    (a H + L) // d = H // (d/a) and (a H + L) % d = a (H % (d/a)) + L, where a divides d and 0 <= L < a.
    """
    total = index(0)
    for monomial, coefficient in value.terms:
        product = index(coefficient)
        for atom in monomial:
            product = product * _tidy_atom(atom)
        total = total + product
    return _joined(total)


def _tidy_atom(atom: Atom) -> Index:
    match atom:
        case Floor(numerator, divisor):
            numerator, by = tidy(numerator), divisor.constant
            parts = None if by is None else _cut(numerator, by)
            return floor_divide(numerator, divisor) if parts is None else floor_divide(parts[1], index((by or 0) // parts[0]))
        case Modulo(numerator, divisor):
            numerator, by = tidy(numerator), divisor.constant
            parts = None if by is None else _cut(numerator, by)
            if parts is None:
                return modulo(numerator, divisor)
            return modulo(parts[1], index((by or 0) // parts[0])) * parts[0] + parts[2]
        case _:
            return index(atom)


def _cut(value: Index, divisor: int) -> tuple[int, Index, Index] | None:
    """Return (a, H, L) with value = a H + L and 0 <= L < a, for the largest a > 1 that divides ``divisor`` and a coefficient."""
    borders = {divisor, *(math.gcd(divisor, coefficient) for monomial, coefficient in value.terms if monomial)}
    for a in sorted(borders - {1}, reverse=True):
        for whole in (True, False):
            upper, lower = index(0), index(0)
            for monomial, coefficient in value.terms:
                quotient, rest = divmod(coefficient, a) if not (whole and monomial and coefficient % a) else (0, coefficient)
                term = Index(((monomial, 1),))
                upper, lower = upper + term * quotient, lower + term * rest
            limits = bounds(lower)
            if upper.terms and lower.terms and limits is not None and limits[0] >= 0 and limits[1] < a:
                return a, upper, lower
    return None


def _joined(value: Index) -> Index:
    """c d (x // d) + c (x % d) = c x"""
    terms = dict(value.terms)
    for monomial, coefficient in value.terms:
        if len(monomial) != 1 or not isinstance(monomial[0], Modulo):
            continue
        by = monomial[0].divisor.constant
        partner = (Floor(monomial[0].numerator, monomial[0].divisor),)
        if by is not None and terms.get(partner) == coefficient * by:
            rest = value - Index((((partner), coefficient * by),)) - Index(((monomial, coefficient),))
            return tidy(rest + monomial[0].numerator * coefficient)
    return value


def change(body: Scalar, of: Callable[[Index], Index]) -> Scalar:
    """Return a body with every index changed, those of open inner scopes too; conditions that ranges decide are gone."""
    match body:
        case Number():
            return body
        case Read(Scope((), summation, reduction, inner), ()):
            return Read(Scope((), summation, reduction, change(inner, of)), ())
        case IndexNumber(value):
            return IndexNumber(of(value))
        case Table(shape, values, indices):
            return tabulated(shape, values, tuple(map(of, indices)))
        case Read(source, indices):
            return Read(source, tuple(map(of, indices)))
        case Apply(function, arguments):
            return Apply(function, tuple(change(argument, of) for argument in arguments))
        case Guarded(conditions, then, otherwise):
            changed = [Compare(of(c.left), c.operator, of(c.right)) for c in conditions]
            return guarded(changed, change(then, of), change(otherwise, of))


def indices_of(body: Scalar) -> list[Index]:
    """Return every index of a body: of reads, tables, conditions and index numbers, and of open inner scopes."""
    found: list[Index] = []

    def note(value: Index) -> Index:
        found.append(value)
        return value

    _each(body, note)
    return found


def _each(body: Scalar, note: Callable[[Index], Index]) -> None:
    match body:
        case Number():
            pass
        case Read(Scope((), _, _, inner), ()):
            _each(inner, note)
        case IndexNumber(value):
            note(value)
        case Table(_, _, indices) | Read(_, indices):
            for value in indices:
                note(value)
        case Apply(_, arguments):
            for argument in arguments:
                _each(argument, note)
        case Guarded(conditions, then, otherwise):
            for condition in conditions:
                note(condition.left)
                note(condition.right)
            _each(then, note)
            _each(otherwise, note)
