"""Boundary relaxing and tightening: grow ranges if the added values are ignored, and shrink them if nothing is lost."""

from __future__ import annotations

from egraph.derive.rules.bodies import Refusal, counted, pulled, replaced, where
from egraph.derive.rules.inside import feasible_range, reads_inside
from egraph.tensor.expr.conditions import undecided
from egraph.tensor.expr.index import Iterator, index, length
from egraph.tensor.expr.scope import Guarded, Read, Scope, inside


def relax(scope: Scope, iterator: Iterator, before: int, after: int) -> Scope | Refusal:
    """sum(x < n) body  =  sum(x' < before + n + after) [0 <= x < n ? body : 0] at x = x' - before, for a summation iterator;

    {x < n} body  =  {x < n} {x': body at x = x' - before}[x + before], for a traversal iterator. The inner body is guarded like the sum's
    if a read would leave its tensor otherwise.
    """
    if refusal := counted(scope):
        return refusal
    if iterator not in (*scope.traversal, *scope.summation):
        return Refusal(f"{iterator.name} is no iterator of the scope")
    if before < 0 or after < 0 or before + after == 0:
        return Refusal("the range must grow")
    grown = Iterator(iterator.name, 0, before + length(iterator) + after)
    old = index(grown) - before
    body = replaced(scope.body, {iterator: old})
    limits = inside(old, 0, length(iterator))
    if iterator in scope.summation:
        summation = tuple(grown if i == iterator else i for i in scope.summation)
        return Scope(scope.traversal, summation, scope.reduction, where(limits, body, scope.reduction))
    traversal = tuple(grown if i == iterator else i for i in scope.traversal)
    inner = Scope(traversal, scope.summation, scope.reduction, body)
    if not reads_inside(inner):
        inner = Scope(traversal, scope.summation, scope.reduction, where(limits, body, scope.reduction))
    read = Read(inner, tuple(index(i) + (before if i == iterator else 0) for i in scope.traversal))
    return Scope.pointwise(scope.traversal, read)


def tighten(scope: Scope, iterator: Iterator) -> Scope | Refusal:
    """sum(x < n) [g ? body : 0]  =  sum(l <= x < h) [g ? body : 0], if g fails for every x outside [l, h);

    {x < n} sum [g ? body : 0]  =  {x < n} [l <= x < h ? {x' < h - l: sum [g ? body : 0] at x = x' + l}[x - l] : 0], likewise.
    """
    if refusal := counted(scope):
        return refusal
    conditions, _ = pulled(scope.body, scope.reduction)
    limits = feasible_range(iterator, conditions)
    if limits is None:
        return Refusal("the guards hold nowhere")
    low, high = limits
    if (low, high) == (0, length(iterator)):
        return Refusal(f"the guards may hold at both ends of {iterator.name}")
    shrunk = Iterator(iterator.name, 0, high - low)
    body = replaced(scope.body, {iterator: index(shrunk) + low})
    if iterator in scope.summation:
        return Scope(scope.traversal, tuple(shrunk if i == iterator else i for i in scope.summation), scope.reduction, body)
    inner = Scope(tuple(shrunk if i == iterator else i for i in scope.traversal), scope.summation, scope.reduction, body)
    read = Read(inner, tuple(index(i) - (low if i == iterator else 0) for i in scope.traversal))
    limits_outside = undecided(inside(index(iterator), low, high)) or ()
    return Scope.pointwise(scope.traversal, Guarded(limits_outside, read, scope.reduction.identity))
