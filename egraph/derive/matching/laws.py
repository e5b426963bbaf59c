"""Laws of indices that hold by ranges or between terms: mixed-radix numbers taken apart, quotients and remainders joined again."""

from __future__ import annotations

import math

from egraph.tensor.expr.index import Atom, Floor, Index, Modulo, bounds, floor_divide, index, modulo


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
