"""A first program by greed: each class takes the choice whose whole set of needed classes costs least."""

from __future__ import annotations

import math
from collections import deque

from egraph.extract.improve import improve
from egraph.extract.problem import Chosen, Problem, order


def greedy(problem: Problem) -> Chosen:
    """Return the greedy choice of the roots, bettered by local moves."""
    best = _best_sets(problem)
    first = order(problem, best) or _first_computable(problem)
    return improve(problem, first, best)


def _best_sets(problem: Problem) -> Chosen:
    """Return a choice a class; a shared operand counts once within a class's set, which trees do not see."""
    users: dict[int, list[int]] = {}
    for number, offered in problem.choices.items():
        for need in dict.fromkeys(need for choice in offered for need in choice.needs):
            users.setdefault(need, []).append(number)
    sets: dict[int, dict[int, float]] = {}
    totals: dict[int, float] = {}
    best: Chosen = {}
    queue: deque[int] = deque(reversed(list(problem.choices)))
    queued = set(queue)
    while queue:
        number = queue.popleft()
        queued.discard(number)
        improved = False
        for choice in problem.choices[number]:
            if any(need not in sets or number in sets[need] for need in choice.needs):
                continue
            if choice.cost + max((totals[need] for need in choice.needs), default=0.0) >= totals.get(number, math.inf):
                continue
            merged: dict[int, float] = {}
            for need in choice.needs:
                merged.update(sets[need])
            merged[number] = choice.cost
            cost = math.fsum(merged.values())
            if cost < totals.get(number, math.inf):
                sets[number], totals[number], best[number], improved = merged, cost, choice, True
        if improved:
            for user in users.get(number, []):
                if user not in queued:
                    queued.add(user)
                    queue.append(user)
    return best


def _first_computable(problem: Problem) -> Chosen:
    """Return a choice that is acyclic by construction: only classes decided before are needed."""
    best: Chosen = {}
    grown = True
    while grown:
        grown = False
        for number, offered in problem.choices.items():
            if number not in best:
                ready = [choice for choice in offered if all(need in best for need in choice.needs)]
                if ready:
                    best[number] = min(ready, key=lambda choice: choice.cost)
                    grown = True
    result = order(problem, best)
    assert result is not None, "every class of a problem is computable"
    return result
