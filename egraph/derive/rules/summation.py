"""Summation splitting and traversal merging: make an outer scope that reduces or only reads an inner one, and merge them again."""

from __future__ import annotations

from collections.abc import Collection

from egraph.derive.rules.bodies import Refusal, counted, pulled, replaced, where
from egraph.derive.rules.inside import reads_inside
from egraph.tensor.expr.index import Index, Iterator, Size, index
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Guarded, Read, Reduction, Scope


def split_summation(scope: Scope, outward: Collection[Iterator]) -> Scope | Refusal:
    """{t} sum(o, i) body  =  {t} sum(o) {t, o: sum(i) body}[t, o]"""
    if refusal := counted(scope):
        return refusal
    moved = tuple(i for i in scope.summation if i in outward)
    if not moved or len(moved) != len(outward):
        return Refusal("at least one iterator must be moved outward, and only summation iterators")
    kept = tuple(i for i in scope.summation if i not in outward)
    traversal = scope.traversal + moved
    inner = Scope(traversal, kept, scope.reduction if kept else Reduction.SUM, scope.body)
    return Scope(scope.traversal, moved, scope.reduction, Read(inner, tuple(map(index, traversal))))


def merge_traversal(scope: Scope) -> Scope | Refusal:
    """{t} sum(o) [g ? {u: sum(i) body}[e] : 0]  =  {t} sum(o, i) [g ? body at u = e : 0]

    if both reduce alike or one of them does not reduce, and 0 is the identity of the inner reduction, or anything if it does not reduce.
    """
    inner = inner_read(scope)
    if inner is None:
        return Refusal("the body is not a read of an inner scope under guards")
    source, coordinates = inner
    if scope.summation and source.summation and scope.reduction != source.reduction:
        return Refusal(f"a {scope.reduction} of a {source.reduction} is no single reduction")
    reduction = source.reduction if source.summation else scope.reduction
    otherwise = scope.body.otherwise if isinstance(scope.body, Guarded) else reduction.identity
    if otherwise != reduction.identity and source.summation:
        return Refusal(f"what stands where the guards fail is not ignored by {reduction}")
    taken = {i.name for i in (*scope.traversal, *scope.summation)}
    renamed = tuple(_renamed(i, taken) for i in source.summation)
    names: dict[Iterator, Size] = dict(zip(source.traversal, coordinates, strict=True))
    names |= {old: index(new) for old, new in zip(source.summation, renamed, strict=True)}
    body = replaced(source.body, names)
    conditions = scope.body.conditions if isinstance(scope.body, Guarded) else ()
    if otherwise == reduction.identity:
        body = where(conditions, body, reduction)
    elif conditions:
        body = Guarded(conditions, body, otherwise)
    return Scope(scope.traversal, scope.summation + renamed, reduction, body)


def inner_read(scope: Scope) -> tuple[Scope, tuple[Index, ...]] | None:
    """Return the inner scope and its indices if the body is that read alone, under guards or not; else None."""
    body = scope.body.then if isinstance(scope.body, Guarded) else scope.body
    if isinstance(body, Read) and isinstance(body.source, Scope):
        return body.source, body.indices
    return None


def _renamed(iterator: Iterator, taken: set[str]) -> Iterator:
    name = iterator.name
    while name in taken:
        name += "'"
    taken.add(name)
    return Iterator(name, iterator.low, iterator.high)


def guards_outward(scope: Scope) -> Scope | Refusal:
    """{t} sum(i) [g(t), c ? body : 0]  =  {t} [g(t) ? {t: sum(i) [c ? body : 0]}[t] : 0]

    if no summation iterator occurs in g, and the reads stay inside their tensors without g.
    """
    conditions, value = pulled(scope.body, scope.reduction)
    reduced = frozenset(scope.summation)
    outer = tuple(c for c in conditions if not iterators_of(c.left, c.right) & reduced)
    if not outer:
        return Refusal("every guard depends on a summation iterator")
    body = where([c for c in conditions if c not in outer], value, scope.reduction)
    inner = scope.with_body(body)
    if not reads_inside(inner):
        return Refusal("a read leaves its tensor where the guards outside fail")
    read = Read(inner, tuple(map(index, scope.traversal)))
    return Scope.pointwise(scope.traversal, Guarded(outer, read, scope.reduction.identity))
