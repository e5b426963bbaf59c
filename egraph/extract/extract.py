"""Extract the k best distinct programs. All k are timed end to end afterwards, because the additive cost may rank them wrongly."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from egraph.extract.greedy import greedy
from egraph.extract.problem import Choice, Chosen, Problem, build_problem, distinct, order, restrict, total, total_error
from egraph.policy import ExtractPolicy
from egraph.tensor import PLAIN, Candidate, FrozenEGraph, Selection

EXACT = "greedy without rounding"
"""The method of the program that stays in float32, which is always kept if others round."""


def extract(
    frozen: FrozenEGraph,
    candidates: Mapping[int, Sequence[Candidate]],
    k: int = 1,
    seconds: float = 10.0,
    seed: int = 0,
    policy: ExtractPolicy = ExtractPolicy(),
    most_seconds: float = math.inf,
) -> tuple[Selection, ...]:
    """Return up to ``k`` distinct selections, the cheapest first; with ``seconds`` of 0, only the greedy one.

    The best program is followed by the best one that differs in a costly kernel. Greedy programs follow: without each rule that the best
    uses, without each implementation, and without restrictions. They cover cases in which the cost model is wrong. If the best program
    rounds its operands, one that does not is the last, however slow. After ``most_seconds`` by the clock, the best selections so far are
    returned.
    """
    begun = time.monotonic()
    problem = build_problem(frozen, candidates, policy.spare)
    solutions: list[tuple[Chosen, str, bool, float]] = []

    def attempt(name: str, part: Problem, first: Chosen, budget: float, different: Sequence[Mapping[int, Choice]] = ()) -> None:
        from egraph.extract.solver import solve  # slow to import, and not needed if choices are recorded

        started = time.monotonic()
        solution = solve(part, first, budget, seed, different, policy, most_seconds - (started - begun))
        if solution is not None and (different or total(solution.chosen) <= total(first)):
            solutions.append((solution.chosen, name, solution.optimal, time.monotonic() - started))
        elif not different:
            solutions.append((first, f"greedy{name.removeprefix('cp-sat')}", False, time.monotonic() - started))

    first = greedy(problem, policy.moves)
    if seconds <= 0:
        return (Selection({n: choice.candidate for n, choice in first.items()}, total(first), False, "greedy", time.monotonic() - begun),)
    attempt("cp-sat", problem, first, seconds * policy.best_share)
    best = solutions[0][0]
    if k > 1:
        for name, part, different in itertools.islice(_variants(problem, best, policy.meaningful), k + 1):
            spent_seconds = time.monotonic() - begun
            if spent_seconds > most_seconds or (spent_seconds > policy.patience * seconds and len(solutions) > 1):
                break  # only a safety net: the variants that are tried should not depend on the machine's load
            if different:
                attempt(f"cp-sat {name}", part, first, seconds * policy.variant_share, different)
            else:
                tried = time.monotonic()
                variant = greedy(part, policy.moves)
                if total_error(variant) <= 1:
                    solutions.append((variant, f"greedy {name}", False, time.monotonic() - tried))
        if first is not best:
            solutions.append((first, "greedy", False, 0.0))
        if any(map(_rounds, best.values())) and (exact := restrict(problem, lambda choice: not _rounds(choice))):
            solutions.append((greedy(exact, policy.moves), EXACT, False, 0.0))
    return _ranked(problem, solutions, k, policy.worth_timing)


def _ranked(
    problem: Problem, solutions: Sequence[tuple[Chosen, str, bool, float]], k: int, worth_timing: float
) -> tuple[Selection, ...]:
    limit = worth_timing * total(solutions[0][0])
    unique = {id(chosen) for chosen in distinct(chosen for chosen, *_ in solutions)}
    worth = (entry for entry in solutions if id(entry[0]) in unique and (total(entry[0]) <= limit or entry[1] == EXACT))
    ranked = sorted(worth, key=lambda entry: total(entry[0]))
    exact = [entry for entry in ranked[k:] if entry[1] == EXACT]
    ranked = [*ranked[: k - len(exact)], *exact]
    return tuple(
        Selection({n: choice.candidate for n, choice in chosen.items()}, total(chosen), optimal, method, seconds)
        for chosen, method, optimal, seconds in ranked
        if order(problem, chosen) is not None
    )


def _variants(
    problem: Problem, best: Chosen, meaningful: float
) -> Iterator[tuple[str, Problem, tuple[Mapping[int, Choice], ...]]]:  # fmt: skip
    """Yield restricted problems; those that remove the best program's largest costs come first."""
    bound = meaningful * total(best)
    costly = {n: choice for n, choice in best.items() if choice.cost >= bound} or dict(best)
    yield "with another costly kernel", problem, (costly,)
    for kind, names_of in (("rule", _rules), ("implementation", _implementations)):
        share: dict[str, float] = {}
        for choice in best.values():
            for name in names_of(choice):
                share[name] = share.get(name, 0.0) + choice.cost
        for name in sorted(share, key=lambda name: (-share[name], name)):
            part = restrict(problem, _without(name, names_of))
            if part is not None:
                yield f"without {kind} {name}", part, ()


def _rounds(choice: Choice) -> bool:
    return choice.candidate.implementation.precision != PLAIN


def _rules(choice: Choice) -> frozenset[str]:
    """Return the rules of a choice; a derivation counts by its name and by the name's first word, which all of its kind share."""
    names = [node.rule for node in choice.candidate.covered if node.rule]
    return frozenset(names).union(name.partition(" ")[0] for name in names)


def _implementations(choice: Choice) -> frozenset[str]:
    return frozenset({choice.candidate.implementation.text} - {""})


def _without(name: str, names_of: Callable[[Choice], frozenset[str]]) -> Callable[[Choice], bool]:
    return lambda choice: name not in names_of(choice)
