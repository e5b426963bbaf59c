"""The extraction problem: the candidates that can be part of a cheapest program, and the cost of a choice of them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from egraph.errors import ExtractError
from egraph.policy import ExtractPolicy
from egraph.tensor import Candidate, FrozenEGraph


@dataclass(frozen=True)
class Choice:
    """A candidate with the classes that must be computed first; constants and inputs are not among them."""

    candidate: Candidate
    needs: tuple[int, ...]

    @property
    def cost(self) -> float:
        return self.candidate.cost_us

    @property
    def error(self) -> float:
        return self.candidate.error


@dataclass(frozen=True)
class Problem:
    """The choices of every class that a program may need."""

    roots: tuple[int, ...]
    choices: Mapping[int, tuple[Choice, ...]]


Chosen = dict[int, Choice]
"""One choice for each needed class, operands before users."""


def build_problem(
    frozen: FrozenEGraph, candidates: Mapping[int, Sequence[Candidate]], spare: float = ExtractPolicy.spare
) -> Problem:  # fmt: skip
    """Return the reachable, computable choices without those that another choice with the same or fewer operands beats.

    A choice with the same operands as a cheaper one is kept if it costs at most ``spare`` times as much.
    """
    free = frozen.leaves
    roots = tuple(dict.fromkeys(root for root in frozen.roots if root not in free))
    offered: dict[int, tuple[Choice, ...]] = {}
    for number in sorted(candidates):
        if number not in free:
            raw = [Choice(c, tuple(dict.fromkeys(o for o in c.operands if o not in free))) for c in candidates[number]]
            offered[number] = tuple(choice for choice in raw if number not in choice.needs and math.isfinite(choice.cost))
    computable = _computable(offered)
    for root in roots:
        if root not in computable:
            ops = sorted({node.op for node in frozen.classes[root]})
            raise ExtractError(f"no kernel computes output class {root} ({', '.join(ops)}, {frozen.types[root]})")
    fit = {c: [x for x in choices if computable.issuperset(x.needs)] for c, choices in offered.items() if c in computable}
    kept = {c: _undominated(choices, spare) for c, choices in fit.items()}
    return _reachable(roots, kept)


def restrict(problem: Problem, allowed: Callable[[Choice], bool]) -> Problem | None:
    """Return the problem with only the choices that are ``allowed``, or None if the roots need others."""
    choices = {number: tuple(choice for choice in offered if allowed(choice)) for number, offered in problem.choices.items()}
    return _reachable(problem.roots, choices) if _computable(choices).issuperset(problem.roots) else None


def prune(problem: Problem, limit: float) -> Problem:
    """Return the problem without the choices that no program of cost up to ``limit`` can contain.

    A program that contains a choice pays for a chain from the leaves through it to a root, so the cheapest such chain is a lower bound.
    """
    users: dict[int, dict[int, None]] = {}
    for number, offered in problem.choices.items():
        for need in (need for choice in offered for need in choice.needs):
            users.setdefault(need, {})[number] = None
    up: dict[int, float] = dict.fromkeys(problem.choices, math.inf)
    queue = list(problem.choices)
    while queue:
        next_queue: dict[int, None] = {}
        for number in queue:
            best = min(x.cost + max((up[need] for need in x.needs), default=0.0) for x in problem.choices[number])
            if best < up[number]:
                up[number] = best
                next_queue |= users.get(number, {})
        queue = list(next_queue)
    down: dict[int, float] = dict.fromkeys(problem.roots, 0.0)
    heap = [(0.0, root) for root in problem.roots]
    while heap:
        cost, number = heapq.heappop(heap)
        if cost > down[number]:
            continue
        for choice in problem.choices[number]:
            for need in choice.needs:
                if cost + choice.cost < down.get(need, math.inf):
                    down[need] = cost + choice.cost
                    heapq.heappush(heap, (down[need], need))

    def possible(number: int, choice: Choice) -> bool:
        return down[number] + choice.cost + max((up[need] for need in choice.needs), default=0.0) <= limit

    kept = {n: tuple(x for x in offered if possible(n, x)) for n, offered in problem.choices.items() if n in down}
    return _reachable(problem.roots, {n: offered for n, offered in kept.items() if offered})


def _reachable(roots: tuple[int, ...], choices: Mapping[int, Sequence[Choice]]) -> Problem:
    """Return the problem that the roots reach, without choices that need a class without choices."""
    computable = _computable(choices)
    kept = {n: tuple(x for x in offered if computable.issuperset(x.needs)) for n, offered in choices.items() if n in computable}
    reached = dict.fromkeys(roots)
    queue = list(roots)
    for number in queue:
        for need in (n for choice in kept[number] for n in choice.needs):
            if need not in reached:
                reached[need] = None
                queue.append(need)
    return Problem(roots, {number: kept[number] for number in reached})


def _computable(choices: Mapping[int, Sequence[Choice]]) -> set[int]:
    users: dict[int, list[int]] = {}
    for number, offered in choices.items():
        for need in {need: None for choice in offered for need in choice.needs}:
            users.setdefault(need, []).append(number)
    done: set[int] = set()
    queue = list(choices)
    while queue:
        number = queue.pop()
        if number not in done and any(done.issuperset(choice.needs) for choice in choices[number]):
            done.add(number)
            queue += users.get(number, [])
    return done


def _undominated(choices: Sequence[Choice], spare: float) -> tuple[Choice, ...]:
    kept: list[Choice] = []
    for choice in sorted(choices, key=lambda x: x.cost):  # a stable sort: equal costs keep their order
        rivals = [k for k in kept if set(k.needs) <= set(choice.needs) and k.error <= choice.error]
        if not any(k.needs != choice.needs or choice.cost > spare * k.cost for k in rivals):
            kept.append(choice)
    return tuple(kept)


def strict(problem: Problem) -> Problem:
    """Return the problem without choices that cost no less than one with the same or fewer operands."""
    kept: dict[int, tuple[Choice, ...]] = {}
    for number, offered in problem.choices.items():
        best: list[Choice] = []
        for choice in sorted(offered, key=lambda x: x.cost):
            if not any(set(other.needs) <= set(choice.needs) and other.error <= choice.error for other in best):
                best.append(choice)
        kept[number] = tuple(best)
    return _reachable(problem.roots, kept)


def order(problem: Problem, chosen: Mapping[int, Choice]) -> Chosen | None:
    """Return the part of a choice that the roots need, operands first, or None if it is cyclic or incomplete."""
    result: Chosen = {}
    active: set[int] = set()
    stack: list[tuple[int, bool]] = [(root, False) for root in reversed(problem.roots)]
    while stack:
        number, ready = stack.pop()
        if ready:
            active.discard(number)
            result[number] = chosen[number]
        elif number not in result:
            if number in active or number not in chosen:
                return None
            active.add(number)
            stack.append((number, True))
            stack += [(need, False) for need in reversed(chosen[number].needs) if need not in result]
    return result


def total(chosen: Mapping[int, Choice]) -> float:
    """Return the cost of a choice, counting every class once."""
    return math.fsum(choice.cost for choice in chosen.values())


def total_error(chosen: Mapping[int, Choice]) -> float:
    """Return the part of the accepted error that a choice uses up."""
    return math.fsum(choice.error for choice in chosen.values())


def distinct(selections: Iterable[Chosen]) -> list[Chosen]:
    """Return the selections without repetitions."""
    seen: set[frozenset[tuple[int, int]]] = set()
    result = []
    for chosen in selections:
        key = frozenset((number, id(choice)) for number, choice in chosen.items())
        if key not in seen:
            seen.add(key)
            result.append(chosen)
    return result
