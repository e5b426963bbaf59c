"""Ask Z3 whether facts entail a literal: over integers, with a deterministic resource limit, linear arithmetic first.

Products of atoms are first treated as separate unknowns, which linear arithmetic decides quickly, then as actual products. Only
"unsat" counts; every other answer leaves the question open. Z3 is imported when the first question is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from egraph.tensor.expr.index import Iterator, RealSymbol, Symbol
from verify.facts import Facts
from verify.literals import Literal0, Relation, closure, negation
from verify.polynomials import ONE, FloorAtom, Monomial, Polynomial, divide, entry
from verify.witnesses import instances, refuted

if TYPE_CHECKING:
    import z3

Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
_FALSE = Literal0(Polynomial({}), "!=")
_LONGEST = 4
"""Most terms of an inequality that is multiplied by factors."""
LINEAR_LIMIT, PRODUCT_LIMIT = 400_000, 1_500_000
"""Resource units of Z3. They are not seconds, because the answer must not depend on the load of the machine."""


def holds(facts: Facts, goal: Literal0) -> bool:
    """Return whether the facts entail a literal, trying cheap methods first; False also if that stays open."""
    value = facts.canonical(goal.value)
    number = value.constant
    if number is not None:
        return goal.holds_of(number)
    goal = Literal0(value, goal.relation)
    if goal not in facts.solved:
        facts.solved[goal] = _cheap(facts, goal) or (not refuted(facts, goal) and entailed(facts, goal))
    return facts.solved[goal]


def _cheap(facts: Facts, goal: Literal0) -> bool:
    match goal.relation:
        case ">=":
            return facts.nonnegative(goal.value)
        case "!=":
            return facts.nonnegative(goal.value - ONE) or facts.nonnegative(-goal.value - ONE)
    return False


def possible(facts: Facts) -> bool:
    """Return False only if the facts certainly contradict each other."""
    if _FALSE not in facts.solved:
        facts.solved[_FALSE] = facts.contradiction or (not instances(facts) and contradictory(facts))
    return not facts.solved[_FALSE]


def entailed(facts: Facts, goal: Literal0) -> bool:
    """Return whether the facts entail the literal; False also if Z3 reaches its limit."""
    return contradictory(facts, (negation(goal),))


def contradictory(facts: Facts, added: tuple[Literal0, ...] = ()) -> bool:
    """Return whether facts and literals have no common solution; False also if Z3 reaches its limit.

    Literals that share no atom, directly or through others, form separate questions, because they are contradictory only if one of the
    parts is. Questions about different axes then often coincide. If the facts have an instance, only parts with added literals are asked.
    """
    parts = _parts(_question(facts, added))
    if facts.instances and added:
        parts = [part for part in parts if not part.keys().isdisjoint(added)]
    numbered: list[Numbered] = []
    for part in parts:
        numbered.append(_numbered(part))
        if _check(numbered[-1], products=False):
            return True
    return any(_check(part, products=True) for part in numbered if any(len(m) > 1 for _, terms in part.literals for m, _ in terms))


def _parts(question: Iterable[Literal0]) -> list[dict[Literal0, None]]:
    """Group the literals by shared atoms; each part keeps the order of the question."""
    whole: dict[int, int] = {}
    """A union-find forest over atoms: atoms of one part have the same root."""

    def end(atom: int) -> int:
        while (further := whole.setdefault(atom, atom)) != atom:
            whole[atom] = whole[further]
            atom = further
        return atom

    firsts: list[int] = []
    literals = list(question)
    for literal in literals:
        atoms = [atom for monomial in literal.value.terms for atom in monomial]
        firsts.append(atoms[0] if atoms else -1)
        for atom in atoms[1:]:
            whole[end(atom)] = end(atoms[0])
    parts: dict[int, dict[Literal0, None]] = {}
    for literal, first in zip(literals, firsts, strict=True):
        parts.setdefault(end(first), {})[literal] = None
    return list(parts.values())


def _question(facts: Facts, added: tuple[Literal0, ...]) -> list[Literal0]:
    """Return the literals with the ranges and the definitions of their atoms."""
    question = [*added, *facts.kept()]
    seen: set[int] = set()
    pending = [a for literal in question for a in _in_order(literal.value)]
    while pending:
        atom = pending.pop()
        if atom in seen:
            continue
        seen.add(atom)
        definitions = facts.defined.get(atom)
        if definitions is None:
            definitions = facts.defined[atom] = tuple(definition(facts, atom))
        for value in definitions:
            question.append(Literal0(value, ">="))
            pending += _in_order(value)
    return [*question, *_consequences(facts, question)]


def _in_order(value: Polynomial) -> dict[int, None]:
    """Return the atoms in the order of the terms. A set's order depends on atom numbers and would make equal questions differ."""
    return dict.fromkeys(atom for monomial in value.terms for atom in monomial)


