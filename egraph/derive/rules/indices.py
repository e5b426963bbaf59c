"""Variable substitution read off the indices: a value that depends on iterators through indices alone is computed once per index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from egraph.derive.rules.bodies import Refusal, counted, every, fresh, mapped, pulled, replaced_index, where
from egraph.derive.rules.inside import feasible_range, reads_inside
from egraph.tensor.expr.bodies import used
from egraph.tensor.expr.index import Index, Iterator, Size, bounds, index
from egraph.tensor.expr.laws import inside_divisions, iterators_of
from egraph.tensor.expr.scope import Compare, Guarded, Read, Scope

Guards = Literal["outward", "inward"]


def substitute_indices(scope: Scope, parts: Sequence[Index], guards: Guards = "outward") -> Scope | Refusal:
    """{t, u} sum [g(t) ? body(e(t), u) : 0]  =  {t, u} [g(t) ? {y, u: sum body(y, u)}[e(t), u] : 0]

    if an iterator of t occurs in the body in the indices e alone; y ranges over the values of e that g allows. A guard of traversal
    iterators is moved outside. With ``inward``, a guard that depends on e alone stays with the body.
    """
    if refusal := counted(scope) or _objection(scope, parts):
        return refusal
    names = [Iterator(f"y{k}'", low, high + 1) for k, (low, high) in enumerate(bounds(part) or (0, 0) for part in parts)]

    def rewritten(value: Index) -> Index:
        for part, name in zip(parts, names, strict=True):
            value = _by(value, part, name)
        return value

    conditions, summand = pulled(scope.body, scope.reduction)
    summand = mapped(summand, rewritten)
    gone = frozenset().union(*map(iterators_of, parts)) - used(summand)
    inner_conditions: list[Compare] = []
    outer: dict[Compare, Compare] = {}
    for condition in conditions:
        new = Compare(rewritten(condition.left), condition.operator, rewritten(condition.right))
        occurring = iterators_of(new.left, new.right)
        if occurring & frozenset(scope.summation) or (guards == "inward" and not occurring & gone):
            inner_conditions.append(new)
            gone -= occurring
        else:
            outer[condition] = new
    if not gone:
        return Refusal("no iterator occurs in these indices alone")
    ranges = [feasible_range(name, [c for c in outer.values() if iterators_of(c.left, c.right) == {name}]) for name in names]
    limits = [r for r in ranges if r is not None]
    if len(limits) != len(ranges):
        return Refusal("the guards hold nowhere")
    new_iterators = [fresh(f"y{k}", high - low, every(scope)) for k, (low, high) in enumerate(limits)]
    starts = [low for low, _ in limits]
    values: dict[Iterator, Size] = {name: index(y) + low for name, y, low in zip(names, new_iterators, starts, strict=True)}
    traversal, coordinates = _placed(scope.traversal, gone, parts, new_iterators, starts)
    body = mapped(where(inner_conditions, summand, scope.reduction), lambda value: replaced_index(value, values))
    inner = Scope(traversal, scope.summation, scope.reduction, body)
    if not reads_inside(inner):
        return Refusal("a read leaves its tensor for some values of the indices")
    read = Read(inner, coordinates)
    return Scope.pointwise(scope.traversal, Guarded(tuple(outer), read, scope.reduction.identity) if outer else read)


def _objection(scope: Scope, parts: Sequence[Index]) -> Refusal | None:
    if any(iterators_of(part) & frozenset(scope.summation) or not iterators_of(part) for part in parts):
        return Refusal("the indices must be of traversal iterators")
    if all(part == index(i) for part in parts for i in iterators_of(part)):
        return Refusal("the indices are iterators themselves")
    return Refusal("the range of an index is symbolic") if any(bounds(part) is None for part in parts) else None


def _placed(
    traversal: tuple[Iterator, ...], gone: frozenset[Iterator], parts: Sequence[Index], names: Sequence[Iterator], lows: Sequence[int]
) -> tuple[tuple[Iterator, ...], tuple[Index, ...]]:
    """Return the new traversal and the indices at which it is read: an index takes the place of the first iterator that it replaces."""
    order: list[Iterator] = []
    coordinates: list[Index] = []
    done: set[int] = set()
    for iterator in traversal:
        for k, part in enumerate(parts):
            if k not in done and iterator in gone and iterator in iterators_of(part):
                done.add(k)
                order.append(names[k])
                coordinates.append(part - lows[k])
        if iterator not in gone:
            order.append(iterator)
            coordinates.append(index(iterator))
    for k, part in enumerate(parts):
        if k not in done:
            order.append(names[k])
            coordinates.append(part - lows[k])
    return tuple(order), tuple(coordinates)


def _by(value: Index, part: Index, name: Iterator) -> Index:
    """Return ``value`` with its largest multiple of ``part`` written by ``name``, inside divisions too."""
    pivot, step = next((m, c) for m, c in part.terms if m)
    coefficient = dict(value.terms).get(pivot, 0)
    if coefficient and coefficient % step == 0:
        times = coefficient // step
        other = value - part * times
        if not _shared(other, part):
            return inside_divisions(other, lambda inner: _by(inner, part, name)) + index(name) * times
    return inside_divisions(value, lambda inner: _by(inner, part, name))


def _shared(value: Index, part: Index) -> bool:
    """Return whether a monomial of ``part`` remains in ``value``."""
    left = dict(value.terms)
    return any(m in left for m, _ in part.terms if m)
