"""A first program, greedily: each class takes the choice whose whole set of needed classes costs least. Local moves then improve it:
another choice for one class, or one more class that several others then share."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from egraph.extract.problem import Choice, Chosen, Problem, order, restrict, total, total_error
from egraph.policy import ExtractPolicy

PRICES = 12
"""The largest number of error prices that are tried."""


def greedy(problem: Problem, moves: int = ExtractPolicy.moves) -> Chosen:
    """Return the greedy choice of the roots, improved by at most ``moves`` tried local moves.

    Where it uses up more than the accepted error, errors are priced, and the lowest price is searched at which a choice is within it.
    Where every choice uses up more, one is returned that does.
    """
    chosen = _greedy(problem, moves)
    if total_error(chosen) <= 1:
        return chosen
    within: Chosen | None = None
    price, too_low, enough = total(chosen), 0.0, math.inf
    for _ in range(PRICES):
        tried = _greedy(_priced(problem, price), moves)
        chosen = {number: next(c for c in problem.choices[number] if _is_same(c, priced_choice)) for number, priced_choice in tried.items()}
        if total_error(chosen) > 1:
            too_low = price
        else:
            within, enough = min(filter(None, (chosen, within)), key=total), price
        price = 16 * price if within is None else math.sqrt(enough * (too_low or enough / 256))
    if within is not None:
        return within
    exact = restrict(problem, lambda choice: not choice.error)
    return _greedy(exact, moves) if exact is not None else chosen


def _priced(problem: Problem, price: float) -> Problem:
    """Return the problem with errors as costs: so much for all that is accepted."""
    return Problem(
        problem.roots,
        {
            number: tuple(replace(c, candidate=replace(c.candidate, cost_us=c.cost + price * c.error)) for c in offered)
            for number, offered in problem.choices.items()
        },
    )


def _is_same(choice: Choice, priced: Choice) -> bool:
    candidate, priced_candidate = choice.candidate, priced.candidate
    return (candidate.fragment, candidate.operands, candidate.implementation, candidate.covered) == (
        priced_candidate.fragment, priced_candidate.operands, priced_candidate.implementation, priced_candidate.covered
    )  # fmt: skip


def _greedy(problem: Problem, moves: int) -> Chosen:
    best = _best_sets(problem)
    first = order(problem, best) or _first_computable(problem)
    return improve(problem, first, best, moves)


def _best_sets(problem: Problem) -> Chosen:
    """Return a choice a class; a shared operand counts once within a class's set, which trees do not see."""
    users: dict[int, list[int]] = {}
    for number, offered in problem.choices.items():
        for need in dict.fromkeys(need for choice in offered for need in choice.needs):
            users.setdefault(need, []).append(number)
    sets: dict[int, dict[int, float]] = {}
    totals: dict[int, float] = {}
    best: Chosen = {}
    numbers = _operands_first(problem)
    rank = {number: index for index, number in enumerate(numbers)}
    queue = list(range(len(numbers)))  # a heap: what is computed first is decided first, and seldom has to be decided again
    queued = set(numbers)
    while queue:
        number = numbers[heapq.heappop(queue)]
        queued.discard(number)
        improved = False
        for choice in problem.choices[number]:
            if any(need not in sets or number in sets[need] for need in choice.needs):
                continue
            if choice.cost + max((totals[need] for need in choice.needs), default=0.0) >= totals.get(number, math.inf):
                continue
            largest = max(choice.needs, key=lambda need: len(sets[need]), default=None)
            most = {} if largest is None else sets[largest]
            extra: dict[int, float] = {}
            for need in choice.needs:
                if need != largest:
                    extra |= {member: sets[need][member] for member in set(sets[need]).difference(most)}
            cost = choice.cost + math.fsum(extra.values()) + (0.0 if largest is None else totals[largest])
            if cost < totals.get(number, math.inf):
                merged = {**most, **extra, number: choice.cost}
                sets[number], totals[number], best[number], improved = merged, cost, choice, True
        if improved:
            for user in users.get(number, []):
                if user not in queued:
                    queued.add(user)
                    heapq.heappush(queue, rank[user])
    return best


def _operands_first(problem: Problem) -> list[int]:
    """Return the classes, operands before users as far as there are no cycles."""
    ordered: dict[int, None] = {}
    seen: set[int] = set()
    stack = [(root, False) for root in reversed(problem.roots)]
    while stack:
        number, ready = stack.pop()
        if ready:
            ordered[number] = None
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            stack += [(need, False) for choice in reversed(problem.choices[number]) for need in choice.needs if need not in seen]
    return list(ordered)


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


GAIN = 1e-9


def improve(problem: Problem, chosen: Chosen, fallback: Mapping[int, Choice], moves: int = ExtractPolicy.moves) -> Chosen:
    """Return a choice that no single move improves, trying at most ``moves``; ``fallback`` computes what a move needs."""
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