def _consequences(facts: Facts, question: list[Literal0]) -> list[Literal0]:
    """Return consequences that linear arithmetic over products misses: bounds of quotients, inequalities times factors >= 0.

    ``e >= k * d`` makes ``e // d >= k``, ``e < k * d`` makes ``e // d < k``; ``p >= 0`` makes ``p * b >= 0`` for the
    factors b with which p's atoms occur in products.
    """
    inequalities = [literal.value for literal in question if literal.relation == ">="]
    atoms = {a for literal in question for m in literal.value.terms for a in m}
    consequences: dict[Polynomial, None] = {}
    for atom in sorted(atoms):
        kind = entry(atom).kind
        if isinstance(kind, FloorAtom) and facts.nonnegative(kind.divisor - ONE):
            for value in inequalities:
                consequences |= dict.fromkeys(_of_quotient(atom, kind, value))
    products = {m for literal in question for m in literal.value.terms if len(m) > 1}
    products |= {m for value in consequences for m in value.terms if len(m) > 1}
    factors = _factors(products)
    for value in [*inequalities, *consequences]:
        if len(value.terms) > _LONGEST or not any(len(m) == 1 for m in value.terms):
            continue
        multipliers = {product for monomial in value.terms for product in factors.get(monomial, ())}
        for _, atom in sorted(multipliers):
            scaled = _times_atom(value, atom)
            if all(len(m) < 2 or m in products for m in scaled.terms):
                consequences[scaled] = None
    return [Literal0(value, ">=") for value in consequences]


@lru_cache(maxsize=1 << 16)
def _of_quotient(atom: int, kind: FloorAtom, value: Polynomial) -> tuple[Polynomial, ...]:
    """Return the consequences of ``value >= 0`` for a quotient with a positive divisor; cached, because the same pairs recur."""
    itself = Polynomial({(atom,): 1})
    bounds = []
    for dividend, lower in ((kind.numerator - value, True), (kind.numerator + value + ONE, False)):
        times, left = divide(dividend, kind.divisor)
        if not left.terms and not closure(times) & {atom}:
            bounds.append(itself - times if lower else times - ONE - itself)
    return tuple(bounds)


@lru_cache(maxsize=1 << 16)
def _times_atom(value: Polynomial, atom: int) -> Polynomial:
    return value * Polynomial({(atom,): 1})


def _factors(products: Iterable[Monomial]) -> dict[Monomial, list[tuple[Monomial, int]]]:
    """Map each product with one factor >= 0 removed to the products and removed factors."""
    factors: dict[Monomial, list[tuple[Monomial, int]]] = {}
    for monomial in products:
        for atom in set(monomial):
            others = tuple(a for a in monomial if a != atom)
            if len(others) == len(monomial) - 1 and _not_negative(atom):
                factors.setdefault(others, []).append((monomial, atom))
    return factors


def _not_negative(atom: int) -> bool:
    kind = entry(atom).kind
    return (isinstance(kind, Symbol) and kind.minimum >= 0) or (isinstance(kind, Iterator) and kind.low == 0)


def definition(facts: Facts, atom: int) -> list[Polynomial]:
    """Return polynomials that are >= 0 by the definition of an atom."""
    atom_entry, itself = entry(atom), Polynomial({(atom,): 1})
    match atom_entry.kind:
        case Symbol(_, minimum):
            return [itself - Polynomial({(): minimum} if minimum else {})]
        case Iterator():
            assert atom_entry.low is not None and atom_entry.high is not None, "an iterator has a range"
            return [itself - facts.canonical(atom_entry.low), facts.canonical(atom_entry.high) - ONE - itself]
        case FloorAtom(numerator, divisor):
            if not facts.nonnegative(divisor - ONE):
                return []
            remainder = numerator - divisor * itself
            return [remainder, divisor - ONE - remainder]
    return []


