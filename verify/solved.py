"""Assumptions in solved form: an equality eliminates a symbol wherever it can, so that values compare structurally.

Polynomial identity and the symbols' bounds then answer nearly all questions in microseconds. ``verify.assumptions`` decides the
questions that stay open here, if a proof needs them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from egraph.tensor.expr.index import Atom, DataIndex, Floor, Index, Modulo, Monomial, RealSymbol, Size, Symbol, index, over
from egraph.tensor.expr.scope import Compare
from verify.bounds import Bounds, divide_terms, without_content


class Ended(Exception):
    """The path ends: its decisions contradict each other, or it is not covered."""


@dataclass(frozen=True)
class Deferred:
    """result = broadcast(left, right); which of the two is one is decided only when a question depends on it."""

    left: Index
    right: Index
    result: Index
    obligation: bool


@dataclass
class Solved:
    """Assumptions in solved form."""

    conditions: list[Compare] = field(default_factory=list)
    """Assumptions that no substitution expresses."""
    bounds: Bounds = field(default_factory=Bounds)
    deferred: list[Deferred] = field(default_factory=list)
    _solved: dict[Atom, Index] = field(default_factory=dict)
    _rewrites: dict[Monomial, Index] = field(default_factory=dict)
    _memo: dict[Index, Index] = field(default_factory=dict)
    _age: dict[Atom, int] = field(default_factory=dict)
    _floors: dict[tuple[Index, Index], tuple[int, Index]] = field(default_factory=dict)
    _version: int = 0
    """Number of inequalities so far; a floor-division is simplified again when it grows."""
    _fresh: int = 0
    _stated: tuple[list[Compare], int, dict[str, set[Index]]] = field(default_factory=lambda: ([], -1, {}))
    """The list of conditions, which is only ever appended to; its length when it was read; and its statements about zero."""

    def fresh(self, minimum: int = 1, prefix: str = "q") -> Symbol:
        """Return a new unknown with a generated name."""
        self._fresh += 1
        return Symbol(f"{prefix}_{self._fresh}", minimum)

    def decide(self, condition: Compare) -> bool | None:
        """Return True if the path implies a condition, False if it implies the negation, None if that stays open."""
        difference = self.canonical(condition.right - condition.left)
        match condition.operator:
            case "<=" | "<":
                answer = self.bounds.sign(difference, strict=condition.operator == "<")
                if answer is None:
                    reduced = without_content(difference, self.bounds)
                    if self._is_stated(condition.operator, reduced):
                        return True
                    if self._is_stated("<" if condition.operator == "<=" else "<=", -reduced):
                        return False
                return answer
            case _:
                answer = self.bounds.zero(difference)
                if answer is None and difference.terms and self._states_equalities():
                    reduced = without_content(difference, self.bounds)
                    answer = True if self._is_stated("==", reduced) or self._is_stated("==", -reduced) else None
                return answer if answer is None or condition.operator == "==" else not answer

    def _is_stated(self, operator: str, value: Index) -> bool:
        """Return whether 0 OPERATOR value is one of the conditions."""
        return value in self._statements()[operator]

    def _states_equalities(self) -> bool:
        return bool(self._statements()["=="])

    def _statements(self) -> dict[str, set[Index]]:
        """Return the values that the conditions compare with zero, by operator."""
        conditions, count, stated = self._stated
        if conditions is not self.conditions or count != len(conditions):
            stated = {"<": set(), "<=": set(), "==": set(), "!=": set()}
            for condition in self.conditions:
                if not condition.left.terms:
                    stated[condition.operator].add(condition.right)
            self._stated = self.conditions, len(self.conditions), stated
        return stated

    def assume(self, condition: Compare) -> None:
        """Assume a condition; raise ``Ended`` if it contradicts the path."""
        difference = self.canonical(condition.right - condition.left)
        if condition.operator == "==":
            self._equate(difference)
            return
        answer = self.decide(Compare(index(0), condition.operator, difference))
        if answer is False:
            raise Ended("contradiction")
        if answer is None:
            if condition.operator == "<=" and self.bounds.sign(-difference, strict=False) is True:
                self._equate(difference)
                return
            self._note(condition.operator, difference)
            self._tighten()

    def _tighten(self) -> None:
        """Substitute the symbols that the bounds restrict to one value."""
        for atom, value in self.bounds.pinned():
            if atom not in self._solved:
                self._substitute(atom, index(value))

    def _equate(self, difference: Index) -> None:
        difference = without_content(difference, self.bounds)
        if difference.constant is not None:
            if difference.constant:
                raise Ended("contradiction")
            return
        if self.bounds.zero(difference) is False:
            raise Ended("contradiction")
        modulus = _single(difference, Modulo)
        if modulus is None:
            folded = _single(_remainder(difference), Modulo)
            modulus = folded if folded is not None and folded[1].constant in (0, 1) else None  # else it says more than divisibility
        if modulus is not None:  # a % d == r: a is d times something, plus r
            atom, residue = modulus
            self._divisible(atom.numerator - residue, atom.divisor)
            return
        parts = self.bounds.extreme_parts(difference)
        if parts is not None:  # a sum at the end of its range: every part is at the end of its own
            for atom, value in parts:
                if atom not in self._solved:
                    self._substitute(atom, index(value))
            residue = self.canonical(difference)
            if residue.constant is None:
                self.conditions.append(Compare(index(0), "==", residue))
            return
        floor = _single(difference, Floor)
        if floor is not None:  # a // d == q: q d <= a < (q + 1) d
            quotient, q = floor
            low = self.canonical(quotient.numerator - q * quotient.divisor)
            self._rewrite((quotient,), q)
            self.assume(Compare(index(0), "<=", low))
            self.assume(Compare(low, "<", quotient.divisor))
            return
        unknown = self._unknown(difference)
        if unknown is not None:
            self._substitute(*unknown)
            return
        self.conditions.append(Compare(index(0), "==", difference))
        self._orient(difference)

    def _unknown(self, difference: Index) -> tuple[Symbol | RealSymbol, Index] | None:
        """Return a symbol to eliminate and its value: it occurs once, alone, with the coefficient one."""
        best: tuple[tuple[bool, bool, int, int], Symbol | RealSymbol, Index] | None = None
        results = {atom for each in self.deferred for atom in each.result.atoms}
        for monomial, coefficient in difference.terms:
            if len(monomial) != 1 or abs(coefficient) != 1 or not isinstance(monomial[0], Symbol | RealSymbol):
                continue
            atom = monomial[0]
            others = Index(tuple(t for t in difference.terms if t[0] != monomial)) * -coefficient
            if atom in others.atoms:
                continue
            minimum = self.bounds.low.get(atom, atom.minimum) if isinstance(atom, Symbol) else None
            fits = minimum is None or self.bounds.sign(others - minimum, strict=False) is True
            rank = (not fits, atom not in results, len(others.terms), -self._age.get(atom, 0))
            if best is None or rank < best[0]:
                best = (rank, atom, others)
        return None if best is None else (best[1], best[2])

    def _divisible(self, value: Index, divisor: Index) -> None:
        value = self.canonical(value)
        _, residue = divide_terms(value, divisor)
        if not residue.terms:
            return
        d = divisor.constant
        if d is not None:  # neither a further multiple nor the sign matters
            reduced = [each - each.constant_part + each.constant_part % d for each in (residue, -residue)]
            residue = next((each for each in reduced if self.bounds.sign(each, strict=False) is True), residue)
        if self.bounds.sign(residue, strict=False) is not True:
            self.conditions.append(Compare(index(Modulo(value, divisor)), "==", index(0)))
            self._rewrite((Modulo(residue, divisor),), index(0))
            return
        positive = self.bounds.sign(residue, strict=True) is True
        self._equate(self.canonical(residue - divisor * index(self.fresh(1 if positive else 0))))

    def _orient(self, difference: Index) -> None:
        """Use an equality of products as a rewrite of the greatest product."""
        top = max((t for t in difference.terms if t[0]), key=lambda t: _order(t[0]))
        if abs(top[1]) != 1 or any(isinstance(atom, Floor | Modulo) for atom in top[0]):
            return
        others = Index(tuple(t for t in difference.terms if t[0] != top[0])) * -top[1]
        divisions = (atom for atom in others.atoms if isinstance(atom, Floor | Modulo))
        if all((d.numerator.atoms | d.divisor.atoms).isdisjoint(top[0]) for d in divisions):  # else rewriting would not end
            self._rewrite(top[0], others)

    def _rewrite(self, monomial: Monomial, value: Index) -> None:
        self._rewrites[monomial] = value
        self._memo.clear()
        self._rebuild()

    def _substitute(self, atom: Atom, value: Index) -> None:
        self._solved[atom] = value
        self._refresh(atom)
        if isinstance(atom, Symbol):
            value = self.canonical(value)
            least = Compare(index(atom.minimum), "<=", value)
            if self.decide(least) is not True:
                self.assume(least)

    def _refresh(self, changed: Atom) -> None:
        """Eliminate a solved atom from all assumptions and memos."""
        memo = self._memo
        for key in [key for key, value in memo.items() if changed in key.atoms or (value is not key and changed in value.atoms)]:
            del memo[key]
        for atom, value in list(self._solved.items()):
            if changed in value.atoms:
                self._solved[atom] = self.canonical(value)
        for monomial, value in list(self._rewrites.items()):
            if monomial not in self._rewrites or not (changed in value.atoms or changed in Index(((monomial, 1),)).atoms):
                continue
            del self._rewrites[monomial]
            self._memo.clear()
            remaining = self.canonical(Index(((monomial, 1),)) - value)
            if remaining.terms:
                self._equate(remaining)
        if any(changed in c.right.atoms for c in self.conditions):
            self._rebuild()
        if self.deferred:
            self._narrow()
        self._tighten()

    def _rebuild(self) -> None:
        """Record all conditions again, in solved form."""
        old, self.conditions = self.conditions, []
        simpler: list[Index] = []
        self.bounds.restart()
        unchanged = True  # a condition that did not follow from the conditions before it still does not
        for condition in old:
            difference = self.canonical(condition.right)
            unchanged = unchanged and difference == condition.right
            if condition.operator == "==":
                if difference.constant is None and difference != condition.right:
                    simpler.append(difference)
                elif difference.constant is None:
                    self.conditions.append(Compare(index(0), "==", difference))
                elif difference.constant:
                    raise Ended("contradiction")
                continue
            answer = None if unchanged else self.decide(Compare(index(0), condition.operator, difference))
            if answer is False:
                raise Ended("contradiction")
            if answer is None:
                self._keep(condition.operator, difference)
        for difference in simpler:  # some may be solvable now
            self._equate(self.canonical(difference))

    def _note(self, operator: str, difference: Index) -> None:
        """Record 0 OPERATOR difference, which is not implied yet."""
        self._version += 1
        for key, value in list(self._memo.items()):
            if value.divides:
                del self._memo[key]
        self._keep(operator, difference)
        if self.deferred:
            self._narrow()

    def _keep(self, operator: str, difference: Index) -> None:
        difference = without_content(difference, self.bounds)
        if operator == "!=":
            self.conditions.append(Compare(index(0), "!=", difference))
            fits = self.bounds.differs(difference)
        else:
            self.conditions.append(Compare(index(0), "<" if operator == "<" else "<=", difference))
            fits = self.bounds.at_least_zero(difference, strict=operator == "<")
        if not fits:
            raise Ended("contradiction")

    def _broadcast_known(self, each: Deferred) -> Index | None:
        left, right = self.canonical(each.left), self.canonical(each.right)
        return right if left == right or left.constant == 1 else left if right.constant == 1 else None

    def _narrow(self) -> None:
        """Decide open broadcasts whose operands are now determined."""
        for each in list(self.deferred):
            if each not in self.deferred:
                continue
            result = self._broadcast_known(each)
            if result is not None:
                self.deferred.remove(each)
                self.assume(Compare(each.result, "==", result))
                continue
            for operand in (each.left, each.right):
                if self.decide(Compare(operand, "==", index(1))) is False and self.decide(Compare(each.result, "==", operand)) is None:
                    self.assume(Compare(each.result, "==", operand))

    def canonical(self, value: Size) -> Index:
        """Return a value in solved form."""
        given = index(value)
        cached = self._memo.get(given)
        if cached is None:
            cached = self._memo[given] = self._canonical(given)
        return cached

    def _canonical(self, value: Index) -> Index:
        if not any(m for m, _ in value.terms):
            return value
        total = Index(())
        changed = False
        for monomial, coefficient in value.terms:
            product = Index((((), coefficient),))
            for atom in monomial:
                part = self._atom(atom)
                changed = changed or part is not None
                product = product * (index(atom) if part is None else part)
            total = total + product
        if not changed:
            total = value
        for monomial, replacement in self._rewrites.items():
            new = _replace(total, monomial, replacement)
            if new is not total:
                return self.canonical(new)
        return total

    def _atom(self, atom: Atom) -> Index | None:
        solution = self._solved.get(atom)
        if solution is not None:
            return solution
        match atom:
            case Floor(numerator, divisor):
                new = self.floor(self.canonical(numerator), self.canonical(divisor))
            case Modulo(numerator, divisor):
                new = self.modulo(self.canonical(numerator), self.canonical(divisor))
            case DataIndex():
                return None
            case _:
                return None
        return None if new.terms == (((atom,), 1),) else new

    def floor(self, numerator: Index, divisor: Index) -> Index:
        """numerator // divisor for canonical operands and a positive divisor"""
        cached = self._floors.get((numerator, divisor))
        if cached is None or cached[0] != self._version:
            cached = self._floors[numerator, divisor] = self._version, self._floor(numerator, divisor)
        return cached[1]

    def _floor(self, numerator: Index, divisor: Index) -> Index:
        quotient, remainder = divide_terms(numerator, divisor)
        if not remainder.terms:
            return quotient
        for shift in (0, -1):
            moved = remainder - divisor * shift
            if self.bounds.sign(moved, strict=False) is True and self.bounds.sign(divisor - moved, strict=True) is True:
                return quotient + shift
        return quotient + (remainder // divisor if divisor.constant is not None else index(Floor(remainder, divisor)))

    def modulo(self, numerator: Index, divisor: Index) -> Index:
        """numerator % divisor for canonical operands and a positive divisor"""
        _, remainder = divide_terms(numerator, divisor)
        for shift in (0, -1):
            moved = remainder - divisor * shift
            if self.bounds.sign(moved, strict=False) is True and self.bounds.sign(divisor - moved, strict=True) is True:
                return moved
        return remainder % divisor if divisor.constant is not None else index(Modulo(remainder, divisor))


def _remainder(difference: Index) -> Index:
    """d (a // d) = a - a % d, for a division that is multiplied by its own divisor"""
    for monomial, coefficient in difference.terms:
        if len(monomial) == 1 and isinstance(monomial[0], Floor) and abs(coefficient) == monomial[0].divisor.constant:
            numerator, divisor = monomial[0].numerator, monomial[0].divisor
            sign = 1 if coefficient > 0 else -1
            return difference - index(monomial[0]) * coefficient + (numerator - index(Modulo(numerator, divisor))) * sign
    return difference


def _single(difference: Index, kind: type[Floor] | type[Modulo]) -> tuple[Any, Index] | None:
    """Return (atom, value) for difference == 0 read as atom == value, if it contains one division that stands alone, else None."""
    candidates = [(m[0], c) for m, c in difference.terms if len(m) == 1 and isinstance(m[0], kind)]
    if len(candidates) != 1 or abs(candidates[0][1]) != 1:
        return None
    atom, coefficient = candidates[0]
    others = Index(tuple(t for t in difference.terms if t[0] != (atom,)))
    if atom in others.atoms:
        return None
    return atom, others * -coefficient


def _order(monomial: Monomial) -> tuple[int, list[str]]:
    """Order products by degree, then by their greatest factors. Multiplying both sides keeps the order, so rewriting terminates."""
    return len(monomial), sorted(map(repr, monomial), reverse=True)


def _replace(value: Index, monomial: Monomial, replacement: Index) -> Index:
    """Return the value with every multiple of a product replaced."""
    for term, coefficient in value.terms:
        if len(term) >= len(monomial):
            left = over(term, monomial)
            if left is not None:
                others = Index(tuple(t for t in value.terms if t[0] != term))
                return _replace(others + Index(((left, coefficient),)) * replacement, monomial, replacement)
    return value
