"""Conditions over integer indices: whether ranges decide them, their negation, and their normal form, 0 compared with an index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd
from typing import Literal, TypeAlias

from egraph.tensor.expr.index import Index, Iterator, bounds, index, known
from egraph.tensor.expr.laws import coefficient, iterators_of
from egraph.tensor.expr.scope import Compare

Relation: TypeAlias = Literal["<=", "==", "!="]


def truth(condition: Compare) -> bool | None:
    """Return the truth of a condition if the iterators' ranges decide it, else None."""
    limits = bounds(condition.right - condition.left)
    if limits is None:
        return None
    low, high = limits
    match condition.operator:
        case "<":
            return True if low > 0 else (False if high <= 0 else None)
        case "<=":
            return True if low >= 0 else (False if high < 0 else None)
        case "==":
            return True if low == high == 0 else (False if low > 0 or high < 0 else None)
        case "!=":
            return True if low > 0 or high < 0 else (False if low == high == 0 else None)


def undecided(conditions: Iterable[Compare]) -> tuple[Compare, ...] | None:
    """Return the conditions that ranges do not decide, each once; None if one of them is false."""
    left: dict[Compare, None] = {}
    for condition in conditions:
        holds = truth(condition)
        if holds is False:
            return None
        if holds is None:
            left[condition] = None
    return tuple(left)


def negation(condition: Compare) -> Compare:
    """not (a < b) is b <= a, and not (a == b) is a != b"""
    left, right = condition.left, condition.right
    match condition.operator:
        case "<":
            return Compare(right, "<=", left)
        case "<=":
            return Compare(right, "<", left)
        case "==":
            return Compare(left, "!=", right)
        case "!=":
            return Compare(left, "==", right)


def slack(condition: Compare) -> Index | None:
    """Return the index that is at least 0 exactly where an inequality holds, by ``strictly below``; None for ``==`` and ``!=``."""
    match condition.operator:
        case "<":
            return condition.right - condition.left - 1
        case "<=":
            return condition.right - condition.left
    return None


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition holds for all values of the other iterators if low <= iterator < high; if ``exact``, it holds nowhere else."""

    iterator: Iterator
    low: int
    high: int
    exact: bool


def bound_on(condition: Compare, iterator: Iterator) -> Bound | None:
    """Return where in its range an iterator has to be: c i + rest >= 0 is i >= -rest/c or i <= rest/-c by the sign of c.

    None if it is not a linear term of the condition, if the rest is unbounded, or if an equation is open or no integer solves it.
    """
    value = condition.right - condition.left
    slope = coefficient(value, iterator)
    limits = bounds(value - index(iterator) * (slope or 0))
    if not slope or limits is None or condition.operator == "!=":
        return None
    least, exact = limits[0] - (condition.operator == "<"), limits[0] == limits[1]
    low, high = known(iterator.low), known(iterator.high)
    if condition.operator == "==":
        at, left = divmod(-least, slope)
        if left or not exact:
            return None
        low, high = max(low, at), min(high, at + 1)
    elif slope > 0:
        low = max(low, -(least // slope))
    else:
        high = min(high, least // -slope + 1)
    return Bound(iterator, low, max(low, high), exact)


def bound_of(condition: Compare) -> Bound | None:
    """Return the bound that a condition gives its only iterator."""
    iterators = iterators_of(condition.left, condition.right)
    return bound_on(condition, *iterators) if len(iterators) == 1 else None


def lowest(condition: Compare) -> tuple[Relation, Index] | bool:
    """Return a condition as ``0 RELATION e`` in lowest terms, or its truth if e is a number.

    0 <= g e + c is 0 <= e + c // g (``bound in lowest terms``); 0 == g e + c is 0 == e + c / g, and false where g does not divide c
    (``equation in lowest terms``). An equation has the one of e and -e whose first coefficient is positive.
    """
    value = slack(condition)
    relation: Relation = "<="
    if value is None:
        value, relation = condition.right - condition.left, "==" if condition.operator == "==" else "!="
    number = value.constant
    if number is not None:
        return number >= 0 if relation == "<=" else (number == 0) == (relation == "==")
    content = gcd(*(c for m, c in value.terms if m))
    if relation != "<=":
        if value.constant_part % content:
            return relation == "!="
        content = -content if next(c for m, c in value.terms if m) < 0 else content
    if content != 1:
        value = Index(tuple((m, c // content) for m, c in value.terms if c // content))
    return relation, value


def tightest(conditions: Iterable[Compare]) -> tuple[Compare, ...] | None:
    """Return the conditions in lowest terms, without those that follow from ranges or from another; None if they never all hold."""
    kept: dict[tuple[Relation, Index], int] = {}
    inequalities: dict[Compare, None] = {}
    for condition in conditions:
        form = lowest(condition)
        if form is False:
            return None
        if form is True:
            continue
        relation, value = form
        if relation == "!=":
            inequalities[Compare(index(0), "!=", value)] = None
            continue
        constant = value.constant_part
        key = relation, value - constant
        tighter = kept.setdefault(key, constant)
        if relation == "==" and tighter != constant:
            return None
        kept[key] = min(tighter, constant)
    made = [Compare(index(0), relation, varying + constant) for (relation, varying), constant in kept.items()]
    left = undecided([*made, *inequalities])
    return None if left is None else tuple(sorted(left, key=str))
