"""Write short sums out where their elements have partners of their own.

``sum(r < 4) [(o - r) % 2 == 0] x[(o - r) // 2] w[r]`` has as partners two terms without a remainder, each for one parity
of ``o``: taps of a strided, transposed convolution; element by element they pair. At known sizes a sum over taps is also
written out beside terms that hold one tap each.
"""

from __future__ import annotations

from math import prod

from egraph.tensor.expr.index import Iterator
from verify.facts import Facts
from verify.forms import Names, Read, Summand, name_of, renamed_term, replaced_term, signature
from verify.literals import closure
from verify.polynomials import FloorAtom, Polynomial, entry
from verify.tidying import tidy

_TERMS = 25
"""Elements of one sum: every one is paired with every term of the other side, so the time grows with the square."""


def unrolled(terms: list[Summand], names: Names, facts: Facts) -> list[Summand] | None:
    """Return the terms with such sums written out, None where there are none."""
    result: list[Summand] = []
    changed = False
    for term in terms:
        fixed = _fixed_elsewhere(term, terms) if facts.at_sizes else set()
        ranges = [(i, values) for i in term.iterators if (values := _values(term, i, facts, fixed)) is not None]
        copies = [term]
        if ranges and prod(len(values) for _, values in ranges) <= _TERMS:
            changed = True
            for iterator, values in ranges:
                copies = [_at(copy, iterator, value) for copy in copies for value in values]
        result += [tidied for copy in copies if (tidied := tidy(renamed_term(copy, names), facts)) is not None]
    return result if changed else None


def _fixed_elsewhere(term: Summand, terms: list[Summand]) -> set[int]:
    """Return the iterators that stand in reads where terms of the same signature have none: these may be its elements."""
    names = signature(term)
    found: set[int] = set()
    for other in terms:
        if other is term or signature(other) != names:
            continue
        for mine, theirs in zip(*(sorted(one.parts, key=name_of) for one in (term, other)), strict=True):
            if isinstance(mine, Read) and isinstance(theirs, Read):
                for place, at in zip(mine.indices, theirs.indices, strict=False):
                    if not closure(at) & set(other.iterators):
                        found |= closure(place) & set(term.iterators)
    return found


def _range(iterator: int, facts: Facts) -> range | None:
    one = entry(iterator)
    if not isinstance(one.kind, Iterator) or one.low is None or one.high is None:
        return None
    low, high = facts.canonical(one.low).constant, facts.canonical(one.high).constant
    return None if low is None or high is None or high <= low else range(low, high)


def _values(term: Summand, iterator: int, facts: Facts, fixed: set[int]) -> range | None:
    """Return all values of an iterator with a known range that is one of the fixed ones, or on whose remainder a condition depends."""
    values = _range(iterator, facts)
    if values is None or iterator in fixed:
        return values
    divided = (a for condition in term.conditions for a in closure(condition.value) if isinstance(entry(a).kind, FloorAtom))
    return values if any(iterator in closure(Polynomial({(a,): 1})) for a in divided) else None


def _at(term: Summand, iterator: int, value: int) -> Summand:
    kept = Summand(term.numerator, term.denominator, tuple(i for i in term.iterators if i != iterator), term.conditions, term.parts)
    return replaced_term(kept, {iterator: Polynomial({(): value} if value else {})})
