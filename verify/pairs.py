"""What may be paired with what: terms of a sum by their signatures, parts of terms by their names."""

from __future__ import annotations

from collections.abc import Iterator as Iterable
from itertools import islice, permutations, product

from verify.forms import Part, Summand, name_of, signature

PAIRINGS = 24  # of equal-named parts of two terms


def pairs_of_terms(terms: list[Summand]) -> Iterable[tuple[Summand, Summand]]:
    """Yield pairs of terms with the same signature, those of opposite sign first."""
    names = [signature(term) for term in terms]
    later: list[tuple[Summand, Summand]] = []
    for i, first in enumerate(terms):
        for j in range(i + 1, len(terms)):
            if names[i] == names[j]:
                if _sign(first) * _sign(terms[j]) < 0:
                    yield first, terms[j]
                else:
                    later.append((first, terms[j]))
    yield from later


def _sign(term: Summand) -> int:
    """Return the sign of the first coefficient: a hint for the order of trials only."""
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
