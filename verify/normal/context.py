"""The state of a normalisation: assumptions, facts used so far, fresh names, memos."""

from __future__ import annotations

from collections.abc import Iterator as Stream
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from egraph.errors import EinsatError
from egraph.tensor.expr.conditions import truth
from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, Size, Symbol, atoms, has_reals, index, substitute
from egraph.tensor.expr.scope import Compare
from verify.assumptions import Assumptions
from verify.normal.terms import Factor, Term, Value
from verify.polynomials import ONE as POLYNOMIAL_ONE
from verify.polynomials import Polynomial, number_of, replaced, to_index, to_polynomial

LARGEST = 1024
"""Most terms of a value; larger products are not worth their cost."""


class TooLarge(EinsatError):
    """A normal form would have more terms than ``LARGEST``: the question stays open."""


Memos = tuple[dict[Compare, bool | None], dict[Compare, Compare | bool], dict[tuple[Compare, ...], tuple[Compare, ...] | None]]


@dataclass
class Context:
    """The state of one normalisation. Memos keep their keys alive, so that an ``id`` stays unique."""

    assumptions: Assumptions
    facts: set[str] = field(default_factory=set)
    needs: list[Any] = field(default_factory=list)
    """The needs of partial functions (``verify.normal.domains.Need``)."""
    ways: tuple[frozenset[Any], ...] | None = None
    """Conjunctions under which the current part contributes (``verify.normal.domains.Way``); None if no needs are recorded."""
    guards: tuple[Compare, ...] = ()
    """Conditions that hold here beyond the given assumptions."""
    resolving: bool = False
    """Whether maxima of two plain values are written with conditions on data (the second pass)."""
    infinite: bool = False
    """Whether an infinite constant occurs in the value."""
    dividing: bool = False
    """Whether the divisors being made are pieces of a divisor that is known to be positive."""
    nonzero: set[str] = field(default_factory=set)
    """The texts of the reciprocals of such pieces."""
    count: int = 0
    decided: dict[Compare, bool | None] = field(default_factory=dict)
    forms: dict[Compare, Compare | bool] = field(default_factory=dict)
    conjunctions: dict[tuple[Compare, ...], tuple[Compare, ...] | None] = field(default_factory=dict)
    memos: dict[tuple[Compare, ...], Memos] = field(default_factory=dict)
    """The three memos above under other guards."""
    texts: dict[int, tuple[Factor, str]] = field(default_factory=dict)
    keys: dict[int, tuple[Term, str]] = field(default_factory=dict)
    free: dict[int, tuple[object, frozenset[Iterator]]] = field(default_factory=dict)
    rebuilt: dict[int, tuple[Factor, Value]] = field(default_factory=dict)

    @property
    def at_sizes(self) -> bool:
        """Return whether all sizes are numbers. If so, guards simplify the parts that they guard, and iterators are split into digits."""
        return self.assumptions.facts.at_sizes

    @contextmanager
    def where(self, conditions: tuple[Compare, ...]) -> Stream[None]:
        """Simplify under conditions; the results hold only where the conditions do."""
        if not conditions or not self.at_sizes:
            yield
            return
        before = self.assumptions, self.decided, self.forms, self.conjunctions, self.guards
        self.assumptions, self.guards = self.assumptions.assume(*conditions), (*self.guards, *conditions)
        self.decided, self.forms, self.conjunctions = self.memos.setdefault(self.guards, ({}, {}, {}))
        try:
            yield
        finally:
            self.assumptions, self.decided, self.forms, self.conjunctions, self.guards = before

    def fresh(self, iterator: Iterator) -> Iterator:
        """Return an iterator over the same range with a name of its own."""
        self.count += 1
        return Iterator(f"~{self.count}", iterator.low, iterator.high)

    def decide(self, condition: Compare) -> bool | None:
        """Return the truth of a condition if ranges and assumptions decide it by cheap reasoning, else None."""
        if has_reals(condition.left) or has_reals(condition.right):
            return self.assumptions.decide(condition)
        by_range = truth(condition)
        if by_range is not None:
            return by_range
        if condition not in self.decided:
            self.decided[condition] = self._decide(condition)
        return self.decided[condition]

    def _decide(self, condition: Compare) -> bool | None:
        value = self.assumptions.facts.canonical(to_polynomial(condition.right - condition.left))
        above = condition.operator == "<"
        if condition.operator in ("<", "<="):
            if self._nonnegative(value - POLYNOMIAL_ONE if above else value):
                return True
            return False if self._nonnegative(-value if above else -value - POLYNOMIAL_ONE) else None
        equal = condition.operator == "=="
        if value.constant == 0:
            return equal
        if self._nonnegative(value - POLYNOMIAL_ONE) or self._nonnegative(-value - POLYNOMIAL_ONE):
            return not equal
        return None

    def _nonnegative(self, value: Polynomial) -> bool:
        constant_value = value.constant
        return constant_value >= 0 if constant_value is not None else self.assumptions.facts.nonnegative(value)

    def simplify(self, value: Index) -> Index:
        """Return an index with the assumed equalities applied and divisions resolved."""
        if any(isinstance(atom, Floor | Modulo) for monomial, _ in value.terms for atom in monomial):
            return index(self.assumptions.simplify(value))
        return value

    def placed(self, value: Index, where: Mapping[Iterator | Symbol, Size]) -> Index:
        """Return an index with iterators replaced, inside divisions too, before any division is simplified: ``n - r`` stays ``n - r``."""
        if any(isinstance(atom, DataIndex) for atom in atoms(value)):
            return self.simplify(substitute(value, where, None))
        inner = [atom for atom in atoms(value) if isinstance(atom, Iterator | Symbol) and atom in where]
        replacement = {number_of(atom): to_polynomial(where[atom]) for atom in inner}
        return to_index(self.assumptions.facts.canonical(replaced(to_polynomial(value), replacement)))

    def use(self, fact: str) -> None:
        self.facts.add(fact)


def number(value: Fraction | int) -> Value:
    """Return a rational constant."""
    return Value((Term(Fraction(value), (), (), ()),)) if value else ZERO


def single(factor: Factor) -> Value:
    """Return a factor as a value."""
    return Value((Term(Fraction(1), (), (), (factor,)),))


ZERO = Value(())
ONE = Value((Term(Fraction(1), (), (), ()),))


def constant(value: Value) -> Fraction | None:
    """Return the number that a value is, else None."""
    match value.terms:
        case ():
            return Fraction(0)
        case (Term(coefficient, (), (), ()),):
            return coefficient
    return None


def negated(value: Value) -> Value:
    """-value"""
    return scaled(value, Fraction(-1))


def scaled(value: Value, by: Fraction) -> Value:
    """by * value"""
    if by == 1:
        return value
    return Value(tuple(Term(t.coefficient * by, t.iterators, t.conditions, t.factors) for t in value.terms)) if by else ZERO
