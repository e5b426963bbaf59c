"""Exact extraction: an integer program over choices, solved by CP-SAT within a deterministic budget."""

from __future__ import annotations

import functools
import math
import operator
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from egraph.extract.problem import Choice, Chosen, Problem, order, prune, strict, total
from egraph.policy import ExtractPolicy

JITTER = 1e-3
"""Relative noise added to costs, so that ties do not make the solver's answer arbitrary."""
RESOLUTION = 1e7
"""Number of objective units that the hint's cost is scaled to: integers with seven digits."""

ERROR_UNITS = 10**7
"""Number of units that the accepted error is scaled to."""

SUBSOLVERS = ("core", "max_lp")
"""Unsatisfiable cores raise the bound; a linear relaxation supplies the first bounds and solutions."""


@dataclass(frozen=True)
class Solution:
    """The best choice found, and whether it is proved optimal."""

    chosen: Chosen
    optimal: bool


def solve(
    problem: Problem,
    hint: Chosen,
    seconds: float,
    seed: int,
    different: Sequence[Mapping[int, Choice]] = (),
    policy: ExtractPolicy = ExtractPolicy(),
    most_seconds: float = math.inf,
) -> Solution | None:
    """Return the cheapest choice that omits at least one choice of each program in ``different``.

    Return None if there is no such choice, or none was found in ``most_seconds`` by the clock.
    """
    started = time.monotonic()
    limit = total(hint) * (policy.variant_slack if different else 1.0)
    problem = strict(prune(problem, limit * (1 + JITTER)))
    model = cp_model.CpModel()
    generator = random.Random(seed)
    scale = RESOLUTION / max(1e-9, sum(choice.cost for choice in hint.values()))
    needed = {number: model.new_bool_var(f"c{number}") for number in problem.choices}
    picks: dict[int, list[tuple[Choice, cp_model.IntVar]]] = {}
    component = _components(problem)
    sizes: dict[int, int] = {}
    for number in component.values():
        sizes[number] = sizes.get(number, 0) + 1
    level = {n: model.new_int_var(0, sizes[component[n]] - 1, f"l{n}") for n in problem.choices if sizes[component[n]] > 1}
    objective: list[cp_model.LinearExprT] = []
    for number, offered in problem.choices.items():
        picks[number] = [(choice, model.new_bool_var(f"x{number}_{i}")) for i, choice in enumerate(offered)]
        model.add(sum(variable for _, variable in picks[number]) == needed[number])
        for choice, variable in picks[number]:
            for need in choice.needs:
                model.add_implication(variable, needed[need])
                if component[need] == component[number]:
                    model.add(level[number] >= level[need] + 1).only_enforce_if(variable)
            weight = round(choice.cost * scale * (1 + JITTER * generator.random()))
            objective.append(max(weight, 1) * variable)  # at least 1, so that no unneeded class is computed
            model.add_hint(variable, number in hint and hint[number] is choice)
        model.add_hint(needed[number], number in hint)
    _add_entries(model, needed, picks, component)
    _add_bottlenecks(model, problem, picks, component)
    for root in problem.roots:
        model.add(needed[root] == 1)
    for program in different:
        same = [v for number, choice in program.items() for x, v in picks.get(number, []) if x is choice]
        if len(same) < len(program):
            continue  # it contains a pruned choice
        model.add_bool_or([variable.negated() for variable in same])
    if errors := [(choice.error, variable) for offered in picks.values() for choice, variable in offered if choice.error]:
        # Errors are rounded up, so that the true sum is within the limit if this one is. A single error that is too large is clipped to one
        # unit above the limit.
        units = [math.ceil(min(error, 1.0) * ERROR_UNITS) + (error > 1.0) for error, _ in errors]
        model.add(sum(unit * variable for unit, (_, variable) in zip(units, errors, strict=True)) <= ERROR_UNITS)
    model.minimize(sum(objective))
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False  # its handler would replace ours: Ctrl-C must end the run cleanly
    solver.parameters.relative_gap_limit = JITTER  # smaller differences are noise
    solver.parameters.num_workers = 2
    solver.parameters.interleave_search = True  # the same answer each time, whatever the machine's load
    solver.parameters.subsolvers.extend(SUBSOLVERS)
    solver.parameters.interleave_batch_size = 2
    solver.parameters.max_deterministic_time = policy.solver_units * seconds
    left_seconds = most_seconds - (time.monotonic() - started)
    solver.parameters.max_time_in_seconds = max(0.0, min(2 * seconds, left_seconds))  # takes effect only on loaded machines
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    picked = {n: choice for n, offered in picks.items() for choice, variable in offered if solver.boolean_value(variable)}
    chosen = order(problem, picked)
    return None if chosen is None else Solution(chosen, status == cp_model.OPTIMAL)


