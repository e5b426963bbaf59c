"""Iterators as their digits: sums that read through floor-divisions and remainders become sums over digits.

    sum(z < 8) x[z // 2, z % 2]                = sum(a < 4, b < 2) x[a, b]
    sum(r < 4) [(o + r) % 2 == 0] w[r]         = sum(a < 2) w[2 a + o % 2]

Both are substitutions: the sum runs over the same values, each once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from egraph.tensor.expr.digits import divisors, fitting
from egraph.tensor.expr.index import Index, Iterator, Modulo, index, length
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Compare
from verify.normal.context import Context
from verify.normal.terms import Element, IndexFactor, Term


@dataclass(frozen=True)
class Substitution:
    """``iterator`` equals ``value`` for all values of ``iterators`` at which ``added`` holds; ``solved`` always holds there."""

    iterator: Iterator
    value: Index
    iterators: tuple[Iterator, ...]
    added: tuple[Compare, ...] = ()
    solved: Compare | None = None


def substitution(context: Context, term: Term) -> Substitution | None:
    """Return a substitution that removes a floor-division or a remainder from a term; None if there is none."""
    for condition in term.conditions:
        solved = _congruence(context, condition, term.iterators)
        if solved is not None:
            return solved
    places = [side for condition in term.conditions for side in (condition.left, condition.right)]
    for factor in term.factors:
        if isinstance(factor, Element):
            places += factor.indices
        elif isinstance(factor, IndexFactor):
            places.append(factor.value)
    return _digits(context, places, term.iterators)


def _range(iterator: Iterator) -> range | None:
    low, high = index(iterator.low).constant, index(iterator.high).constant
    return None if low is None or high is None else range(low, high)


def _congruence(context: Context, condition: Compare, iterators: tuple[Iterator, ...]) -> Substitution | None:
    """Solve (c i + rest) % b == k for i, if c has an inverse modulo b."""
    if condition.operator != "==":
        return None
    value = condition.left - condition.right
    remainder, offset = 0, 0
    modulus: Modulo | None = None
    for monomial, coefficient in value.terms:
        match monomial:
            case ():
                offset = coefficient
            case (Modulo() as atom,) if modulus is None and abs(coefficient) == 1:
                modulus, remainder = atom, coefficient
            case _:
                return None
    base = None if modulus is None else modulus.divisor.constant
    if modulus is None or base is None:
        return None
    target = -offset * remainder
    if not 0 <= target < base:
        return None
    for iterator in iterators:
        values = _range(iterator)
        slope = dict(modulus.numerator.terms).get((iterator,), 0)
        others = modulus.numerator - index(iterator) * slope
        if values is None or not slope or gcd(slope, base) != 1 or iterator in iterators_of(others):
            continue
        start = ((target - others) * pow(slope, -1, base) - values.start) % base
        whole = -(-len(values) // base)
        upper = context.fresh(Iterator(iterator.name, 0, whole))
        at = context.simplify(index(upper) * base + start + values.start)
        added = () if len(values) % base == 0 else (Compare(at, "<", index(values.stop)),)
        return Substitution(iterator, at, (upper,), added, condition)
    return None


def _digits(context: Context, places: Iterable[Index], iterators: tuple[Iterator, ...]) -> Substitution | None:
    """Split an iterator i that is read as i // b or i % b, if b divides its range."""
    divided = divisors(places)
    for iterator in iterators:
        values = _range(iterator)
        bases = fitting(iterator, divided.get(iterator, ())) if values and not values.start else ()
        if bases:
            base = bases[0]
            upper, lower = (context.fresh(Iterator(iterator.name, 0, size)) for size in (length(iterator) // base, base))
            return Substitution(iterator, index(upper) * base + lower, (upper, lower))
    return None
