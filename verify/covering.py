"""Prove extrema equal by covering each with the other: every value of one is reached by some choice of the other.

For all iterators of a choice there must exist iterators of the other side with the same value. Witnesses are guessed
from the index equations. Iterators that the equations leave free are tried at the ends of their ranges and where a condition
becomes tight. The part that one witness does not cover is left to the next. An empty extremum covers nothing and needs no cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice, product

from verify.facts import Facts
from verify.forms import Best, Choice, Sum, replaced_literal, replaced_sum
from verify.index_equations import solve
from verify.literals import Literal0, closure, isolated, negation
from verify.pairing import equations_of_choices
from verify.polynomials import ONE, Polynomial, entry, range_of, replaced
from verify.solver import holds, possible

Equal = Callable[[Sum, Sum, Facts], bool]
_PIECES = 60
"""Most pieces into which the domain of one choice is divided."""
_WITNESSES = 64
"""Most witnesses that are tried for one pair of choices."""
_COMBINATIONS = 1000
"""Most combinations of witnesses of independent blocks that are tried."""


def covers(covered: Best, by: Best, facts: Facts, equal: Equal) -> bool:
    """Return whether every value of ``covered`` is proved to be reached in ``by`` wherever the facts hold."""
    return all(_covered(choice, by.choices, covered.kind, facts, equal) for choice in covered.choices)


def _covered(choice: Choice, candidates: Sequence[Choice], kind: str, facts: Facts, equal: Equal) -> bool:
    if any(_covered_by_blocks(choice, candidate, facts, equal) for candidate in candidates if len(candidate.iterators) > 1):
        return True
    witnesses = [(c, w) for c in candidates for w in islice(_witnesses(choice, c, facts), _WITNESSES)]
    pieces = [choice.conditions]
    for _ in range(_PIECES):
        if not pieces:
            return True
        piece = pieces.pop()
        inside = facts.extended(piece)
        if inside.contradiction:
            continue
        chosen: tuple[Literal0, ...] | None = None
        for candidate, witness in witnesses:
            needed = _needed(candidate, witness, inside)
            if chosen is not None and len(needed) >= len(chosen):
                continue
            matched = inside.extended(needed)
            if needed and not possible(matched):
                continue
            if _reaches(choice.value, replaced_sum(candidate.value, witness), kind, matched, equal):
                chosen = needed
                if not needed:
                    break
        if chosen is None:
            if possible(inside):
                return False
            continue
        pieces += [(*piece, *chosen[:count], negation(condition)) for count, condition in enumerate(chosen)]
    return not pieces


def _covered_by_blocks(choice: Choice, candidate: Choice, facts: Facts, equal: Equal) -> bool:
    """Return whether one candidate covers a choice, with its iterators in blocks that no equation or condition joins.

    Each block has its own witnesses and its own proof that one of them is always in the domain. Every combination of witnesses has
    to give the value.
    """
    equations, inner_left, inner_right = equations_of_choices(choice, candidate)
    if inner_left - set(choice.iterators) or inner_right - set(candidate.iterators):
        return False
    blocks = _blocks(candidate, equations)
    inside = facts.extended(choice.conditions)
    if len(blocks) < 2 or not all(
        holds(inside, c) for c in candidate.conditions if not closure(c.value) & set(candidate.iterators)
    ):
        return False
    witnesses_by_block: list[list[dict[int, Polynomial]]] = []
    for block in blocks:
        conditions = tuple(c for c in candidate.conditions if closure(c.value) & block)
        part = Choice(tuple(a for a in candidate.iterators if a in block), conditions, candidate.value)
        related = [e for e in equations if closure(e) & block]
        witnesses = list(islice(_distinct(_completed(related, part, set(), set(), facts, len(block))), _WITNESSES))
        circular = any(closure(v) & set(candidate.iterators) for witness in witnesses for v in witness.values())
        if circular or not _always_fits(part, witnesses, inside):
            return False
        witnesses_by_block.append(witnesses)
    combinations = list(islice(product(*witnesses_by_block), _COMBINATIONS + 1))
    return len(combinations) <= _COMBINATIONS and all(
        equal(choice.value, replaced_sum(candidate.value, {a: v for witness in chosen for a, v in witness.items()}), inside)
        for chosen in combinations
    )


def _blocks(candidate: Choice, equations: Sequence[Polynomial]) -> list[set[int]]:
    """Return the candidate's iterators in blocks; iterators that an equation or condition mentions together are in one block."""
    blocks = [{a} for a in candidate.iterators]
    for value in (*equations, *(c.value for c in candidate.conditions)):
        mentioned = closure(value) & set(candidate.iterators)
        joined = [b for b in blocks if b & mentioned]
        if len(joined) > 1:
            blocks = [b for b in blocks if not b & mentioned] + [set().union(*joined)]
    return sorted(blocks, key=lambda b: min(entry(a).key for a in b))


def inhabited(choice: Choice, facts: Facts) -> bool:
    """Return whether a choice's domain is proved nonempty wherever the facts hold."""
    witnesses = list(islice(_distinct(_completed([], choice, set(), set(), facts, len(choice.iterators))), _WITNESSES))
    return _always_fits(choice, witnesses, facts)


