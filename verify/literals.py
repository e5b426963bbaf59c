"""Literals: polynomials compared with zero; the atoms that an atom depends on."""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import Literal

from egraph.tensor.expr.index import RealSymbol, Symbol
from egraph.tensor.expr.scope import Compare
from verify.polynomials import ONE, FloorAtom, Monomial, Polynomial, constant, entry, inside, to_polynomial

Relation = Literal[">=", ">", "==", "!="]


class Literal0:
    """value RELATION 0; ``>`` only over reals (over integers it is ``value - 1 >= 0``). Immutable."""

    __slots__ = ("_hash", "relation", "value")

    def __init__(self, value: Polynomial, relation: Relation) -> None:
        self.value, self.relation = value, relation
        self._hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.value, self.relation))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is Literal0 and self.relation == other.relation and self.value == other.value)

    def __repr__(self) -> str:
        return f"Literal0({self.value!r} {self.relation} 0)"

    def holds_of(self, number: int) -> bool:
        """number RELATION 0"""
        match self.relation:
            case ">=":
                return number >= 0
            case "==":
                return number == 0
            case "!=":
                return number != 0
        return number > 0


def has_reals(value: Polynomial) -> bool:
    return any(isinstance(entry(a).kind, RealSymbol) for a in value.atoms())


def literal(condition: Compare) -> Literal0:
    """Return a condition as a polynomial compared with zero."""
    difference = to_polynomial(condition.right) - to_polynomial(condition.left)
    match condition.operator:
        case "==" | "!=":
            return Literal0(difference, condition.operator)
        case "<=":
            return Literal0(difference, ">=")
        case "<":
            return Literal0(difference, ">") if has_reals(difference) else Literal0(difference - ONE, ">=")


def negation(value: Literal0) -> Literal0:
    """not value"""
    match value.relation:
        case "==":
            return Literal0(value.value, "!=")
        case "!=":
            return Literal0(value.value, "==")
        case ">":
            return Literal0(-value.value, ">=")
        case ">=":
            return Literal0(-value.value, ">") if has_reals(value.value) else Literal0(-value.value - ONE, ">=")


def tightened(value: Polynomial) -> Polynomial:
    """Divide ``value >= 0`` over integers by the common factor of its terms, with the constant rounded down."""
    common = 0
    for monomial, coefficient in value.terms.items():
        if monomial:
            common = gcd(common, coefficient)
    if common < 2 or has_reals(value):
        return value
    return Polynomial({m: c // common for m, c in value.terms.items() if c // common})


def closure(value: Polynomial) -> set[int]:
    """Return every atom of a polynomial, of the floor-divisions in it and of its iterators' ranges."""
    return set().union(*map(closure_of, value.atoms()))


@lru_cache(maxsize=1 << 16)
def closure_of(atom: int) -> frozenset[int]:
    """Return an atom with every atom that it depends on; definitions of atoms never change."""
    atom_entry = entry(atom)
    below = {a for part in (*inside(atom), atom_entry.low, atom_entry.high) if part is not None for a in part.atoms()}
    return frozenset({atom}).union(*map(closure_of, below))


def isolated(value: Polynomial, atom: int) -> Polynomial | None:
    """Return x with ``atom == x`` where value == 0, for an atom with a unit coefficient on which nothing else depends; else None."""
    coefficient = value.terms.get((atom,), 0)
    if abs(coefficient) != 1:
        return None
    others = Polynomial({m: -c * coefficient for m, c in value.terms.items() if m != (atom,)})
    return None if atom in closure(others) else others


def divisions(value: Polynomial) -> int:
    """Return the number of floor-divisions in a polynomial."""
    return sum(isinstance(entry(atom).kind, FloorAtom) for atom in closure(value))


def domain(atom: int, value: Polynomial) -> list[Polynomial]:
    """Return polynomials that are >= 0 if an iterator or symbol equals the value."""
    atom_entry = entry(atom)
    if isinstance(atom_entry.kind, Symbol):
        return [value - constant(atom_entry.kind.minimum)]
    if atom_entry.low is not None and atom_entry.high is not None:
        return [value - atom_entry.low, atom_entry.high - ONE - value]
    return []


@lru_cache(maxsize=1 << 17)
def at_minimums(value: Polynomial) -> bool:
    """Return whether a polynomial in symbols is >= 0 because it has no negative coefficient with each symbol written as its minimum plus
    a rest."""
    shifted: dict[Monomial, int] = {}
    for monomial, coefficient in value.terms.items():
        parts: dict[Monomial, int] = {(): coefficient}
        for atom in monomial:
            kind = entry(atom).kind
            if not isinstance(kind, Symbol):
                return False
            product = {(*m, atom): c for m, c in parts.items()}
            if kind.minimum:  # like terms are merged: a power of n gives one per exponent
                for m, c in parts.items():
                    product[m] = product.get(m, 0) + c * kind.minimum
            parts = product
        for m, c in parts.items():
            shifted[m] = shifted.get(m, 0) + c
    return all(c >= 0 for c in shifted.values())