def solution(facts: Facts) -> dict[int, int] | None:
    """Return values of atoms at which all facts hold; None if Z3 finds none. They are a guess, because products are separate unknowns."""
    import z3

    numbered = _numbered(_question(facts, ()))
    solver = _solver(_text(numbered, products=False), products=False)
    if solver.check() != z3.sat:
        return None
    model = solver.model()
    values = {str(name): model[name] for name in model.decls()}
    assignments = ((atom, values.get(f"v{number}")) for number, atom in enumerate(numbered.atoms))
    return {atom: value.as_long() for atom, value in sorted(assignments) if isinstance(value, z3.IntNumRef)}


@dataclass(frozen=True)
class Numbered:
    """Literals over atoms numbered by first appearance, so that questions that differ only in names have the same text."""

    literals: tuple[tuple[Relation, Terms], ...]
    atoms: tuple[int, ...]


def _numbered(question: Iterable[Literal0]) -> Numbered:
    numbers: dict[int, int] = {}
    literals: list[tuple[Relation, Terms]] = []
    for literal in question:
        terms = []
        for monomial, coefficient in literal.value.terms.items():
            for atom in monomial:
                numbers.setdefault(atom, len(numbers))
            terms.append((tuple(sorted([numbers[atom] for atom in monomial])), coefficient))
        literals.append((literal.relation, tuple(sorted(terms))))
    return Numbered(tuple(literals), tuple(numbers))


def _check(question: Numbered, *, products: bool) -> bool:
    """Return whether Z3 finds the literals contradictory."""
    return _contradicts(_text(question, products=products), products)


@lru_cache(maxsize=1 << 13)
def _contradicts(text: str, products: bool) -> bool:
    """Return whether Z3 finds a text contradictory; cached, because proofs repeat questions under other names."""
    import z3

    return bool(_solver(text, products=products).check() == z3.unsat)


def _solver(text: str, *, products: bool) -> z3.Solver:
    import z3

    solver = z3.SimpleSolver()
    solver.set("rlimit", PRODUCT_LIMIT if products else LINEAR_LIMIT)
    solver.from_string(text)
    return solver


def _text(numbered: Numbered, *, products: bool) -> str:
    """Return literals in Z3's input language, which is faster than building them object by object."""
    reals = [isinstance(entry(atom).kind, RealSymbol) for atom in numbered.atoms]
    lines = [f"(declare-const v{number} {'Real' if real else 'Int'})" for number, real in enumerate(reals)]
    if not products:
        monomials = {m for _, terms in numbered.literals for m, _ in terms if len(m) > 1}
        for monomial in sorted(monomials):
            name = _product(monomial, False)
            lines.append(f"(declare-const {name} {'Real' if any(reals[number] for number in monomial) else 'Int'})")
            if len(monomial) == 2 and all(_at_least_one(numbered.atoms[number]) for number in monomial):
                lines += [f"(assert (>= {name} v{number}))" for number in monomial]
    lines += [_asserted(relation, terms, products) for relation, terms in numbered.literals]
    return "".join(lines)


def _product(monomial: Monomial, products: bool) -> str:
    if len(monomial) == 1:
        return f"v{monomial[0]}"
    return f"(* {' '.join(f'v{number}' for number in monomial)})" if products else "p" + "_".join(map(str, monomial))


@lru_cache(maxsize=20_000)
def _asserted(relation: Relation, terms: Terms, products: bool) -> str:
    parts = []
    for monomial, coefficient in terms:
        number = str(coefficient) if coefficient >= 0 else f"(- {-coefficient})"
        parts.append(f"(* {number} {_product(monomial, products)})" if monomial else number)
    total = f"(+ {' '.join(parts)})" if len(parts) > 1 else (parts or ["0"])[0]
    return f"(assert (not (= {total} 0)))" if relation == "!=" else f"(assert ({SMT[relation]} {total} 0))"


SMT: Mapping[Relation, str] = {">=": ">=", ">": ">", "==": "="}
"""Relations in Z3's input language, except ``!=``."""


def _at_least_one(atom: int) -> bool:
    kind = entry(atom).kind
    return isinstance(kind, Symbol) and kind.minimum >= 1
