"""Conjunctions of conditions over indices in one form: ``0 <= e``, ``e == 0`` or ``e != 0``, in lowest terms."""

from __future__ import annotations

import math
from collections.abc import Iterable

from egraph.tensor.expr.index import Index, has_reals
from egraph.tensor.expr.scope import Compare
from verify.budget import spend
from verify.normal.context import Context
from verify.normal.naming import condition_text

Conditions = tuple[Compare, ...]
NOTHING = Index(())


def condition(context: Context, given: Compare) -> Compare | bool:
    """Return a condition in its one form, or its truth where that is known."""
    known = context.forms.get(given)
    if known is None:
        known = context.forms[given] = _condition(context, given)
    return known


def _condition(context: Context, given: Compare) -> Compare | bool:
    if has_reals(given.left) or has_reals(given.right):
        return _over_reals(context, given)
    match given.operator:
        case "<":
            result = _at_least_zero(given.right - given.left - 1)
        case "<=":
            result = _at_least_zero(given.right - given.left)
        case _:
            result = _zero(given.left - given.right, equal=given.operator == "==")
    if isinstance(result, bool):
        return result
    known = context.decide(result)
    return result if known is None else known


def _over_reals(context: Context, given: Compare) -> Compare | bool:
    known = context.assumptions.decide(given)
    if known is not None:
        return known
    if given.operator in ("<", "<="):
        return Compare(NOTHING, given.operator, given.right - given.left)
    return Compare(given.left - given.right, given.operator, NOTHING)


def _at_least_zero(value: Index) -> Compare | bool:
    """0 <= g e + c holds when 0 <= e + c // g."""
    known = value.constant
    if known is not None:
        return known >= 0
    content = _content(value)
    if content > 1:
        value = Index(tuple((m, c // content) for m, c in value.terms if c // content))
    return Compare(NOTHING, "<=", value)


def _zero(value: Index, *, equal: bool) -> Compare | bool:
    known = value.constant
    if known is not None:
        return (known == 0) == equal
    content = _content(value)
    if any(c % content for _, c in value.terms):
        return not equal
    leading = next(c for m, c in value.terms if m)
    content = -content if leading < 0 else content
    value = Index(tuple((m, c // content) for m, c in value.terms))
    return Compare(value, "==" if equal else "!=", NOTHING)


def _content(value: Index) -> int:
    return math.gcd(*(c for m, c in value.terms if m))


def negation(given: Compare) -> Compare:
    """Return the negation of a condition in its one form, in that form."""
    match given.operator:
        case "==":
            return Compare(given.left, "!=", given.right)
        case "!=":
            return Compare(given.left, "==", given.right)
    if has_reals(given.left) or has_reals(given.right):
        return Compare(NOTHING, "<=" if given.operator == "<" else "<", -given.right)
    return Compare(NOTHING, "<=", -given.right - 1)


def conjunction(context: Context, conditions: Iterable[Compare]) -> Conditions | None:
    """Return the conditions without what the others imply, or None when they contradict each other."""
    given = tuple(conditions)
    if given not in context.conjunctions:
        context.conjunctions[given] = _conjunction(context, given)
    return context.conjunctions[given]


def _conjunction(context: Context, conditions: Conditions) -> Conditions | None:
    spend()
    limits: dict[Index, int] = {}  # 0 <= key + value
    others: dict[Compare, None] = {}
    for given in conditions:
        kept = condition(context, given)
        if kept is False:
            return None
        if kept is True:
            continue
        if kept.operator == "<=" and not has_reals(kept.right):
            shape, offset = _shape(kept.right)
            limits[shape] = min(offset, limits.get(shape, offset))
        else:
            others[kept] = None
    result: list[Compare] = []
    for shape, offset in limits.items():
        opposite = limits.get(-shape)
        if opposite is not None and offset + opposite <= 0:
            if offset + opposite < 0:
                return None
            equality = _zero(shape + offset, equal=True)
            if equality is False:
                return None
            if isinstance(equality, Compare):
                others[equality] = None
            continue
        result.append(Compare(NOTHING, "<=", shape + offset))
    for other in others:
        if negation(other) in others:
            return None
        if other.operator in ("<", "<="):
            result.append(other)
            continue
        shape, offset = _shape(other.left)
        low, high = limits.get(shape), limits.get(-shape)  # 0 <= shape + low, 0 <= high - shape; other: shape == -offset
        outside = (low is not None and low < offset) or (high is not None and high < -offset)
        if outside and other.operator == "==":
            return None
        if not outside:
            result.append(other)
    equalities = {_shape(o.left) for o in others if o.operator == "=="}
    tight = [c for c in result if c.operator != "<=" or not any(_follows(c.right, shape, offset) for shape, offset in equalities)]
    return tuple(sorted(tight, key=condition_text)) if len(tight) > 1 else tuple(tight)


def _shape(value: Index) -> tuple[Index, int]:
    """Split a value into what varies and a number."""
    offset = next((c for m, c in value.terms if not m), 0)
    return Index(tuple((m, c) for m, c in value.terms if m)), offset


def _follows(value: Index, shape: Index, offset: int) -> bool:
    """Return whether 0 <= value follows from shape + offset == 0 by their varying parts alone."""
    mine, number = _shape(value)
    return (mine == shape and number >= offset) or (mine == -shape and number >= -offset)