def _add_entries(
    model: cp_model.CpModel,
    needed: Mapping[int, cp_model.IntVar],
    picks: Mapping[int, Sequence[tuple[Choice, cp_model.IntVar]]],
    component: Mapping[int, int],
) -> None:
    """Add constraints that the levels imply but that their linear relaxation loses.

    Every needed component is entered from outside, and of two classes that can be made from each other, one is made otherwise.
    """
    members: dict[int, set[int]] = {}
    for number, index in component.items():
        members.setdefault(index, set()).add(number)
    for part in members.values():
        if len(part) > 1:
            entries = [variable for number in sorted(part) for choice, variable in picks[number] if part.isdisjoint(choice.needs)]
            for number in sorted(part):
                model.add(sum(entries) >= needed[number])
                for need in sorted(part - {number}):
                    through = [variable for choice, variable in picks[number] if need in choice.needs]
                    if through:
                        model.add(sum(through) <= sum(variable for choice, variable in picks[need] if number not in choice.needs))


def _add_bottlenecks(
    model: cp_model.CpModel,
    problem: Problem,
    picks: Mapping[int, Sequence[tuple[Choice, cp_model.IntVar]]],
    component: Mapping[int, int],
) -> None:
    """Add that the components on all ways to a root are entered; the program decomposes there."""
    members: dict[int, list[int]] = {}
    for number, index in component.items():
        members.setdefault(index, []).append(number)
    through: dict[int, int] = {}  # by component, a bit for each component that all its ways pass through
    entries: dict[int, list[cp_model.IntVar]] = {}
    for index, part in members.items():  # operands' components come first
        paths: list[int] = []
        entries[index] = []
        for number in part:
            for choice, variable in picks[number]:
                if all(component[need] != index for need in choice.needs):
                    entries[index].append(variable)
                    paths.append(functools.reduce(operator.or_, (through[component[need]] for need in choice.needs), 0))
        through[index] = functools.reduce(operator.and_, paths) | 1 << index
    for index in {i for root in problem.roots for i in _bits(through[component[root]])}:
        model.add_bool_or(entries[index])


def _bits(number: int) -> list[int]:
    return [i for i in range(number.bit_length()) if number >> i & 1]


def _components(problem: Problem) -> dict[int, int]:
    """Number the strongly connected components, operands' first (Tarjan's algorithm), because a cycle lies within one component."""
    needs = {number: [need for choice in offered for need in choice.needs] for number, offered in problem.choices.items()}
    component: dict[int, int] = {}
    entered: dict[int, int] = {}
    lowest: dict[int, int] = {}  # the earliest entry number on the path that is reached
    path: list[int] = []
    calls: list[tuple[int, Iterator[int]]] = []

    def enter(number: int) -> None:
        entered[number] = lowest[number] = len(entered)
        path.append(number)
        calls.append((number, iter(needs.get(number, ()))))

    count = 0
    for root in needs:
        if root not in entered:
            enter(root)
        while calls:
            number, unvisited = calls[-1]
            for need in unvisited:
                if need not in entered:
                    enter(need)
                    break
                if need not in component:
                    lowest[number] = min(lowest[number], entered[need])
            else:
                calls.pop()
                if calls:
                    lowest[calls[-1][0]] = min(lowest[calls[-1][0]], lowest[number])
                if lowest[number] == entered[number]:
                    at = path.index(number)
                    component |= dict.fromkeys(path[at:], count)
                    del path[at:]
                    count += 1
    return component
