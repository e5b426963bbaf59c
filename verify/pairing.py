"""Guess which terms and parts may be equal: terms of a sum by their signatures, parts of terms by their names.

Paired parts have to read at equal positions. These index equations determine the iterators of one side in terms of the other's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, permutations, product
from typing import TypeAlias

from verify.forms import Choice, Part, Read, Sum, Summand, choices_of, name_of, signature
from verify.polynomials import Polynomial

PAIRINGS = 24
"""Most orders in which parts of one name are paired."""
Equations: TypeAlias = tuple[list[Polynomial], set[int], set[int]]
"""Differences of positions that have to be zero, and the iterators bound inside the left and the right factors."""


def equations_of(parts: Iterable[tuple[Part, Part]]) -> Equations:
    """Return the equations between iterators that follow if the pairs of parts are equal."""
    equations: Equations = [], set(), set()
    for left, right in parts:
        _parts(left, right, equations)
    return equations


def _parts(left: Part, right: Part, equations: Equations) -> None:
    if isinstance(left, Read) and isinstance(right, Read) and len(left.indices) == len(right.indices):
        equations[0].extend(a - b for a, b in zip(left.indices, right.indices, strict=True))
    if type(left) is type(right):
        for choice, partner in zip(choices_of(left), choices_of(right), strict=False):
            _choices(choice, partner, equations)


def _choices(left: Choice, right: Choice, equations: Equations) -> None:
    equations[1].update(left.iterators)
    equations[2].update(right.iterators)
    _sums(left.value, right.value, equations)


def _sums(left: Sum, right: Sum, equations: Equations) -> None:
    """Pair the terms in order among those with the same signature."""
    waiting = list(right.terms)
    for term in left.terms:
        names = signature(term)
        partner = next((t for t in waiting if signature(t) == names), None)
        if partner is None:
            continue
        waiting = [t for t in waiting if t is not partner]
        equations[1].update(term.iterators)
        equations[2].update(partner.iterators)
        ours, theirs = (sorted(t.parts, key=name_of) for t in (term, partner))
        for a, b in zip(ours, theirs, strict=True):
            _parts(a, b, equations)


def equations_of_choices(left: Choice, right: Choice) -> Equations:
    """Return the same for two choices of an extremum."""
    equations: Equations = [], set(), set()
    _choices(left, right, equations)
    return equations


def pairs_of_terms(terms: list[Summand]) -> Iterable[tuple[Summand, Summand]]:
    """Yield pairs of terms with the same signature, those of opposite sign first."""
    names = [signature(term) for term in terms]
    later: list[tuple[Summand, Summand]] = []
    for i, first in enumerate(terms):
        for j in range(i + 1, len(terms)):
            if names[i] == names[j]:
                if opposed(first, terms[j]):
                    yield first, terms[j]
                else:
                    later.append((first, terms[j]))
    yield from later


def opposed(first: Summand, second: Summand) -> bool:
    """Return whether the coefficients of two terms seem to have opposite signs, by their first ones; it is a hint that no proof uses."""
    return _sign(first) != _sign(second)


def _sign(term: Summand) -> int:
    return -1 if next(iter(term.numerator.terms.values()), 1) < 0 else 1


def pairings(left: tuple[Part, ...], right: tuple[Part, ...]) -> Iterable[tuple[tuple[Part, Part], ...]]:
    """Yield all pairings of parts with equal names."""
    groups: dict[str, tuple[list[Part], list[Part]]] = {}
    for part in left:
        groups.setdefault(name_of(part), ([], []))[0].append(part)
    for part in right:
        groups.setdefault(name_of(part), ([], []))[1].append(part)
    choices = [[list(zip(a, order, strict=True)) for order in islice(permutations(b), PAIRINGS)] for a, b in groups.values()]
    for chosen in product(*choices):
        yield tuple(pair for group in chosen for pair in group)
