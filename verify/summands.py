"""Rewrite the terms of a sum for pairing: tidy each term, and write out short sums whose elements have partners."""

from __future__ import annotations

from math import prod

from egraph.tensor.expr.index import Iterator
from verify.facts import Facts
from verify.forms import Names, Read, Summand, mentions, name_of, renamed_term, replaced_term, signature
from verify.literals import Literal0, closure, isolated
from verify.polynomials import ONE, FloorAtom, Polynomial, constant, entry, range_of

MOST_TERMS = 25
"""Most elements of a sum that is written out. Each is paired with every term of the other side, so time grows quadratically."""


def tidy(term: Summand, facts: Facts) -> Summand | None:
    """Return an equal term, None for zero. Iterators that its conditions determine are replaced; unused ones become a factor."""
    while (step := _determined(term, facts)) is not None:
        term = step
    if facts.extended(term.conditions).contradiction or not facts.canonical(term.numerator).terms:
        return None
    conditions = tuple(dict.fromkeys(c for c in term.conditions if not _follows_from_ranges(c, facts)))
    term = Summand(term.numerator, term.denominator, term.iterators, conditions, term.parts)
    return _counted(term, facts)


def _follows_from_ranges(condition: Literal0, facts: Facts) -> bool:
    """Return whether a condition follows from ranges only."""
    value = facts.canonical(condition.value)
    if condition.relation == ">=":
        return facts.nonnegative(value)
    return not value.terms and condition.relation == "=="


def _determined(term: Summand, facts: Facts) -> Summand | None:
    """Replace one iterator that an equality or a range of one value determines."""
    for atom in term.iterators:
        low, high = range_of(atom)
        if facts.canonical(high - low) == ONE:
            return _without(term, atom, low, ())
    for condition in term.conditions:
        if condition.relation not in ("==", ">="):
            continue
        value = facts.canonical(condition.value)
        for atom in term.iterators:
            if (solved := isolated(value, atom)) is None:
                continue
            coefficient = value.terms[(atom,)]
            low, high = range_of(atom)
            if condition.relation == "==":
                return _without(term, atom, solved, (Literal0(solved - low, ">="), Literal0(high - ONE - solved, ">=")))
            end = low if coefficient < 0 else high - ONE  # the only value that the condition may leave
            if facts.nonnegative(facts.canonical((end - solved) * constant(-coefficient))):
                return _without(term, atom, end, (Literal0(high - ONE - low, ">="),))
    return None


def _without(term: Summand, atom: int, value: Polynomial, added: tuple[Literal0, ...]) -> Summand:
    new = replaced_term(term, {atom: value})
    left = tuple(a for a in term.iterators if a != atom)
    return Summand(new.numerator, new.denominator, left, (*new.conditions, *added), new.parts)


def _counted(term: Summand, facts: Facts) -> Summand:
    """Multiply by the size of the range of an iterator on which nothing depends."""
    for atom in term.iterators:
        low, high = range_of(atom)
        size = facts.canonical(high - low)
        used = closure(term.numerator) | closure(term.denominator) | {a for c in term.conditions for a in closure(c.value)}
        if atom in used or any(mentions(part, atom) for part in term.parts) or not facts.nonnegative(size):
            continue
        left = tuple(a for a in term.iterators if a != atom)
        return _counted(Summand(term.numerator * size, term.denominator, left, term.conditions, term.parts), facts)
    return term


def unrolled(terms: list[Summand], names: Names, facts: Facts) -> list[Summand] | None:
    """Return the terms with short sums written out if their elements have partners of their own; None if there are none.

    The partners of ``sum(r < 4) [(o - r) % 2 == 0] x[(o - r) // 2] w[r]`` are two terms without a remainder, each for one parity of
    ``o``, as for the taps of a strided, transposed convolution. They pair element by element. At known sizes a sum over taps is also
    written out if other terms have one tap each.
    """
    result: list[Summand] = []
    changed = False
    for term in terms:
        fixed = _fixed_elsewhere(term, terms) if facts.at_sizes else set()
        ranges = [(i, values) for i in term.iterators if (values := _values(term, i, facts, fixed)) is not None]
        copies = [term]
        if ranges and prod(len(values) for _, values in ranges) <= MOST_TERMS:
            changed = True
            for iterator, values in ranges:
                copies = [_at(copy, iterator, value) for copy in copies for value in values]
        result += [tidied for copy in copies if (tidied := tidy(renamed_term(copy, names), facts)) is not None]
    return result if changed else None


def _fixed_elsewhere(term: Summand, terms: list[Summand]) -> set[int]:
    """Return the iterators in reads at whose places terms of the same signature have none; such terms may be elements of the sum."""
    names = signature(term)
    fixed: set[int] = set()
    for partner in terms:
        if partner is term or signature(partner) != names:
            continue
        for mine, theirs in zip(*(sorted(side.parts, key=name_of) for side in (term, partner)), strict=True):
            if isinstance(mine, Read) and isinstance(theirs, Read):
                for position, at in zip(mine.indices, theirs.indices, strict=False):
                    if not closure(at) & set(partner.iterators):
                        fixed |= closure(position) & set(term.iterators)
    return fixed


def _range(iterator: int, facts: Facts) -> range | None:
    atom_entry = entry(iterator)
    if not isinstance(atom_entry.kind, Iterator) or atom_entry.low is None or atom_entry.high is None:
        return None
    low, high = facts.canonical(atom_entry.low).constant, facts.canonical(atom_entry.high).constant
    return None if low is None or high is None or high <= low else range(low, high)


def _values(term: Summand, iterator: int, facts: Facts, fixed: set[int]) -> range | None:
    """Return all values of an iterator of known range that is in ``fixed`` or on whose remainder a condition depends, else None."""
    values = _range(iterator, facts)
    if values is None or iterator in fixed:
        return values
    divided = (a for condition in term.conditions for a in closure(condition.value) if isinstance(entry(a).kind, FloorAtom))
    return values if any(iterator in closure(Polynomial({(a,): 1})) for a in divided) else None


def _at(term: Summand, iterator: int, value: int) -> Summand:
    kept = Summand(term.numerator, term.denominator, tuple(i for i in term.iterators if i != iterator), term.conditions, term.parts)
    return replaced_term(kept, {iterator: Polynomial({(): value} if value else {})})
