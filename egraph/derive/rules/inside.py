"""Decide whether reads stay inside their tensors, and where guards can hold at all: by intervals, else by trying all values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from egraph.tensor.expr.bodies import guarded_reads
from egraph.tensor.expr.conditions import slack, truth
from egraph.tensor.expr.evaluate import Evaluator
from egraph.tensor.expr.index import DataIndex, Index, Iterator, Size, atoms, bounds, index, known, length, substitute
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.scope import Compare, Read, Scope

MOST_POINTS = 1 << 16
"""The most positions that are tried if intervals do not decide."""


def reads_inside(scope: Scope) -> bool:
    """Return whether every read of the body provably lies inside its tensor wherever its guards hold."""
    for read, conditions in guarded_reads(scope.body):
        shape = read.source.shape if isinstance(read, Read) else read.shape
        if not all(_follows_inside(coordinate, size, conditions) for coordinate, size in zip(read.indices, shape, strict=True)):
            return False
    return True


def _follows_inside(position: Index, size: Size, conditions: tuple[Compare, ...]) -> bool:
    low, high = Compare(index(0), "<=", position), Compare(position, "<", index(size))
    unproved = [c for c in (low, high) if not truth(c) and not any(_implies(condition, c) for condition in conditions)]
    return not unproved or _tried(unproved, conditions)


def _implies(condition: Compare, required: Compare) -> bool:
    slack_of_condition, slack_of_required = slack(condition), slack(required)
    if slack_of_condition is None or slack_of_required is None:
        return False
    limits = bounds(slack_of_required - slack_of_condition)
    return limits is not None and limits[0] >= 0


def _tried(unproved: Sequence[Compare], conditions: Sequence[Compare]) -> bool:
    iterators = sorted(iterators_of(*(side for c in unproved for side in (c.left, c.right))), key=lambda i: i.name)
    near = [c for c in conditions if iterators_of(c.left, c.right) <= set(iterators)]
    everything = [side for c in (*unproved, *near) for side in (c.left, c.right)]
    if any(isinstance(atom, DataIndex) for side in everything for atom in atoms(side)):
        return False
    if any(bounds(index(i)) is None for i in iterators) or math.prod(length(i) for i in iterators) > MOST_POINTS:
        return False
    env = _everywhere(iterators)
    evaluator = Evaluator({}, "float64", {})
    holds = evaluator.conditions(near, env)
    return bool((evaluator.conditions(unproved, env) | ~holds).all())


def _everywhere(iterators: Sequence[Iterator]) -> dict[Iterator, np.ndarray]:
    return {i: np.arange(known(i.low), known(i.high)).reshape([-1 if j is i else 1 for j in iterators]) for i in iterators}


def feasible_range(iterator: Iterator, conditions: Iterable[Compare]) -> tuple[int, int] | None:
    """Return the smallest [low, high) outside which some condition fails for every value of the other iterators; None if it is empty."""
    about = [c for c in conditions if iterator in iterators_of(c.left, c.right)]
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
