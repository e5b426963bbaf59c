"""Order the kernels of a selection for a low peak of live memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egraph.tensor import Candidate, FrozenEGraph


def schedule(frozen: FrozenEGraph, chosen: Mapping[int, Candidate]) -> tuple[int, ...]:
    """Return the chosen classes, operands first, in the better of two orders: depth first, and smallest growth first."""
    free = frozen.leaves
    needs = {n: tuple(dict.fromkeys(o for o in candidate.operands if o not in free)) for n, candidate in chosen.items()}
    roots = [root for root in dict.fromkeys(frozen.roots) if root in chosen]
    sizes = {n: frozen.types[n].size_bytes if frozen.types[n].is_static else 0 for n in chosen}
    plans = [_depth_first(needs, roots, sizes), _smallest_growth(needs, roots, sizes)]
    return min(plans, key=lambda plan: peak_bytes(plan, needs, roots, sizes))


def peak_bytes(plan: Sequence[int], needs: Mapping[int, Sequence[int]], roots: Sequence[int], sizes: Mapping[int, int]) -> int:
    """Return the peak memory of results while a plan runs; the roots stay live."""
    last = {need: position for position, number in enumerate(plan) for need in needs[number]}
    last |= {root: len(plan) for root in roots}
    ending: dict[int, list[int]] = {}
    for number, position in last.items():
        ending.setdefault(position, []).append(number)
    alive = peak = 0
    for position, number in enumerate(plan):
        alive += sizes[number]
        peak = max(peak, alive)
        alive -= sum(sizes[dead] for dead in ending.get(position, []))
    return peak


def _depth_first(needs: Mapping[int, Sequence[int]], roots: Sequence[int], sizes: Mapping[int, int]) -> tuple[int, ...]:
    plan: dict[int, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        number, ready = stack.pop()
        if ready:
            plan[number] = None
        elif number not in plan:
            stack.append((number, True))
            stack += [(need, False) for need in sorted(needs[number], key=lambda n: sizes[n]) if need not in plan]  # largest first
    return tuple(plan)


def _smallest_growth(needs: Mapping[int, Sequence[int]], roots: Sequence[int], sizes: Mapping[int, int]) -> tuple[int, ...]:
    order = _depth_first(needs, roots, sizes)
    rank = {number: position for position, number in enumerate(order)}
    users: dict[int, list[int]] = {number: [] for number in order}
    for user in order:
        for need in needs[user]:
            users[need].append(user)
    waiting = {number: len(needs[number]) for number in order}
    left = {number: len(users[number]) + (number in roots) for number in order}
    ready = [number for number in order if not waiting[number]]
    plan: list[int] = []
    while ready:

        def growth(number: int) -> tuple[int, int]:
            freed = sum(sizes[need] for need in needs[number] if left[need] == 1)
            return sizes[number] - freed, rank[number]

        number = min(ready, key=growth)
        ready.remove(number)
        plan.append(number)
        for need in needs[number]:
            left[need] -= 1
        for user in users[number]:
            waiting[user] -= 1
            if not waiting[user]:
                ready.append(user)
    return tuple(plan)
