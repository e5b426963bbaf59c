"""Collect index equations from two factors that might be equal: what the positions of their reads say of the iterators."""

from __future__ import annotations

from collections.abc import Iterable

from verify.forms import Choice, Part, Read, Sum, choices_of, name_of, signature
from verify.polynomials import Polynomial


def equations_of(parts: Iterable[tuple[Part, Part]]) -> tuple[list[Polynomial], set[int], set[int]]:
    """Return differences of positions, and the iterators bound inside the left and the right factors."""
    found: tuple[list[Polynomial], set[int], set[int]] = [], set(), set()
    for left, right in parts:
        _parts(left, right, found)
    return found


Found = tuple[list[Polynomial], set[int], set[int]]


def _parts(left: Part, right: Part, found: Found) -> None:
    if isinstance(left, Read) and isinstance(right, Read) and len(left.indices) == len(right.indices):
        found[0].extend(a - b for a, b in zip(left.indices, right.indices, strict=True))
    if type(left) is type(right):
        for choice, other in zip(choices_of(left), choices_of(right), strict=False):
            _choices(choice, other, found)


def _choices(left: Choice, right: Choice, found: Found) -> None:
    found[1].update(left.iterators)
    found[2].update(right.iterators)
    _sums(left.value, right.value, found)


def _sums(left: Sum, right: Sum, found: Found) -> None:
    """Pair the terms in order among those with the same signature."""
    waiting = list(right.terms)
    for term in left.terms:
        names = signature(term)
        partner = next((t for t in waiting if signature(t) == names), None)
        if partner is None:
            continue
        waiting = [t for t in waiting if t is not partner]
        found[1].update(term.iterators)
        found[2].update(partner.iterators)
        ours, theirs = (sorted(t.parts, key=name_of) for t in (term, partner))
        for a, b in zip(ours, theirs, strict=True):
            _parts(a, b, found)


def equations_of_choices(left: Choice, right: Choice) -> tuple[list[Polynomial], set[int], set[int]]:
    """Return the same for two choices of an extremum."""
    found: tuple[list[Polynomial], set[int], set[int]] = [], set(), set()
    _choices(left, right, found)
    return found
