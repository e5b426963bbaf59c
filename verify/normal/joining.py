"""Join terms that differ only in their conditions, so that blocks separated by a concatenation are merged again.

    [o < 4] t + [4 <= o, o < 8] t = [o < 8] t

In general ``[c, d] t + [not c, e] t = [d, e] t`` if ``not c`` implies d and ``c`` implies e.
"""

from __future__ import annotations

from dataclasses import replace

from egraph.tensor.expr.scope import Compare
from verify.normal.conditions import Conditions, conjunction, negation
from verify.normal.context import Context
from verify.normal.naming import named, rename_term
from verify.normal.terms import Term, Value


def joined(context: Context, value: Value) -> Value:
    """Return a value with such terms joined."""
    if sum(bool(term.conditions) for term in value.terms) < 2:
        return value
    groups: dict[object, list[Term]] = {}
    for term in value.terms:
        iterators, mapping, key = named(context, term.iterators, term.factors)
        groups.setdefault((term.coefficient, key), []).append(replace(rename_term(context, term, mapping), iterators=iterators))
    if len(groups) == len(value.terms):
        return value
    return Value(tuple(term for group in groups.values() for term in _joined(context, group)))


def _joined(context: Context, terms: list[Term]) -> list[Term]:
    """Join terms with the same factors, two at a time; if some stay apart, try again without the conditions that others imply."""
    left = _joined_as_they_stand(context, terms)
    if len(left) == 1 or not any(negation(c) in partner.conditions for term in left for c in term.conditions for partner in left):
        return left
    needed = [replace(term, conditions=_needed(context, term.conditions)) for term in left]
    return left if needed == left else _joined_as_they_stand(context, needed)


def _joined_as_they_stand(context: Context, terms: list[Term]) -> list[Term]:
    left = list(terms)
    position = 0
    while position < len(left):
        partner = _partner(context, left, position)
        if partner is None:
            position += 1
            continue
        second, conditions = partner
        whole = replace(left[position], conditions=conditions)
        left = [term for number, term in enumerate(left) if number not in (position, second)] + [whole]
        position = 0
    return left


def _partner(context: Context, terms: list[Term], position: int) -> tuple[int, Conditions] | None:
    first = terms[position]
    for condition in first.conditions:
        opposite = negation(condition)
        for number, second in enumerate(terms):
            if number != position and opposite in second.conditions:
                mine = [c for c in first.conditions if c != condition]
                others = [c for c in second.conditions if c != opposite]
                if _implied(context, (opposite,), [c for c in mine if c not in others]) and _implied(
                    context, (condition,), [c for c in others if c not in mine]
                ):
                    kept = conjunction(context, (*mine, *others))
                    if kept is not None:
                        return number, kept
    return None


def _needed(context: Context, conditions: Conditions) -> Conditions:
    """Return the conditions without those that the others imply together."""
    for condition in conditions:
        others = tuple(c for c in conditions if c is not condition)
        if _implied(context, others, [condition]):
            return _needed(context, others)
    return conditions


def _implied(context: Context, conditions: Conditions, goals: list[Compare]) -> bool:
    if not goals:
        return True
    with context.where(conditions):
        return all(context.decide(goal) is True for goal in goals)
