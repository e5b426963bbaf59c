"""Write short sums out where a remainder decides which of their elements count: taps of a strided, transposed convolution.

``sum(r < 4) [(o - r) % 2 == 0] x[(o - r) // 2] w[r]`` has as partners two terms without a remainder, each for one parity
of ``o``; element by element they pair.
"""

from __future__ import annotations

from math import prod

from egraph.expr.index import Iterator
from verify.facts import Facts
from verify.forms import Names, Summand, renamed_term, replaced_term
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
        ranges = [(i, values) for i in term.iterators if (values := _values(term, i, facts)) is not None]
        copies = [term]
        if ranges and prod(len(values) for _, values in ranges) <= _TERMS:
            changed = True
            for iterator, values in ranges:
                copies = [_at(copy, iterator, value) for copy in copies for value in values]
        result += [tidied for copy in copies if (tidied := tidy(renamed_term(copy, names), facts)) is not None]
    return result if changed else None


def _values(term: Summand, iterator: int, facts: Facts) -> range | None:
    """Return all values of an iterator whose range is known, and on whose remainder a condition depends."""
    one = entry(iterator)
    if not isinstance(one.kind, Iterator) or one.low is None or one.high is None:
        return None
    low, high = facts.canonical(one.low).constant, facts.canonical(one.high).constant
    if low is None or high is None or high <= low:
        return None
    divided = (a for condition in term.conditions for a in closure(condition.value) if isinstance(entry(a).kind, FloorAtom))
    return range(low, high) if any(iterator in closure(Polynomial({(a,): 1})) for a in divided) else None


def _at(term: Summand, iterator: int, value: int) -> Summand:
    kept = Summand(term.numerator, term.denominator, tuple(i for i in term.iterators if i != iterator), term.conditions, term.parts)
    return replaced_term(kept, {iterator: Polynomial({(): value} if value else {})})
