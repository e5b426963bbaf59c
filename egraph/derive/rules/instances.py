"""Variable substitution read off the indices, and instantiation: what depends on iterators through indices alone, is computed per index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from egraph.derive.rules.bodies import (
    Refusal,
    counted,
    every,
    factors,
    fresh,
    identity_of,
    iterators_in,
    mapped,
    place,
    product,
    pulled,
    used,
    where,
)  # fmt: skip
from egraph.derive.rules.inside import feasible_range, reads_inside
from egraph.expr.index import Floor, Index, Iterator, Modulo, Monomial, Size, bounds, floor_divide, index, modulo
from egraph.expr.scope import Apply, Compare, Guarded, Read, Scalar, Scope, inside

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


def instantiate(scope: Scope, part: Scalar, parts: Sequence[Index] = (), order: Sequence[Iterator] = ()) -> Scope | Refusal:
    """{t} sum(i) [g ? a(x) * b : 0]  =  {t} sum(i) {x: [g ? a(x) : 0]}[x] * b, with the guards of x alone: im2col, layouts, padding

    By ``parts`` the instance is made per value of these indices of x. ``order`` is the order of its iterators.
    """
    conditions, rest = pulled(scope.body, scope.reduction)
    own = used(part)
    near = tuple(c for c in conditions if iterators_in(c.left, c.right) <= own)
    iterators = tuple(order) if order else tuple(i for i in every(scope) if i in own)
    if not iterators or frozenset(iterators) != own:
        return Refusal("the part depends on no iterator, or on others than those given")
    inner = Scope(iterators, (), "sum", where(near, part, "sum"))
    if not reads_inside(inner):
        return Refusal("a read leaves its tensor under the guards of its own iterators")
    read = Read(inner, tuple(map(index, iterators)))
    if parts:
        if isinstance(part, Read):  # what is read lies inside its tensor: said again, since indices will take more values
            limits = [c for size, at in zip(part.source.shape, part.indices, strict=True) for c in inside(at, 0, size)]
            inner = Scope(iterators, (), "sum", where((*near, *limits), part, "sum"))
        made = substitute_indices(inner, parts, "inward")
        if isinstance(made, Refusal):
            return made
        outside = made.body.conditions if isinstance(made.body, Guarded) else ()  # they hold iterators that are gone inside
        near = tuple(c for c in near if c not in outside)
        value = made.body.then if isinstance(made.body, Guarded) else made.body
        assert isinstance(value, Read)
        read = value
    changed = _exchange(rest, part, read)
    if changed is None:
        return Refusal("the part does not occur in the body")
    result = Scope(scope.traversal, scope.summation, scope.reduction, where(conditions, changed, scope.reduction))
    if scope.reduction != "sum" or not _is_factor(rest, part):
        return result
    for dropped in (near, *((c,) for c in near)):  # a factor 0 does what its guard did, but for reads of the others
        left, others = pulled(result.body, "sum")
        fewer = tuple(c for c in left if c not in dropped)
        less = Scope(scope.traversal, scope.summation, "sum", where(fewer, others, "sum"))
        result = less if reads_inside(less) else result
    known = part.indices if isinstance(part, Read) and isinstance(part.source, Scope) and not parts else ()
    if known and len(set(known)) == len(own) == len(known) and len(pulled(result.body, "sum")[0]) == len(conditions):
        return Refusal("the part is an instance already, and no guard is its own")
    return result


def sum_within(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """{t} sum(i, b) [g, c ? a * w(b) : 0]  =  {t} sum(i) [c ? a * {x: sum(b) [g ? w(b) : 0]}[x] : 0], if b occurs in w and in g alone

    and g in nothing that w does not have.
    """
    if refusal := counted(scope):
        return refusal
    conditions, rest = pulled(scope.body, scope.reduction)
    parts = factors(rest)
    inside_of = [part for part in parts if iterator in used(part)]
    if scope.reduction != "sum" or iterator not in scope.summation or len(inside_of) != 1 or len(parts) < 2:
        return Refusal(f"{iterator.name} is not summed in one factor of several")
    (part,) = inside_of
    near = tuple(c for c in conditions if iterator in iterators_in(c.left, c.right))
    own = used(part)
    if any(not iterators_in(c.left, c.right) <= own for c in near):
        return Refusal(f"a guard of {iterator.name} holds an iterator that the factor does not have")
    also = tuple(c for c in conditions if c not in near and iterators_in(c.left, c.right) <= own)
    kept = tuple(i for i in every(scope) if i in own and i != iterator)
    inner = Scope(kept, (iterator,), "sum", where((*near, *also), part, "sum"))
    read = Read(inner, tuple(map(index, kept)))
    body = where([c for c in conditions if c not in near], product(read if p is part else p for p in parts), "sum")
    summation = tuple(i for i in scope.summation if i != iterator)
    result = Scope(scope.traversal, summation, "sum", body)
    if not (reads_inside(inner) and reads_inside(result)):
        return Refusal("a read leaves its tensor under the guards of its own iterators")
    return result


def without_axis(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """{t, p} body  =  {t, p} {t: body}[t], if p does not occur"""
    if iterator not in scope.traversal or iterator in used(scope.body):
        return Refusal(f"{iterator.name} is no traversal iterator, or it occurs")
    kept = tuple(i for i in scope.traversal if i != iterator)
    inner = Scope(kept, scope.summation, scope.reduction, scope.body)
    return Scope(scope.traversal, (), "sum", Read(inner, tuple(map(index, kept))))


def _is_factor(body: Scalar, part: Scalar) -> bool:
    if body is part:
        return True
    return isinstance(body, Apply) and body.function == "mul" and any(_is_factor(a, part) for a in body.arguments)


def _exchange(body: Scalar, part: Scalar, new: Scalar) -> Scalar | None:
    """Return ``body`` with the one object ``part`` exchanged; None where it does not occur."""
    if body is part:
        return new
    match body:
        case Apply(function, arguments):
            changed = [_exchange(a, part, new) for a in arguments]
            if any(c is not None for c in changed):
                return Apply(function, tuple(c or a for c, a in zip(changed, arguments, strict=True)))
        case Guarded(conditions, then, otherwise):
            one, two = _exchange(then, part, new), _exchange(otherwise, part, new)
            if one is not None or two is not None:
                return Guarded(conditions, one or then, two or otherwise)
    return None
