"""Conjunctions of conditions over indices in canonical form: ``0 <= e``, ``e == 0`` or ``e != 0``, in lowest terms."""

from __future__ import annotations

from collections.abc import Iterable

from egraph.tensor.expr.conditions import lowest
from egraph.tensor.expr.index import Index, has_reals
from egraph.tensor.expr.scope import Compare
from verify.budget import spend
from verify.normal.context import Context
from verify.normal.naming import condition_text

Conditions = tuple[Compare, ...]
NOTHING = Index(())


def condition(context: Context, given: Compare) -> Compare | bool:
    """Return a condition in canonical form, or its truth if that is known."""
    form = context.forms.get(given)
    if form is None:
        form = context.forms[given] = _condition(context, given)
    return form


def _condition(context: Context, given: Compare) -> Compare | bool:
    if has_reals(given.left) or has_reals(given.right):
        return _over_reals(context, given)
    form = _written(given)
    decided = form if isinstance(form, bool) else context.decide(form)
    return form if decided is None else decided


def _written(given: Compare) -> Compare | bool:
    form = lowest(given)
    if isinstance(form, bool):
        return form
    relation, value = form
    return Compare(NOTHING, "<=", value) if relation == "<=" else Compare(value, relation, NOTHING)


def _over_reals(context: Context, given: Compare) -> Compare | bool:
    decided = context.assumptions.decide(given)
    if decided is not None:
        return decided
    if given.operator in ("<", "<="):
        return Compare(NOTHING, given.operator, given.right - given.left)
    return Compare(given.left - given.right, given.operator, NOTHING)


def negation(given: Compare) -> Compare:
    """Return the canonical negation of a canonical condition."""
    match given.operator:
        case "==":
            return Compare(given.left, "!=", given.right)
        case "!=":
            return Compare(given.left, "==", given.right)
    if has_reals(given.left) or has_reals(given.right):
        return Compare(NOTHING, "<=" if given.operator == "<" else "<", -given.right)
    return Compare(NOTHING, "<=", -given.right - 1)


def conjunction(context: Context, conditions: Iterable[Compare]) -> Conditions | None:
    """Return the conditions without those that the others imply, or None if they contradict each other."""
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
            equality = _written(Compare(shape + offset, "==", NOTHING))
            if equality is False:
                return None
            if isinstance(equality, Compare):
                others[equality] = None
            continue
        result.append(Compare(NOTHING, "<=", shape + offset))
    for relation in others:
        if negation(relation) in others:
            return None
        if relation.operator in ("<", "<="):
            result.append(relation)
            continue
        shape, offset = _shape(relation.left)
        low, high = limits.get(shape), limits.get(-shape)  # 0 <= shape + low, 0 <= high - shape; other: shape == -offset
        outside = (low is not None and low < offset) or (high is not None and high < -offset)
        if outside and relation.operator == "==":
            return None
        if not outside:
            result.append(relation)
    equalities = {_shape(o.left) for o in others if o.operator == "=="}
    tight = [c for c in result if c.operator != "<=" or not any(_follows(c.right, shape, offset) for shape, offset in equalities)]
    return tuple(sorted(tight, key=condition_text)) if len(tight) > 1 else tuple(tight)


def _shape(value: Index) -> tuple[Index, int]:
    """Split a value into its varying part and a number."""
    offset = value.constant_part
    return value - offset, offset


def _follows(value: Index, shape: Index, offset: int) -> bool:
    """Return whether 0 <= value follows from shape + offset == 0 by their varying parts alone."""
    mine, number = _shape(value)
    return (mine == shape and number >= offset) or (mine == -shape and number >= -offset)
