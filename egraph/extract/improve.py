"""Better a choice by local moves: another choice for one class, or one more class that several others then share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from egraph.extract.problem import Choice, Chosen, Problem, order, total

GAIN = 1e-9


def improve(problem: Problem, chosen: Chosen, fallback: Mapping[int, Choice], seconds: float) -> Chosen:
    """Return a choice that no single move betters, or the best when the time ends; ``fallback`` computes what a move needs."""
    end = time.monotonic() + seconds
    cost = total(chosen)
    better = True
    while better:
        better = False
        for move in _moves(problem, chosen):
            if time.monotonic() > end:
                return chosen
            trial = order(problem, {**fallback, **chosen, **move})
            if trial is not None and total(trial) < cost - GAIN:
                chosen, cost, better = trial, total(trial), True
                break
    return chosen


def _moves(problem: Problem, chosen: Chosen) -> Iterator[dict[int, Choice]]:
    sharing: dict[int, dict[int, Choice]] = {}
    for number, now in chosen.items():
        for choice in problem.choices.get(number, ()):
            if choice is not now:
                yield {number: choice}
            for need in choice.needs:
                known = sharing.setdefault(need, {}).get(number)
                if known is None or choice.cost < known.cost:
                    sharing[need][number] = choice
    yield from (users for users in sharing.values() if len(users) > 1)