def _always_fits(part: Choice, witnesses: Sequence[dict[int, Polynomial]], inside: Facts) -> bool:
    """Return whether, wherever the facts hold, one of the witnesses is in the domain."""
    pieces = [inside]
    for _ in range(_PIECES):
        if not pieces:
            return True
        piece = pieces.pop()
        needs = [_needed(part, witness, piece) for witness in witnesses]
        if not all(needs):
            continue
        usable = [n for n in needs if possible(piece.extended(n))]
        if not usable:
            if possible(piece):
                return False
            continue
        chosen = min(usable, key=len)
        pieces += [piece.extended((*chosen[:count], negation(condition))) for count, condition in enumerate(chosen)]
    return not pieces


def _reaches(value: Sum, candidate: Sum, kind: str, facts: Facts, equal: Equal) -> bool:
    """Return whether ``candidate`` is proved equal to ``value`` or, if both are numbers, at least as extreme."""
    mine, theirs = _number(value), _number(candidate)
    if mine is not None and theirs is not None:
        (a, b), (c, d) = mine, theirs
        higher = c * b - a * d if kind == "max" else a * d - c * b
        return holds(facts, Literal0(higher, ">="))
    return equal(value, candidate, facts)


def _number(value: Sum) -> tuple[Polynomial, Polynomial] | None:
    """Return (numerator, denominator >= 1) of a value that is a number."""
    if not value.terms:
        return Polynomial({}), ONE
    if len(value.terms) > 1:
        return None
    (term,) = value.terms
    return None if term.parts or term.iterators or term.conditions else (term.numerator, term.denominator)


def _needed(candidate: Choice, witness: dict[int, Polynomial], inside: Facts) -> tuple[Literal0, ...]:
    """Return those conditions for the witness to be in the candidate's domain that do not follow."""
    needed = [bound for atom, value in witness.items() for bound in _in_range(atom, value)]
    needed += [replaced_literal(condition, witness) for condition in candidate.conditions]
    return tuple(condition for condition in needed if not holds(inside, condition))


def _in_range(atom: int, value: Polynomial) -> tuple[Literal0, Literal0]:
    low, high = range_of(atom)
    return Literal0(value - low, ">="), Literal0(high - ONE - value, ">=")




def _witnesses(choice: Choice, candidate: Choice, facts: Facts) -> Iterable[dict[int, Polynomial]]:
    """Guess values of the candidate's iterators in terms of the choice's."""
    equations, inner_left, inner_right = equations_of_choices(choice, candidate)
    inner_left, inner_right = inner_left - set(choice.iterators), inner_right - set(candidate.iterators)
    yield from _distinct(_completed(equations, candidate, inner_left, inner_right, facts, len(candidate.iterators)))


def _distinct(witnesses: Iterable[dict[int, Polynomial]]) -> Iterable[dict[int, Polynomial]]:
    seen: list[dict[int, Polynomial]] = []
    for witness in witnesses:
        if witness not in seen:
            seen.append(witness)
            yield witness


def _completed(
    equations: list[Polynomial], candidate: Choice, inner_left: set[int], inner_right: set[int], facts: Facts, depth: int
) -> Iterable[dict[int, Polynomial]]:
    iterators = set(candidate.iterators)
    solution = solve(equations, iterators | inner_right, facts)
    solution = {a: v for a, v in solution.items() if a in iterators and not closure(v) & (inner_left | inner_right)}
    free = sorted(iterators - solution.keys(), key=lambda a: entry(a).key)
    if not free:
        yield solution
        return
    if not depth:
        return
    for atom in free:
        itself = Polynomial({(atom,): 1})
        for value in (*_ends(atom, candidate, solution, set(free), facts), *_quotients(atom, equations, set(free), facts)):
            yield from _completed([*equations, itself - value], candidate, inner_left, inner_right, facts, depth - 1)


def _ends(atom: int, candidate: Choice, solution: dict[int, Polynomial], free: set[int], facts: Facts) -> list[Polynomial]:
    """Return the ends of an iterator's range, and the values at which a condition with a unit coefficient becomes tight."""
    low, high = range_of(atom)
    ends = [low, high - ONE]
    conditions = [replaced_literal(c, solution) for c in candidate.conditions]
    conditions += [bound for a, v in solution.items() for bound in _in_range(a, v)]
    for condition in conditions:
        solved = isolated(facts.canonical(condition.value), atom)
        if solved is not None and not closure(solved) & free and solved not in ends:
            ends.append(solved)
    return ends


def _quotients(atom: int, equations: list[Polynomial], free: set[int], facts: Facts) -> list[Polynomial]:
    """Return v // c from c * atom + others = v, with the others at the lower ends of their ranges."""
    quotients: list[Polynomial] = []
    for equation in equations:
        parts = facts.canonical(equation).collect(atom)
        if len(parts) != 2 or parts[1].constant in (1, -1) or closure(parts[1]) & free:
            continue
        remainder, slope = parts
        for iterator in sorted((closure(remainder) & free) - {atom}, key=lambda a: entry(a).key):
            remainder = replaced(remainder, {iterator: range_of(iterator)[0]})
        for divisor, value in ((slope, -remainder), (-slope, remainder)):
            if facts.nonnegative(divisor - ONE):
                quotients.append(facts.floor(facts.canonical(value), divisor))
    return quotients
