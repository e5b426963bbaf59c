"""Find a first program greedily: each class takes the choice whose whole set of needed classes costs least.

Local moves then improve it. A move takes another choice for one class, or adds a class that several others then share.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from graphlib import TopologicalSorter
from itertools import pairwise

from egraph.extract.problem import Choice, Chosen, Problem, order, restrict, total, total_error
from egraph.policy import ExtractPolicy

PRICES = 12
"""Largest number of error prices that are tried."""


def greedy(problem: Problem, moves: int = ExtractPolicy.moves) -> Chosen:
    """Return the greedy choice of the roots, improved by at most ``moves`` tried local moves.

    If it exceeds the accepted error, errors are priced, and the lowest price is searched at which a choice is within the accepted error. If
    every choice exceeds it, the returned one does, too.
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
    """Return the problem with errors as costs; the whole accepted error costs ``price``."""
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
    """Return a choice per class. An operand that is shared within a class's set counts once, unlike in a tree's cost."""
    users: dict[int, list[int]] = {}
    for number, offered in problem.choices.items():
        for need in dict.fromkeys(need for choice in offered for need in choice.needs):
            users.setdefault(need, []).append(number)
    sets: dict[int, dict[int, float]] = {}
    totals: dict[int, float] = {}
    best: Chosen = {}
    numbers = _operands_first(problem)
    rank = {number: index for index, number in enumerate(numbers)}
    queue = list(range(len(numbers)))  # a heap: operands are decided before users, so few classes are decided again
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
    """Return the classes, with operands before users except in cycles."""
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
    """Return a choice that is acyclic by construction, because each class needs only classes that were decided before."""
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
    """Return a choice that no single move improves, trying at most ``moves``; ``fallback`` gives the choices of newly needed classes."""
    looked = 0
    better = True
    while better:
        better = False
        draft = _Draft(problem, chosen, fallback)
        for move in _moves(problem, chosen):
            looked += 1
            if looked > moves:
                break
            better = draft.take(move) or better
        if better:
            ordered = order(problem, draft.chosen)
            assert ordered is not None, "no move makes a cycle"
            chosen = ordered
        if looked > moves:
            break
    return chosen


class _Draft:
    """A choice that is improved by moves, with the number of uses of each class, and ranks by which operands come before users.

    ``fallback`` gives the choices of classes that are needed but not chosen.
    """

    def __init__(self, problem: Problem, chosen: Chosen, fallback: Mapping[int, Choice]) -> None:
        self.chosen = dict(chosen)
        self._problem, self._fallback = problem, fallback
        self._start()

    def _start(self) -> None:
        self._ranks = {number: float(rank) for rank, number in enumerate(self.chosen)}
        self._uses = dict.fromkeys(self.chosen, 0)
        for number in (*self._problem.roots, *(need for choice in self.chosen.values() for need in choice.needs)):
            self._uses[number] += 1  # a root has one more use

    def take(self, move: Mapping[int, Choice]) -> bool:
        """Apply a move if it costs less and makes no cycle; return whether it was."""
        change, uses = self._change(move)
        if change >= -GAIN:
            return False
        chosen = {number: choice for number, choice in move.items() if number in self.chosen}
        new = (number for number, count in uses.items() if count and number not in self.chosen)
        added = {number: move.get(number) or self._fallback[number] for number in new}
        changed, ranks = chosen | added, self._ranks_below(chosen, added)
        if ranks is None and self._makes_cycle(changed):
            return False
        if ranks is None:
            first = min(self._ranks[number] for number in chosen)
            last = max((self._ranks[need] for choice in changed.values() for need in choice.needs if need in self._ranks), default=first)
        self.chosen |= changed
        self._ranks |= ranks or {}
        self._uses |= uses
        for number in [number for number, count in uses.items() if not count and number in self.chosen]:
            del self.chosen[number]
            self._ranks.pop(number, None)
        if ranks is None:
            self._reorder(first, max(first, last))
        return True

    def _ranks_below(self, moved: Mapping[int, Choice], added: Mapping[int, Choice]) -> dict[int, float] | None:
        """Return ranks of added classes between those of their operands and those of the moved classes.

        Return None if no ranks fit: the move may make a cycle, or needs another order.
        """
        if any(self._ranks.get(need, -1.0) >= self._ranks[number] for number, choice in moved.items() for need in choice.needs):
            return None
        ranks: dict[int, float] = {}
        if not added:
            return ranks
        most = min(self._ranks[number] for number in moved)
        stack = list(added)
        opened: set[int] = set()
        while stack:
            number = stack[-1]
            missing = [need for need in added[number].needs if need in added and need not in ranks]
            if number in ranks:
                stack.pop()
            elif missing:
                if number in opened:
                    return None
                opened.add(number)
                stack += missing
            else:
                below = max((ranks.get(need, self._ranks.get(need, -1.0)) for need in added[number].needs), default=-1.0)
                ranks[number] = (below + most) / 2
                if not below < ranks[number] < most:
                    return None
        return ranks

    def _makes_cycle(self, changed: Mapping[int, Choice]) -> bool:
        """Return whether a class would need itself. Classes before all changed ones are skipped, because they need none of them."""
        first = min((self._ranks[number] for number in changed if number in self._ranks), default=math.inf)
        done: set[int] = set()
        active: set[int] = set()
        stack = [(number, False) for number in changed]
        while stack:
            number, is_done = stack.pop()
            if is_done:
                active.discard(number)
                done.add(number)
            elif number in active:
                return True
            elif number not in done and (number in changed or self._ranks.get(number, -1.0) >= first):
                active.add(number)
                stack.append((number, True))
                stack += [(need, False) for need in (changed.get(number) or self.chosen[number]).needs if need not in done]
        return False

    def _reorder(self, first: float, last: float) -> None:
        """Renew the ranks from ``first`` to ``last``, and give ranks between them to classes without one.

        All other operands already come before their users.
        """
        ranks = self._ranks
        inside = {number: None for number, rank in ranks.items() if first <= rank <= last}
        inside |= {number: None for number in self.chosen if number not in ranks}
        below = max((rank for rank in ranks.values() if rank < first), default=-1.0)
        above = min((rank for rank in ranks.values() if rank > last), default=last + 1.0)
        operands = {number: [need for need in self.chosen[number].needs if need in inside] for number in inside}
        ordered = tuple(TopologicalSorter(operands).static_order())
        step = (above - below) / (len(ordered) + 1)
        new = [below, *(below + step * (at + 1) for at in range(len(ordered))), above]
        if all(before < after for before, after in pairwise(new)):
            ranks |= dict(zip(ordered, new[1:-1], strict=True))
            return
        whole = order(self._problem, self.chosen)  # no floats are left between two ranks
        assert whole is not None, "no move makes a cycle"
        self.chosen = whole
        self._start()

    def _change(self, move: Mapping[int, Choice]) -> tuple[float, dict[int, int]]:
        """Return the change of the cost by a move (newly needed classes less those no longer needed), and the changed uses."""
        chosen, fallback, uses = self.chosen, self._fallback, self._uses
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
                    return math.inf, use_counts
                cost += new.cost
                coming += new.needs
        while going:
            number = going.pop()
            count = use_counts[number] = use_counts.get(number, uses.get(number, 0)) - 1
            if count == 0:
                old = move.get(number) or chosen.get(number) or fallback[number]
                cost -= old.cost
                going += old.needs
        return cost, use_counts


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
