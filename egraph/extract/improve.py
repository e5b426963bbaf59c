"""Better a choice by local moves: another choice for one class, or one more class that several others then share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from egraph.extract.problem import Choice, Chosen, Problem, order, total
from egraph.policy import ExtractPolicy

GAIN = 1e-9


def improve(problem: Problem, chosen: Chosen, fallback: Mapping[int, Choice], moves: int = ExtractPolicy.moves) -> Chosen:
    """Return a choice that no single move betters, looking at ``moves`` at most; ``fallback`` computes what a move needs."""
    cost = total(chosen)
    uses = _uses(problem, chosen)
    looked = 0
    better = True
    while better:
        better = False
        for move in _moves(problem, chosen):
            looked += 1
            if looked > moves:
                return chosen
            if _change(move, chosen, fallback, uses) >= -GAIN:
                continue
            trial = order(problem, {**fallback, **chosen, **move})
            if trial is not None and total(trial) < cost - GAIN:
                chosen, cost, uses, better = trial, total(trial), _uses(problem, trial), True
    return chosen


def _uses(problem: Problem, chosen: Chosen) -> dict[int, int]:
    """Return how many choices need each class; a root is needed once more."""
    uses = dict.fromkeys(chosen, 0)
    for number in (*problem.roots, *(need for choice in chosen.values() for need in choice.needs)):
        uses[number] += 1
    return uses


def _change(move: Mapping[int, Choice], chosen: Chosen, fallback: Mapping[int, Choice], uses: Mapping[int, int]) -> float:
    """Return what a move adds to the cost: of what is needed from now on, less what nothing needs any more."""
    use_counts: dict[int, int] = {}
    cost = 0.0
    coming: list[int] = []
    going: list[int] = []
    for number, choice in move.items():
        if number in chosen:
            cost += choice.cost - chosen[number].cost
            coming += choice.needs
            going += chosen[number].needs
    while coming:
        number = coming.pop()
        count = use_counts[number] = use_counts.get(number, uses.get(number, 0)) + 1
        if count == 1:
            new = move.get(number) or fallback.get(number)
            if new is None:
                return math.inf
            cost += new.cost
            coming += new.needs
    while going:
        number = going.pop()
        count = use_counts[number] = use_counts.get(number, uses.get(number, 0)) - 1
        if count == 0:
            old = move.get(number) or chosen.get(number) or fallback[number]
            cost -= old.cost
            going += old.needs
    return cost


def _moves(problem: Problem, chosen: Chosen) -> Iterator[dict[int, Choice]]:
    sharing: dict[int, dict[int, Choice]] = {}
    for number, current in chosen.items():
        for choice in problem.choices.get(number, ()):
            if choice is not current:
                yield {number: choice}
            for need in choice.needs:
                cheapest = sharing.setdefault(need, {}).get(number)
                if cheapest is None or choice.cost < cheapest.cost:
                    sharing[need][number] = choice
    yield from (users for users in sharing.values() if len(users) > 1)
