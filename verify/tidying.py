"""Tidy one term: iterators that its conditions determine are replaced, free ones are counted, impossible terms vanish."""

from __future__ import annotations

from verify.facts import Facts
from verify.forms import Summand, mentions, replaced_term
from verify.literals import Literal0, closure
from verify.polynomials import ONE, Polynomial, constant, range_of


def tidy(term: Summand, facts: Facts) -> Summand | None:
    """Return an equal term, None for zero."""
    while (step := _determined(term, facts)) is not None:
        term = step
    if facts.extended(term.conditions).contradiction or not facts.canonical(term.numerator).terms:
        return None
    conditions = tuple(dict.fromkeys(c for c in term.conditions if not _known(c, facts)))
    term = Summand(term.numerator, term.denominator, term.iterators, conditions, term.parts)
    return _counted(term, facts)


def _known(condition: Literal0, facts: Facts) -> bool:
    """Return whether a condition follows from ranges alone."""
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
            coefficient = value.terms.get((atom,), 0)
            if abs(coefficient) != 1:
                continue
            solved = Polynomial({m: -c * coefficient for m, c in value.terms.items() if m != (atom,)})
            if atom in closure(solved):
                continue
            low, high = range_of(atom)
            if condition.relation == "==":
                return _without(term, atom, solved, (Literal0(solved - low, ">="), Literal0(high - ONE - solved, ">=")))
            end = low if coefficient < 0 else high - ONE  # at most its least value, or at least its greatest
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
