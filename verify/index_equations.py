"""Solve index equations for iterators by unit coefficients, mixed radix, and floor-divisions as separate unknowns.

Solutions are guesses that a proof then checks, so they need not be correct, only often useful.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from egraph.tensor.expr.index import Iterator
from verify.facts import Facts
from verify.literals import closure, closure_of, isolated
from verify.polynomials import ONE, FloorAtom, Polynomial, divide, entry, replaced

_STEPS = 64


def solve(equations: Iterable[Polynomial], unknowns: Set[int], facts: Facts) -> dict[int, Polynomial]:
    """Return the values of unknown iterators in terms of the other atoms if ``equation == 0`` for all equations."""
    pending = [value for equation in equations if (value := facts.canonical(equation)).terms]
    solution: dict[int, Polynomial] = {}
    for _ in range(_STEPS):
        step = _step(pending, unknowns - solution.keys(), facts)
        if step is None:
            break
        used, atom, value, added = step
        pending = [p for i, p in enumerate(pending) if i != used] + added
        replace = {atom: value}
        pending = [p for q in pending if (p := facts.canonical(replaced(q, replace))).terms]
        if not isinstance(entry(atom).kind, FloorAtom):
            solution = {a: facts.canonical(replaced(v, replace)) for a, v in solution.items()}
            solution[atom] = facts.canonical(value)
    left = unknowns - solution.keys()
    return {a: v for a, v in solution.items() if not closure(v) & left}


Step = tuple[int, int, Polynomial, list[Polynomial]]


def _step(equations: Sequence[Polynomial], unknowns: Set[int], facts: Facts) -> Step | None:
    """Return the safest step as (equation used, atom, its value, new equations), None if there is none."""
    hidden = [{a for a in e.atoms() if not unknowns.isdisjoint(closure_of(a))} for e in equations]
    for number, (equation, atoms) in enumerate(zip(equations, hidden, strict=True)):
        if len(atoms) == 1 and (solved := _single(equation, next(iter(atoms)), unknowns, facts)) is not None:
            return number, *solved, []
    for number, (equation, atoms) in enumerate(zip(equations, hidden, strict=True)):
        for atom in sorted(atoms, key=lambda a: entry(a).key):
            if isinstance(entry(atom).kind, FloorAtom) and (value := isolated(equation, atom)) is not None:
                others = [e for i, e in enumerate(equations) if i != number]
                if any(atom in closure(e) for e in others):
                    return number, atom, value, []
    for number, (equation, atoms) in enumerate(zip(equations, hidden, strict=True)):
        if len(atoms) > 1 and (radix := _radix(equation, atoms, facts)) is not None:
            return number, *radix
    for number, (equation, atoms) in enumerate(zip(equations, hidden, strict=True)):
        for atom in sorted(atoms, key=lambda a: entry(a).key, reverse=True):
            if atom in unknowns and (value := isolated(equation, atom)) is not None:
                return number, atom, value, []
    return None


def _single(equation: Polynomial, atom: int, unknowns: Set[int], facts: Facts) -> tuple[int, Polynomial] | None:
    if atom not in unknowns:
        return None
    value = isolated(equation, atom)
    if value is not None:
        return atom, value
    parts = equation.collect(atom)
    if len(parts) != 2 or atom in closure(parts[0]) or atom in closure(parts[1]):
        return None
    others, slope = parts
    if facts.nonnegative(slope - ONE):
        return atom, facts.floor(facts.canonical(-others), slope)
    if facts.nonnegative(-slope - ONE):
        return atom, facts.floor(others, -slope)
    return None


def _radix(equation: Polynomial, atoms: Set[int], facts: Facts) -> tuple[int, Polynomial, list[Polynomial]] | None:
    """Read the lowest digit: u = v % d from u + d * (...) = v with 0 <= u < d."""
    slopes: dict[int, Polynomial] = {}
    offset = equation
    for atom in sorted(atoms, key=lambda a: entry(a).key):
        parts = offset.collect(atom)
        if len(parts) != 2 or closure(parts[1]) & atoms or not isinstance(entry(atom).kind, Iterator):
            return None
        offset, slopes[atom] = parts
    for atom, slope in slopes.items():
        sign = slope.constant
        if sign not in (1, -1):
            continue
        others = {a: (-s if sign < 0 else s) for a, s in slopes.items() if a != atom}
        low, high = facts.canonical(_end(atom, 0)), facts.canonical(_end(atom, 1))
        for base in (signed for slope in others.values() for signed in (slope, -slope)):
            if base.constant in (1, -1) or not facts.nonnegative(base - high + low) or not facts.nonnegative(base - ONE):
                continue
            quotients = {a: divide(s, base) for a, s in others.items()}
            if any(remainder.terms for _, remainder in quotients.values()):
                continue
            value = (offset if sign < 0 else -offset) - low
            carried = facts.floor(facts.canonical(value), base)
            upper = -carried
            for iterator, (quotient, _) in quotients.items():
                upper = upper + quotient * Polynomial({(iterator,): 1})
            return atom, value - base * carried + low, [facts.canonical(upper)]
    return None


def _end(atom: int, side: int) -> Polynomial:
    low, high = entry(atom).low, entry(atom).high
    assert low is not None and high is not None, "an iterator has a range"
    return high if side else low


