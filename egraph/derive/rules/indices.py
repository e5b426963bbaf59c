"""Variable substitution read off the indices: what depends on iterators through indices alone, is computed once per index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from egraph.derive.rules.bodies import Refusal, counted, every, fresh, identity_of, iterators_in, mapped, place, pulled, used, where
from egraph.derive.rules.inside import feasible_range, reads_inside
from egraph.expr.index import Floor, Index, Iterator, Modulo, Monomial, Size, bounds, floor_divide, index, modulo
from egraph.expr.scope import Compare, Guarded, Read, Scalar, Scope

Guards = Literal["outward", "inward"]


def substitute_indices(scope: Scope, parts: Sequence[Index], guards: Guards = "outward") -> Scope | Refusal:
    """{t, u} sum [g(t) ? body(e(t), u) : 0]  =  {t, u} [g(t) ? {y, u: sum body(y, u)}[e(t), u] : 0]

    if an iterator of t occurs in the body in the indices e alone; y ranges over the values of e that g allows. A guard of
    iterators of the traversal stands outside; ``inward``, a guard that is one of e alone stays with the body.
    """
    if refusal := counted(scope):
        return refusal
    reduced = frozenset(scope.summation)
    if any(iterators_in(part) & reduced or not iterators_in(part) for part in parts):
        return Refusal("the indices must be of traversal iterators")
    if all(part == index(i) for part in parts for i in iterators_in(part)):
        return Refusal("the indices are iterators themselves")
    wide = [bounds(part) for part in parts]
    names: list[Iterator] = []
    for k, limits in enumerate(wide):
        if limits is None:
            return Refusal("the range of an index is symbolic")
        names.append(Iterator(f"y{k}'", limits[0], limits[1] + 1))

    def rewritten(value: Index) -> Index:
        for part, name in zip(parts, names, strict=True):
            value = _by(value, part, name)
        return value

    conditions, rest = pulled(scope.body, scope.reduction)
    gone = frozenset().union(*map(iterators_in, parts)) - used(mapped(rest, rewritten))
    inner_conditions, outer = [], []
    for condition in conditions:
        new = Compare(rewritten(condition.left), condition.operator, rewritten(condition.right))
        occurring = iterators_in(new.left, new.right)
        if occurring & reduced or (guards == "inward" and not occurring & gone):
            inner_conditions.append(new)
            gone -= occurring
        else:
            outer.append((condition, new))
    if not gone:
        return Refusal("no iterator occurs in these indices alone")
    limits_of = {name: feasible_range(name, [c for _, c in outer if iterators_in(c.left, c.right) == {name}]) for name in names}
    taken = every(scope)
    new_names: dict[Iterator, Size] = {}
    fresh_names: list[Iterator] = []
    lows: list[int] = []
    for k, name in enumerate(names):
        limits = limits_of[name]
        if limits is None:
            return Refusal("the guards hold nowhere")
        y = fresh(f"y{k}", limits[1] - limits[0], taken)
        new_names[name] = index(y) + limits[0]
        fresh_names.append(y)
        lows.append(limits[0])
    traversal, places = _placed(scope.traversal, gone, parts, fresh_names, lows)
    changed = mapped(where(inner_conditions, mapped(rest, rewritten), scope.reduction), lambda value: place(value, new_names))
    inner = Scope(traversal, scope.summation, scope.reduction, changed)
    if not reads_inside(inner):
        return Refusal("a read leaves its tensor for some values of the indices")
    read = Read(inner, places)
    body: Scalar = Guarded(tuple(c for c, _ in outer), read, identity_of(scope.reduction)) if outer else read
    return Scope(scope.traversal, (), "sum", body)


def _placed(
    traversal: tuple[Iterator, ...], gone: frozenset[Iterator], parts: Sequence[Index], names: Sequence[Iterator], lows: Sequence[int]
) -> tuple[tuple[Iterator, ...], tuple[Index, ...]]:
    """Return the new traversal and where it is read: an index stands where the first of its vanished iterators stood."""
    order: list[Iterator] = []
    places: list[Index] = []
    done: set[int] = set()
    for iterator in traversal:
        for k, part in enumerate(parts):
            if k not in done and iterator in gone and iterator in iterators_in(part):
                done.add(k)
                order.append(names[k])
                places.append(part - lows[k])
        if iterator not in gone:
            order.append(iterator)
            places.append(index(iterator))
    for k, part in enumerate(parts):
        if k not in done:
            order.append(names[k])
            places.append(part - lows[k])
    return tuple(order), tuple(places)


def _by(value: Index, part: Index, name: Iterator) -> Index:
    """Return ``value`` with the largest multiple of ``part`` in it written by ``name``, inside divisions too."""
    pivot, step = next((m, c) for m, c in part.terms if m)
    found = dict(value.terms).get(pivot, 0)
    if found and found % step == 0:
        times = found // step
        other = value - part * times
        if not _shared(other, part):
            return _divided(other, lambda inner: _by(inner, part, name)) + index(name) * times
    return _divided(value, lambda inner: _by(inner, part, name))


def _shared(value: Index, part: Index) -> bool:
    """Return whether a monomial of ``part`` is left in ``value``."""
    left = dict(value.terms)
    return any(m in left for m, _ in part.terms if m)


def _divided(value: Index, change: Callable[[Index], Index]) -> Index:
    total = Index(())
    for monomial, coefficient in value.terms:
        total = total + _monomial(monomial, change) * coefficient
    return total


def _monomial(monomial: Monomial, change: Callable[[Index], Index]) -> Index:
    result = index(1)
    for atom in monomial:
        match atom:
            case Floor(a, b):
                result = result * floor_divide(change(a), change(b))
            case Modulo(a, b):
                result = result * modulo(change(a), change(b))
            case _:
                result = result * index(atom)
    return result
