"""Reasoning that pays where all sizes are numbers: conditions added up, and digits of positions as they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from verify.polynomials import Polynomial, constant

_COMBINED = 4  # conditions that are added up


def follows(value: Polynomial, conditions: Sequence[Polynomial], bounded: Callable[[Polynomial], bool], depth: int = _COMBINED) -> bool:
    """Return whether value >= 0 follows from conditions that are >= 0: multiples are subtracted so that the largest coefficient vanishes.

    ``bounded`` says whether ranges alone show that something is not negative.
    """
    for monomial in sorted((m for m in value.terms if m), key=lambda m: (-abs(value.terms[m]), m)):
        usable = [one for one in conditions if one.terms.get(monomial, 0) * value.terms[monomial] > 0]
        for one in usable:
            times, left = divmod(value.terms[monomial], one.terms[monomial])
            if left:
                continue
            rest = value.plus(one, -times)
            if bounded(rest) or (depth > 1 and follows(rest, conditions, bounded, depth - 1)):
                return True
        if usable:
            return False
    return False


def digit(
    numerator: Polynomial, divisor: int, within: Callable[[Polynomial, Polynomial], int | None],
    floor: Callable[[Polynomial, Polynomial], Polynomial],
) -> Polynomial | None:  # fmt: skip
    """(g * x + y) // (g * d) = (x + y // g) // d where y // g is known, y being all that is no multiple of g as it stands"""
    for factor in sorted({gcd(divisor, c) for m, c in numerator.terms.items() if m}, reverse=True):
        rest = Polynomial({m: c for m, c in numerator.terms.items() if not m or c % factor})
        if factor < 2 or (known := within(rest, constant(factor))) is None:
            continue
        upper = Polynomial({m: c // factor for m, c in numerator.terms.items() if m and not c % factor}) + constant(known)
        return upper if factor == divisor else floor(upper, constant(divisor // factor))
    return None
