"""Reasoning that pays only if all sizes are numbers: sums of conditions, and digits of positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from egraph.tensor.expr.index import Index, Iterator, bounds
from verify.polynomials import FloorAtom, Monomial, Polynomial, constant, entry, to_index, to_polynomial

_COMBINED = 4
"""Most conditions that are added up."""


def follows(value: Polynomial, conditions: Sequence[Polynomial], bounded: Callable[[Polynomial], bool], depth: int = _COMBINED) -> bool:
    """Return whether value >= 0 follows from conditions that are >= 0: multiples are subtracted so that the largest coefficient vanishes.

    ``bounded`` decides whether ranges alone show that a polynomial is nonnegative.
    """
    for monomial in sorted((m for m in value.terms if m), key=lambda m: (-abs(value.terms[m]), _names(m))):
        usable = [condition for condition in conditions if condition.terms.get(monomial, 0) * value.terms[monomial] > 0]
        for condition in usable:
            times, left = divmod(value.terms[monomial], condition.terms[monomial])
            if left:
                continue
            remainder = value.plus(condition, -times)
            if bounded(remainder) or (depth > 1 and follows(remainder, conditions, bounded, depth - 1)):
                return True
        if usable:
            return False
    return False


def least(value: Polynomial) -> int | None:
    """Return the least value of a sum of iterators with numeric ranges; None for other polynomials."""
    total = 0
    for monomial, coefficient in value.terms.items():
        if not monomial:
            total += coefficient
            continue
        atom_entry = entry(monomial[0])
        if len(monomial) > 1 or not isinstance(atom_entry.kind, Iterator) or atom_entry.low is None or atom_entry.high is None:
            return None
        low, high = atom_entry.low.constant, atom_entry.high.constant
        if low is None or high is None:
            return None
        total += coefficient * (low if coefficient > 0 else high - 1)
    return total


def multiplied_out(value: Polynomial) -> Polynomial | None:
    """e // d + r >= 0 means e + d r >= 0, and r - e // d >= 0 means d r + d - 1 - e >= 0; None if there is no such division.

    These are ``quotient at least`` and ``quotient at most``.
    """
    for monomial, coefficient in sorted(value.terms.items(), key=lambda term: _names(term[0])):
        kind = entry(monomial[0]).kind if len(monomial) == 1 else None
        if not isinstance(kind, FloorAtom) or abs(coefficient) != 1 or (kind.divisor.constant or 0) < 1:
            continue
        others = Polynomial({m: c for m, c in value.terms.items() if m != monomial})
        if monomial[0] in others.atoms():
            continue
        scaled = others * kind.divisor
        return scaled + kind.numerator if coefficient == 1 else scaled + kind.divisor - constant(1) - kind.numerator
    return None


def digit(
    numerator: Polynomial, divisor: int, within: Callable[[Polynomial, Polynomial], int | None],
    floor: Callable[[Polynomial, Polynomial], Polynomial],
) -> Polynomial | None:  # fmt: skip
    """(g * x + y) // (g * d) = (x + y // g) // d if y // g is known, where y consists of the terms that are no multiples of g"""
    value = to_index(numerator)  # with remainders as ``%``
    for factor in sorted({gcd(divisor, c) for m, c in value.terms if m}, reverse=True):
        if factor < 2:
            continue
        lower = Index(tuple((m, c) for m, c in value.terms if not m or c % factor))
        carried = quotient(lower, factor)
        if carried is None:
            carried = within(to_polynomial(lower), constant(factor))
        if carried is not None:
            upper = to_polynomial(Index(tuple((m, c // factor) for m, c in value.terms if m and not c % factor))) + constant(carried)
            return upper if factor == divisor else floor(upper, constant(divisor // factor))
    return None


def _names(monomial: Monomial) -> list[str]:
    """Return a key that orders monomials the same in every process; numbers of atoms depend on earlier proofs."""
    return sorted(entry(atom).key for atom in monomial)


def quotient(value: Index, divisor: int) -> int | None:
    """Return value // divisor if ranges determine it, else None."""
    limits = bounds(value)
    return limits[0] // divisor if limits is not None and limits[0] // divisor == limits[1] // divisor else None
