"""The assumptions of a proof in solved form: equalities as a substitution, the rest as polynomials >= 0.

In the canonical form of a polynomial, equalities are applied and floor-divisions with symbolic divisors are decomposed if ranges
allow it (``(i*N + j) // N = i`` for ``0 <= j < N``). All reasoning here is cheap and incomplete; ``verify.solver`` is asked next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING
from weakref import ref

from egraph.tensor.expr.index import Iterator, RealSymbol, Symbol
from verify.budget import spend
from verify.concrete import digit, follows, least, multiplied_out
from verify.literals import Literal0, at_minimums, closure, divisions, domain, isolated, tightened
from verify.polynomials import (
    ONE,
    ZERO,
    DataAtom,
    FloorAtom,
    Polynomial,
    constant,
    divide,
    entry,
    floor_of,
    leading,
    to_index,
    variable,
)

if TYPE_CHECKING:
    from verify.witnesses import Instance

_ROUNDS = 50  # most rounds of solving equalities; the rest is kept unsolved
_DEPTH = 24
"""Most nested replacements of atoms by the ends of their ranges."""


def _no_base() -> None:
    return None


@dataclass
class Facts:
    """A set of literals in solved form. Built once, then only its memo tables change."""

    literals: dict[Literal0, None] = field(default_factory=dict)
    substitution: dict[int, Polynomial] = field(default_factory=dict)
    inequalities: list[Polynomial] = field(default_factory=list)
    strict: list[Polynomial] = field(default_factory=list)
    equalities: list[Polynomial] = field(default_factory=list)
    disequalities: list[Polynomial] = field(default_factory=list)
    contradiction: bool = False
    memo: dict[int, Polynomial] = field(default_factory=dict)
    reduced: dict[Polynomial, Polynomial] = field(default_factory=dict)
    """Polynomials and their canonical forms; cleared together with the memo of atoms."""
    defined: dict[int, tuple[Polynomial, ...]] = field(default_factory=dict)
    """Polynomials that are >= 0 by the definition of an atom, in the form given to the solver."""
    known: dict[Polynomial, bool] = field(default_factory=dict)
    bounded: dict[Polynomial, bool] = field(default_factory=dict)
    plain: dict[Polynomial, bool] | None = None
    """The memo ``bounded`` for polynomials without divisions, if no equality has a division either. It does not depend on
    inequalities, so all facts with the same equalities share it."""
    divides: bool | None = None
    """Whether an equality has a division; None until computed."""
    solved: dict[Literal0, bool] = field(default_factory=dict)
    _kept: tuple[Literal0, ...] | None = None
    """The result of ``kept``; None until computed."""
    children: dict[tuple[Literal0, ...], Facts] = field(default_factory=dict)
    instances: list[Instance] | None = None
    base: Callable[[], Facts | None] = field(default=_no_base, repr=False)
    """Return the facts that these extend while they are in use. An instance of the base may be an instance of these. The reference is
    weak, because extended facts are cached in their base, and cycles of facts would be most of the work of garbage collection."""
    at_sizes: bool = False
    """Whether all sizes are numbers. If so, sums of conditions and digits of positions are tried too."""

    def extended(self, added: Iterable[Literal0]) -> Facts:
        """Return the facts with more literals; equal arguments give the same object."""
        new = tuple(literal for literal in dict.fromkeys(added) if literal not in self.literals)
        if not new:
            return self
        child = self.children.get(new)
        if child is None:
            child = self.children[new] = self._extended(new)
        return child

    def _extended(self, new: tuple[Literal0, ...]) -> Facts:
        result = Facts(self.literals | dict.fromkeys(new), dict(self.substitution), at_sizes=self.at_sizes, base=ref(self))
        result.contradiction = self.contradiction
        literals = [Literal0(self.canonical(literal.value), literal.relation) for literal in new]
        if not any(literal.relation == "==" and literal.value.terms for literal in literals):  # the solved form stays valid
            result.inequalities, result.strict = list(self.inequalities), list(self.strict)
            result.equalities, result.disequalities = list(self.equalities), list(self.disequalities)
            result.known = {value: True for value, holds in self.known.items() if holds}
            result.bounded, result.plain = self.bounded.copy(), self.shared()
            result.divides = self.divides
            result.solved = {literal: True for literal, holds in self.solved.items() if holds}
            for literal in literals:
                if not result._settled(literal):
                    result._keep(literal)
            return result
        result._settle([*self.kept(), *new])
        return result

    def shared(self) -> dict[Polynomial, bool] | None:
        """Return the memo that facts with the same equalities share; None if one of the equalities has a division."""
        if self.divides is None:
            self.divides = any(map(_divides, self.substitution.values())) or any(map(_divides, self.equalities))
            self.plain = None if self.divides else {}
        return self.plain

    def kept(self) -> tuple[Literal0, ...]:
        """Return the literals that the substitution does not express."""
        if self._kept is None:
            self._kept = (
                *(Literal0(value, "==") for value in self.equalities),
                *(Literal0(value, ">=") for value in self.inequalities),
                *(Literal0(value, ">") for value in self.strict),
                *(Literal0(value, "!=") for value in self.disequalities),
            )
        return self._kept

    def _settle(self, pending: list[Literal0]) -> None:
        """Bring literals to solved form; after a new substitution all of them are processed again."""
        for _ in range(_ROUNDS):
            unsolved: list[Literal0] = []
            solved = False
            for literal in pending:
                value = self.canonical(literal.value)
                solution = self._solve(value) if literal.relation == "==" else None
                if solution is not None:
                    atom, replacement, inside = solution
                    unsolved += [Literal0(bound, ">=") for bound in inside]
                    self._replace(atom, replacement)
                    solved = True
                elif not self._settled(Literal0(value, literal.relation)):
                    unsolved.append(Literal0(value, literal.relation))
            pending = unsolved
            if not solved:
                consequence = self._difference([literal.value for literal in unsolved if literal.relation == "=="])
                if consequence is None:
                    break
                pending = [*unsolved, Literal0(consequence, "==")]
        for literal in pending:
            self._keep(literal)

    def _difference(self, equalities: list[Polynomial]) -> Polynomial | None:
        """Return a consequence of two equalities with a common term: a b = c and a d = c imply b = d for a positive a."""
        for number, first in enumerate(equalities):
            for second in equalities[:number]:
                for monomial, coefficient in first.terms.items():
                    twin = second.terms.get(monomial, 0)
                    if len(monomial) < 2 or abs(twin) != abs(coefficient):
                        continue
                    whole = first - second if twin == coefficient else first + second
                    value = self._without_factors(whole)
                    stated = (whole, *equalities, *(-equality for equality in equalities))
                    if value.terms and (self._solve(value) is not None or value not in stated):
                        return value
        return None

    def _without_factors(self, value: Polynomial) -> Polynomial:
        """Return the polynomial divided by the symbols that all its terms share and that are certainly positive."""
        for atom in sorted(set(value.atoms()), key=lambda a: entry(a).key):
            same = Polynomial({(atom,): 1})
            while value.terms and all(atom in monomial for monomial in value.terms) and self.nonnegative(same - ONE):
                value = divide(value, same)[0]
        return value

    def _settled(self, literal: Literal0) -> bool:
        """Return whether a literal is constant; a false one is recorded as a contradiction."""
        number = literal.value.constant
        if number is None:
            return False
        self.contradiction = self.contradiction or not literal.holds_of(number)
        return True

    def _keep(self, literal: Literal0) -> None:
        kept = {">=": self.inequalities, ">": self.strict, "==": self.equalities, "!=": self.disequalities}[literal.relation]
        value = tightened(literal.value) if literal.relation == ">=" else literal.value
        if value not in kept:
            kept.append(value)
            self._kept = None
            self.known = {value: True for value, holds in self.known.items() if holds}
            self._forget()
            if literal.relation == "==":
                self.divides = self.plain = None
            if literal.relation == ">=" and self.nonnegative(-value - ONE):
                self.contradiction = True

    def _replace(self, atom: int, replacement: Polynomial) -> None:
        self.substitution[atom] = replacement
        self._forget()
        self.known.clear()
        self.bounded.clear()
        self.divides = self.plain = None
        for solved, value in list(self.substitution.items()):
            self.substitution[solved] = self.canonical(value)
        self._forget()

    def _forget(self) -> None:
        self.memo.clear()
        self.reduced.clear()
        self.defined.clear()

    def _solve(self, value: Polynomial) -> tuple[int, Polynomial, list[Polynomial]] | None:
        """Solve value == 0 for an atom with a unit coefficient; return the atom, its value, and polynomials >= 0 by its range."""
        divisible = self._divisible(value)
        if divisible is not None:
            return divisible
        best: tuple[tuple[bool, bool, str], int, Polynomial] | None = None
        for monomial, coefficient in value.terms.items():
            if len(monomial) != 1 or abs(coefficient) != 1:
                continue
            (atom,) = monomial
            kind = entry(atom).kind
            if not isinstance(kind, Symbol | Iterator | RealSymbol) or (replacement := isolated(value, atom)) is None:
                continue
            # An iterator is eliminated before a symbol; a symbol that is a sum of others before one that is a difference.
            rank = (not isinstance(kind, Iterator), any(c < 0 for m, c in replacement.terms.items() if m), entry(atom).key)
            if best is None or rank < best[0]:
                best = rank, atom, replacement
        if best is None:
            return None
        _, atom, replacement = best
        return atom, replacement, domain(atom, replacement)

    def _divisible(self, value: Polynomial) -> tuple[int, Polynomial, list[Polynomial]] | None:
        """Solve ``n % d == 0``: n is d times a new symbol."""
        for monomial in value.terms:
            for atom in monomial:
                kind = entry(atom).kind
                if not isinstance(kind, FloorAtom):
                    continue
                whole = kind.divisor * Polynomial({(atom,): 1})
                if value not in (kind.numerator - whole, whole - kind.numerator):
                    continue
                unit = _unit_symbol(kind)
                if unit is None or not (self.nonnegative(kind.numerator) and self.nonnegative(kind.divisor - ONE)):
                    continue
                minimum = 1 if self.nonnegative(kind.numerator - ONE) else 0
                quotient = variable(Symbol(f"({to_index(kind.numerator)})//({to_index(kind.divisor)})", minimum))
                symbol, remainder = unit
                return symbol, kind.divisor * quotient - remainder, domain(symbol, kind.divisor * quotient - remainder)
        return None

    def canonical(self, value: Polynomial) -> Polynomial:
        """Return the polynomial with equalities applied and floor-divisions simplified."""
        reduced = self.reduced.get(value)
        if reduced is None:
            reduced = self._canonical(value)
            self.reduced[value] = reduced
        return reduced

    def _canonical(self, value: Polynomial) -> Polynomial:
        result = value
        if any(self._atom(a) is not None for a in value.atoms()):
            result = ZERO
            for monomial, coefficient in value.terms.items():
                product = constant(coefficient)
                for atom in monomial:
                    changed = self._atom(atom)
                    product = product * (Polynomial({(atom,): 1}) if changed is None else changed)
                result = result + product
        for equality in self.equalities:
            if abs(leading(equality)[1]) == 1:
                result = divide(result, equality)[1]
        return result

    def _atom(self, atom: int) -> Polynomial | None:
        """Return the polynomial that replaces an atom; None if the atom stays."""
        same = Polynomial({(atom,): 1})
        replacement = self.memo.get(atom)
        if replacement is None:
            replacement = self.substitution.get(atom)
            kind = entry(atom).kind
            if replacement is None:
                if isinstance(kind, FloorAtom):
                    replacement = self.floor(self.canonical(kind.numerator), self.canonical(kind.divisor))
                elif isinstance(kind, DataAtom):
                    replacement = variable(DataAtom(kind.source, tuple(map(self.canonical, kind.indices))))
                else:
                    replacement = same
                if replacement != same and any(a in self.substitution for a in replacement.atoms()):
                    replacement = self.canonical(replacement)
            self.memo[atom] = replacement
        return None if replacement == same else replacement

    def floor(self, numerator: Polynomial, divisor: Polynomial) -> Polynomial:
        """numerator // divisor for canonical operands"""
        if not divisor.terms or not self.nonnegative(divisor - ONE):
            return floor_of(numerator, divisor) if divisor.terms else variable(FloorAtom(numerator, divisor))
        if self.at_sizes and (carried := digit(numerator, divisor.constant or 0, self._within, self.floor)) is not None:
            return carried
        quotient, remainder = divide(numerator, divisor)
        within = self._within(remainder, divisor)
        if within is not None:
            return quotient + constant(within)
        if (merged := self._nested(remainder, divisor)) is not None:
            return quotient + merged
        if (reduced := self._common_factor(remainder, divisor)) is not None:
            return quotient + reduced
        return quotient + floor_of(remainder, divisor)

    def _within(self, numerator: Polynomial, divisor: Polynomial) -> int | None:
        """Return numerator // divisor if ranges show that it is 0 or -1, else None."""
        for times in (0, -1, 1) if self.at_sizes else (0, -1):
            low = numerator.plus(divisor, -times)
            if self.nonnegative(low) and self.nonnegative(divisor - ONE - low):
                return times
        return None

    def _nested(self, numerator: Polynomial, divisor: Polynomial) -> Polynomial | None:
        """(e // d + n) // c = (e + n * d) // (d * c), by ``quotient of a quotient``"""
        for atom in sorted(numerator.atoms(), key=lambda a: entry(a).key):
            kind = entry(atom).kind
            if isinstance(kind, FloorAtom) and numerator.terms.get((atom,)) == 1 and self.nonnegative(kind.divisor - ONE):
                others = numerator - Polynomial({(atom,): 1})
                merged = self.canonical(kind.numerator + others * kind.divisor)
                if divisions(merged) < divisions(numerator):  # an equality may bring the division back, in an endless loop
                    return self.floor(merged, self.canonical(kind.divisor * divisor))
        return None

    def _common_factor(self, numerator: Polynomial, divisor: Polynomial) -> Polynomial | None:
        """(g * x + y) // (g * d) = (x + y // g) // d if y // g is known, by ``common factor``"""
        if len(divisor.terms) != 1:
            return None
        ((monomial, coefficient),) = divisor.terms.items()
        factors = [Polynomial({(atom,): 1}) for atom in sorted(set(monomial), key=lambda a: entry(a).key)]
        common = coefficient
        for m, c in numerator.terms.items():
            common = gcd(common, c) if m else common
        if common > 1:
            factors.append(constant(common))
        for factor in factors:
            if factor == divisor:
                continue
            quotient, remainder = divide(numerator, factor)
            within = self._within(remainder, factor)
            if quotient.constant is None and within is not None and self.nonnegative(factor - ONE):
                return self.floor(quotient + constant(within), divide(divisor, factor)[0])
        return None

    def nonnegative(self, value: Polynomial) -> bool:
        """Return whether a canonical polynomial is certainly >= 0, by its atoms' ranges or by these and one condition."""
        answer = self.known.get(value)
        if answer is None:
            self.known[value] = False  # a recursive question about the same value counts as open
            answer = _bounded(self, value) or _with_condition(self, value) or _with_conditions(self, value)
            self.known[value] = answer
        return answer


