"""Repairs of conflicts: composed rules that bring a contraction nearer to its target. Each yields the rule's name and the new scope."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from egraph.derive.digits import digits, factors_of
from egraph.derive.rules.bodies import Refusal, where
from egraph.derive.rules.indices import substitute_indices
from egraph.derive.rules.instances import instantiate, sum_within, without_axis
from egraph.derive.rules.summation import guards_outward, split_summation
from egraph.derive.targets import Conflict, Target, conflicts, is_digits
from egraph.derive.trees import Contraction, within
from egraph.derive.windows import windows
from egraph.tensor.expr.bodies import applied, reads_of, used
from egraph.tensor.expr.index import Index, Iterator
from egraph.tensor.expr.printing import format_scalar
from egraph.tensor.expr.scope import Apply, Reduction, Scalar, Scope

Repaired = tuple[str, Scope]


def repairs(contraction: Contraction, conflict: Conflict, target: Target) -> Iterable[Repaired]:
    """Yield the repairs of one conflict."""
    for name, result in _ways(contraction, conflict, target):
        if isinstance(result, Scope):
            yield name, result


def _ways(contraction: Contraction, conflict: Conflict, target: Target) -> Iterable[tuple[str, Scope | Refusal]]:
    scope, coordinate = contraction.scope, conflict.coordinate
    if conflict.operand < 0 and coordinate is not None:
        for iterator in conflict.iterators:
            yield "summation of one factor", sum_within(scope, iterator)
            yield "traversal merging", without_axis(scope, iterator)
        return
    if conflict.operand < 0 and conflict.condition is None:
        for first, second in combinations(contraction.operands, 2):
            product = f"{format_scalar(first)} and {format_scalar(second)}"
            yield f"instantiation of the product of {product}", together(contraction, first, second)
        return
    if conflict.operand < 0:
        yield "guards outward", guards_outward(scope)
        for operand in contraction.operands:
            if conflict.iterators <= used(operand):
                yield "instantiation", instantiate(scope, operand)
        return
    operand = contraction.operands[conflict.operand]
    if coordinate is None:
        mixed = [p for p in dict.fromkeys(p for read in reads_of(operand) for p in read.indices) if not is_digits(p)]
        if mixed:
            yield "instantiation at indices", instantiate(scope, operand, mixed)
        yield "instantiation", instantiate(scope, operand)
        return
    coordinates = [c.coordinate for c in conflicts(contraction, target) if c.operand == conflict.operand and c.coordinate is not None]
    for factor in factors_of(coordinate):
        yield f"digits of {factor}", digits(contraction, conflict.operand, coordinates, factor)
    summed = [i for i in scope.summation if i in conflict.iterators]
    if target.windows:
        yield from windows(contraction, operand, coordinates, target)
    else:
        yield "instantiation", instantiate(scope, operand)
        if summed:
            yield "summation splitting and substitution", outward(scope, summed, coordinate)


def together(contraction: Contraction, first: Scalar, second: Scalar) -> Scope | Refusal:
    """a * b * c  =  {x: a * b}[x] * c"""
    scope, part = contraction.scope, Apply("mul", (first, second))
    factors = [o for o in contraction.operands if o is not first and o is not second]
    body = where(contraction.conditions, applied("mul", (part, *factors)), Reduction.SUM)
    return instantiate(Scope(scope.traversal, scope.summation, Reduction.SUM, body), part)


def outward(scope: Scope, summed: list[Iterator], coordinate: Index) -> Scope | Refusal:
    """{t} sum(o, i) body(e(t, o))  =  {t} sum(o) [g ? {y, ...: sum(i) body(y)}[e(t, o), ...] : 0]: every product of a tap once"""
    outside = split_summation(scope, summed)
    return outside if isinstance(outside, Refusal) else within(outside, lambda inner: substitute_indices(inner, [coordinate]))
