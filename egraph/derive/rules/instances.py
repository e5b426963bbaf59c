"""Instantiation: a factor becomes a tensor of its own, over its iterators or over indices of them (im2col, layouts, padding, sums)."""

from __future__ import annotations

from collections.abc import Sequence

from egraph.derive.rules.bodies import Refusal, counted, every, pulled, where
from egraph.derive.rules.indices import substitute_indices
from egraph.derive.rules.inside import reads_inside
from egraph.tensor.expr.bodies import applied, flattened, rebuilt, used
from egraph.tensor.expr.index import Index, Iterator, index
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Apply, Guarded, Read, Reduction, Scalar, Scope, inside


def instantiate(scope: Scope, part: Scalar, parts: Sequence[Index] = (), order: Sequence[Iterator] = ()) -> Scope | Refusal:
    """{t} sum(i) [g ? a(x) * b : 0]  =  {t} sum(i) {x: [g ? a(x) : 0]}[x] * b, with the guards of x alone: im2col, layouts, padding

    With ``parts``, the instance has one element per value of these indices of x. ``order`` is the order of its iterators.
    """
    conditions, summand = pulled(scope.body, scope.reduction)
    iterators_of_part = used(part)
    near = tuple(c for c in conditions if iterators_of(c.left, c.right) <= iterators_of_part)
    iterators = tuple(order) if order else tuple(i for i in every(scope) if i in iterators_of_part)
    if not iterators or frozenset(iterators) != iterators_of_part:
        return Refusal("the part depends on no iterator, or on others than those given")
    inner = Scope.pointwise(iterators, where(near, part, Reduction.SUM))
    if not reads_inside(inner):
        return Refusal("a read leaves its tensor under the guards of its own iterators")
    read = Read(inner, tuple(map(index, iterators)))
    if parts:
        if isinstance(part, Read):  # reads are guarded again, because the indices will take more values
            limits = [c for size, at in zip(part.source.shape, part.indices, strict=True) for c in inside(at, 0, size)]
            inner = Scope.pointwise(iterators, where((*near, *limits), part, Reduction.SUM))
        made = substitute_indices(inner, parts, "inward")
        if isinstance(made, Refusal):
            return made
        outside = made.body.conditions if isinstance(made.body, Guarded) else ()  # they contain iterators that are gone inside
        near = tuple(c for c in near if c not in outside)
        value = made.body.then if isinstance(made.body, Guarded) else made.body
        assert isinstance(value, Read)
        read = value
    changed = _exchange(summand, part, read)
    if changed is summand:
        return Refusal("the part does not occur in the body")
    result = scope.with_body(where(conditions, changed, scope.reduction))
    if scope.reduction != "sum" or not _is_factor(summand, part):
        return result
    for dropped in (near, *((c,) for c in near)):  # a factor of 0 replaces its guard, except for reads of the other factors
        left, factors = pulled(result.body, Reduction.SUM)
        fewer = tuple(c for c in left if c not in dropped)
        less = Scope(scope.traversal, scope.summation, Reduction.SUM, where(fewer, factors, Reduction.SUM))
        result = less if reads_inside(less) else result
    coordinates = part.indices if isinstance(part, Read) and isinstance(part.source, Scope) and not parts else ()
    is_instance = coordinates and len(set(coordinates)) == len(iterators_of_part) == len(coordinates)
    if is_instance and len(pulled(result.body, Reduction.SUM)[0]) == len(conditions):
        return Refusal("the part is an instance already, and no guard is its own")
    return result


def sum_within(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """{t} sum(i, b) [g, c ? a * w(b) : 0]  =  {t} sum(i) [c ? a * {x: sum(b) [g ? w(b) : 0]}[x] : 0], if b occurs in w and in g alone

    and every iterator of g occurs in w.
    """
    if refusal := counted(scope):
        return refusal
    conditions, value = pulled(scope.body, scope.reduction)
    parts = flattened("mul", value)
    inside_of = [part for part in parts if iterator in used(part)]
    if scope.reduction != "sum" or iterator not in scope.summation or len(inside_of) != 1 or len(parts) < 2:
        return Refusal(f"{iterator.name} is not summed in one factor of several")
    (part,) = inside_of
    near = tuple(c for c in conditions if iterator in iterators_of(c.left, c.right))
    iterators = used(part)
    if any(not iterators_of(c.left, c.right) <= iterators for c in near):
        return Refusal(f"a guard of {iterator.name} holds an iterator that the factor does not have")
    also = tuple(c for c in conditions if c not in near and iterators_of(c.left, c.right) <= iterators)
    kept = tuple(i for i in every(scope) if i in iterators and i != iterator)
    inner = Scope(kept, (iterator,), Reduction.SUM, where((*near, *also), part, Reduction.SUM))
    read = Read(inner, tuple(map(index, kept)))
    product = applied("mul", [read if p is part else p for p in parts])
    body = where([c for c in conditions if c not in near], product, Reduction.SUM)
    summation = tuple(i for i in scope.summation if i != iterator)
    result = Scope(scope.traversal, summation, Reduction.SUM, body)
    if not (reads_inside(inner) and reads_inside(result)):
        return Refusal("a read leaves its tensor under the guards of its own iterators")
    return result


def without_axis(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """{t, p} body  =  {t, p} {t: body}[t], if p does not occur"""
    if iterator not in scope.traversal or iterator in used(scope.body):
        return Refusal(f"{iterator.name} is no traversal iterator, or it occurs")
    kept = tuple(i for i in scope.traversal if i != iterator)
    inner = Scope(kept, scope.summation, scope.reduction, scope.body)
    return Scope.pointwise(scope.traversal, Read(inner, tuple(map(index, kept))))


def _is_factor(body: Scalar, part: Scalar) -> bool:
    if body is part:
        return True
    return isinstance(body, Apply) and body.function == "mul" and any(_is_factor(a, part) for a in body.arguments)


def _exchange(body: Scalar, part: Scalar, new: Scalar) -> Scalar:
    """Return ``body`` with the object ``part`` exchanged, or ``body`` itself if it does not contain that object."""
    return new if body is part else rebuilt(body, lambda inner: _exchange(inner, part, new))