def _unit_symbol(kind: FloorAtom) -> tuple[int, Polynomial] | None:
    """Return (symbol, rest) with numerator = symbol + rest, if neither rest nor divisor depends on the symbol."""
    for monomial, coefficient in sorted(kind.numerator.terms.items(), key=lambda t: [entry(a).key for a in t[0]]):
        if len(monomial) == 1 and coefficient == 1 and isinstance(entry(monomial[0]).kind, Symbol):
            others = kind.numerator - Polynomial({monomial: 1})
            if monomial[0] not in closure(others) | closure(kind.divisor):
                return monomial[0], others
    return None


def _with_condition(facts: Facts, value: Polynomial) -> bool:
    """Return whether the polynomial minus one known inequality's polynomial is certainly >= 0."""
    negative = [m for m, c in value.terms.items() if c < 0]
    for fact in facts.inequalities:
        terms = fact.terms
        for monomial in negative:
            if terms.get(monomial, 0) < 0:  # else subtracting the fact does not help
                if _bounded(facts, value - fact):
                    return True
                break
    return False


def _with_conditions(facts: Facts, value: Polynomial) -> bool:
    """Return whether all sizes are numbers and a sum of known inequalities, or multiplying products out, shows that the value is >= 0."""
    if not facts.at_sizes:
        return False
    if follows(value, facts.inequalities, lambda remainder: _bounded(facts, remainder)):
        return True
    whole = multiplied_out(value)
    return whole is not None and facts.nonnegative(facts.canonical(whole))


