"""Whether a polynomial is certainly not negative: atoms are replaced by the ends of their ranges, conditions added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from egraph.tensor.expr.index import Iterator, Symbol
from verify.budget import spend
from verify.concrete import follows, least, multiplied_out
from verify.literals import at_minimums
from verify.polynomials import ONE, FloorAtom, Polynomial, entry

if TYPE_CHECKING:
    from verify.facts import Facts

_DEPTH = 24
"""Atoms that are replaced by the ends of their ranges, one inside the other, at most."""


def with_condition(facts: Facts, value: Polynomial) -> bool:
    """Return whether the polynomial without one inequality that holds is certainly >= 0."""
    negative = {m for m, c in value.terms.items() if c < 0}
    helpful = (fact for fact in facts.inequalities if any(fact.terms.get(m, 0) < 0 for m in negative))
    return any(bounded(facts, value - fact) for fact in helpful)


def with_conditions(facts: Facts, value: Polynomial) -> bool:
    """Return whether, where all sizes are numbers, a sum of inequalities that hold says it, or products multiplied out do."""
    if not facts.at_sizes:
        return False
    if follows(value, facts.inequalities, lambda remainder: bounded(facts, remainder)):
        return True
    whole = multiplied_out(value)
    return whole is not None and facts.nonnegative(facts.canonical(whole))


def bounded(facts: Facts, value: Polynomial, depth: int = 0) -> bool:
    """Replace atoms by the ends of their ranges, those that depend on others first."""
    answer = facts.bounded.get(value)
    if answer is None:
        low = least(value) if facts.at_sizes else None
        answer = facts.bounded[value] = _in_ranges(facts, value, depth) if low is None else low >= 0
    return answer


def _in_ranges(facts: Facts, value: Polynomial, depth: int) -> bool:
    spend()
    if all(c >= 0 for c in value.terms.values()) and all(_positive(a) for a in value.atoms()):
        return True
    atoms = value.atoms()
    if not atoms or depth > _DEPTH:
        return not atoms and value.terms.get((), 0) >= 0
    top = max(entry(a).level for a in atoms)
    if top == 0:
        return at_minimums(value)
    atom = min((a for a in atoms if entry(a).level == top), key=lambda a: entry(a).key)
    parts = value.collect(atom)
    if len(parts) != 2:
        return False
    others, slope = parts
    kind = entry(atom).kind
    rising = bounded(facts, slope, depth + 1)
    if not rising and not bounded(facts, -slope, depth + 1):
        return False
    if isinstance(kind, FloorAtom):
        above, below = kind.numerator, kind.divisor
        if not bounded(facts, below - ONE, depth + 1):
            return False
        # below * value is known to within less than below, and value is an integer
        end = slope * (above - below + ONE if rising else above) + others * below + below - ONE
        return bounded(facts, end, depth + 1) or (rising and bounded(facts, above, depth + 1) and bounded(facts, others, depth + 1))
    low, high = entry(atom).low, entry(atom).high
    if low is None or high is None:
        return False
    return bounded(facts, others + slope * facts.canonical(low if rising else high - ONE), depth + 1)


def _positive(atom: int) -> bool:
    kind = entry(atom).kind
    match kind:
        case Symbol():
            return kind.minimum >= 0
        case Iterator():
            return kind.low == 0
    return False
