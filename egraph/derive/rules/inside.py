"""Whether reads stay inside their tensors, and where guards can hold at all: by intervals, else by trying all values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from egraph.derive.rules.bodies import iterators_in
from egraph.tensor.expr.compose import truth
from egraph.tensor.expr.evaluate import Evaluator
from egraph.tensor.expr.index import DataIndex, Index, Iterator, Size, atoms, bounds, index, known, length, substitute
from egraph.tensor.expr.scope import Apply, Compare, Guarded, Read, Scalar, Scope, Table

MOST_POINTS = 1 << 16
"""Positions that are tried where intervals do not decide."""


def reads_inside(scope: Scope) -> bool:
    """Return whether every read of the body is seen to lie inside its tensor wherever its guards hold."""
    return all(_follows_inside(position, size, conditions) for position, size, conditions in _positions(scope.body, ()))


def _positions(body: Scalar, conditions: tuple[Compare, ...]) -> Iterable[tuple[Index, Size, tuple[Compare, ...]]]:
    match body:
        case Read(source, indices):
            for size, position in zip(source.shape, indices, strict=True):
                yield position, size, conditions
        case Table(shape, _, indices):
            for extent, position in zip(shape, indices, strict=True):
                yield position, extent, conditions
        case Apply(_, arguments):
            for argument in arguments:
                yield from _positions(argument, conditions)
        case Guarded(own, then, otherwise):
            yield from _positions(then, conditions + own)
            yield from _positions(otherwise, conditions)


def _follows_inside(position: Index, size: Size, conditions: tuple[Compare, ...]) -> bool:
    low, high = Compare(index(0), "<=", position), Compare(position, "<", index(size))
    wanted = [c for c in (low, high) if not truth(c) and not any(_implies(known, c) for known in conditions)]
    return not wanted or _tried(wanted, conditions)


def _slack(condition: Compare) -> Index | None:
    """Return the index that is at least 0 exactly where an inequality holds."""
    match condition.operator:
        case "<":
            return condition.right - condition.left - 1
        case "<=":
            return condition.right - condition.left
    return None


def _implies(known: Compare, wanted: Compare) -> bool:
    given, needed = _slack(known), _slack(wanted)
    if given is None or needed is None:
        return False
    limits = bounds(needed - given)
    return limits is not None and limits[0] >= 0


def _tried(wanted: Sequence[Compare], conditions: Sequence[Compare]) -> bool:
    own = sorted(iterators_in(*(side for c in wanted for side in (c.left, c.right))), key=lambda i: i.name)
    near = [c for c in conditions if iterators_in(c.left, c.right) <= set(own)]
    everything = [side for c in (*wanted, *near) for side in (c.left, c.right)]
    if any(isinstance(atom, DataIndex) for side in everything for atom in atoms(side)):
        return False
    if any(bounds(index(i)) is None for i in own) or math.prod(length(i) for i in own) > MOST_POINTS:
        return False
    env = _everywhere(own)
    evaluator = Evaluator({}, "float64", {})
    holds = evaluator.conditions(near, env)
    return bool((evaluator.conditions(wanted, env) | ~holds).all())


def _everywhere(iterators: Sequence[Iterator]) -> dict[Iterator, np.ndarray]:
    return {i: np.arange(known(i.low), known(i.high)).reshape([-1 if j is i else 1 for j in iterators]) for i in iterators}


def feasible_range(iterator: Iterator, conditions: Iterable[Compare]) -> tuple[int, int] | None:
    """Return the smallest [low, high) outside which some condition fails for every value of the other iterators; None when empty."""
    about = [c for c in conditions if iterator in iterators_in(c.left, c.right)]
    low, high = known(iterator.low), known(iterator.high)

    def possible(value: int) -> bool:
        return all(truth(_at(c, iterator, value)) is not False for c in about)

    while low < high and not possible(low):
        low += 1
    while low < high and not possible(high - 1):
        high -= 1
    return (low, high) if low < high else None


def _at(condition: Compare, iterator: Iterator, value: int) -> Compare:
    return Compare(substitute(condition.left, {iterator: value}), condition.operator, substitute(condition.right, {iterator: value}))