def _bounded(facts: Facts, value: Polynomial, depth: int = 0) -> bool:
    """Return whether a polynomial is >= 0 with atoms replaced by the ends of their ranges; atoms that depend on others come first."""
    answer = facts.bounded.get(value)
    if answer is None:
        shared = facts.shared()
        memo = facts.bounded if shared is None or _divides(value) else shared
        answer = memo.get(value)
        if answer is None:
            low = least(value) if facts.at_sizes else None
            answer = memo[value] = _in_ranges(facts, value, depth) if low is None else low >= 0
    return answer


@lru_cache(maxsize=1 << 16)
def _divides(value: Polynomial) -> bool:
    """Return whether a polynomial, or a range of its iterators, has a division or reads an index from a tensor."""
    return any(isinstance(entry(atom).kind, FloorAtom | DataAtom) for atom in closure(value))


def _in_ranges(facts: Facts, value: Polynomial, depth: int) -> bool:
    spend()
    atoms = value.atoms()
    if min(value.terms.values(), default=0) >= 0 and all(map(_positive, atoms)):
        return True
    if not atoms or depth > _DEPTH:
        return not atoms and value.terms.get((), 0) >= 0
    top = max([entry(a).level for a in atoms])
    if top == 0:
        return at_minimums(value)
    atom = min((a for a in atoms if entry(a).level == top), key=lambda a: entry(a).key)
    parts = value.collect(atom)
    if len(parts) != 2:
        return False
    others, slope = parts
    kind = entry(atom).kind
    rising = _bounded(facts, slope, depth + 1)
    if not rising and not _bounded(facts, -slope, depth + 1):
        return False
    if isinstance(kind, FloorAtom):
        above, below = kind.numerator, kind.divisor
        if not _bounded(facts, below - ONE, depth + 1):
            return False
        # above - below < below * value <= above, and value is an integer
        end = slope * (above - below + ONE if rising else above) + others * below + below - ONE
        return _bounded(facts, end, depth + 1) or (rising and _bounded(facts, above, depth + 1) and _bounded(facts, others, depth + 1))
    low, high = entry(atom).low, entry(atom).high
    if low is None or high is None:
        return False
    return _bounded(facts, others + slope * facts.canonical(low if rising else high - ONE), depth + 1)


def _positive(atom: int) -> bool:
    kind = entry(atom).kind
    match kind:
        case Symbol():
            return kind.minimum >= 0
        case Iterator():
            return kind.low == 0
    return False
