"""Forget what scalar functions mean: sides that are equal even then need no law about finite or non-zero values."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from fractions import Fraction

from egraph.tensor.expr.functions import FUNCTIONS
from egraph.tensor.expr.index import DataIndex, Floor, Index, Modulo, index
from egraph.tensor.expr.scope import Apply, Compare, Guarded, Number, Read, Scalar, Scope

KEPT = frozenset({"add", "sub", "neg", "mul"})
"""Functions whose laws hold for all numbers, up to rounding."""


TRANSCENDENTAL = frozenset({"exp", "log"})
"""Functions whose laws hold of real numbers alone: exp(x) exp(y) overflows where exp(x + y) does not."""


def forgotten(scope: Scope) -> Scope:
    """Return the scope with every other function, and every constant that is not a fraction, as one that nothing is known of."""
    return _Forgetting(frozenset(FUNCTIONS.keys() - KEPT), numbers=True).scope(scope)


def without_laws(scope: Scope, functions: Collection[str]) -> Scope:
    """Return the scope with some functions as ones that nothing is known of."""
    return _Forgetting(frozenset(functions), numbers=False).scope(scope)


def applies(scope: Scope, functions: Collection[str]) -> bool:
    """Return whether a scope applies one of the functions."""
    forgetting = _Forgetting(frozenset(functions), numbers=False)
    forgetting.scope(scope)
    return forgetting.any


@dataclass
class _Forgetting:
    names: frozenset[str]
    numbers: bool
    known: dict[int, tuple[Scope, Scope]] = field(default_factory=dict)
    any: bool = False

    def scope(self, scope: Scope) -> Scope:
        known = self.known.get(id(scope))
        if known is None:
            made = Scope(scope.traversal, scope.summation, scope.reduction, self.scalar(scope.body))
            known = self.known[id(scope)] = scope, made
        return known[1]

    def scalar(self, body: Scalar) -> Scalar:
        match body:
            case Number(value) if self.numbers and (not isinstance(value, Fraction) or value.denominator >= 1 << 30):
                return Apply(f"~{value}", ())
            case Apply(function, arguments):
                self.any = self.any or function in self.names
                name = f"~{function}" if function in self.names else function
                return Apply(name, tuple(map(self.scalar, arguments)))
            case Guarded(conditions, then, otherwise):
                return Guarded(tuple(map(self.condition, conditions)), self.scalar(then), self.scalar(otherwise))
            case Read():
                return self.read(body)
        return body

    def read(self, read: Read) -> Read:
        source = self.scope(read.source) if isinstance(read.source, Scope) else read.source
        return Read(source, tuple(map(self.index, read.indices)))

    def condition(self, condition: Compare) -> Compare:
        return Compare(self.index(condition.left), condition.operator, self.index(condition.right))

    def index(self, value: Index) -> Index:
        if not any(isinstance(atom, DataIndex | Floor | Modulo) for monomial, _ in value.terms for atom in monomial):
            return value
        total = Index(())
        for monomial, coefficient in value.terms:
            product = index(coefficient)
            for atom in monomial:
                match atom:
                    case DataIndex(read):
                        product = product * index(DataIndex(self.read(read)))
                    case Floor(a, b):
                        product = product * (self.index(a) // self.index(b))
                    case Modulo(a, b):
                        product = product * (self.index(a) % self.index(b))
                    case _:
                        product = product * index(atom)
            total = total + product
        return total
