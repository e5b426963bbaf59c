"""Forget what scalar functions mean: sides that are equal even then need no law about finite or non-zero values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction

from egraph.tensor.expr.bodies import Rewriter, rebuilt
from egraph.tensor.expr.functions import FUNCTIONS
from egraph.tensor.expr.index import Index, substitute
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table

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
class _Forgetting(Rewriter):
    names: frozenset[str]
    numbers: bool
    any: bool = False

    def scalar(self, body: Scalar) -> Scalar:
        match body:
            case Number(value) if self.numbers and (not isinstance(value, Fraction) or value.denominator >= 1 << 30):
                return Apply(f"~{value}", ())
            case Apply(function, arguments) if function in self.names:
                self.any = True
                return Apply(f"~{function}", tuple(map(self.scalar, arguments)))
            case Read():
                return self.read(body)
            case Table() | IndexNumber():
                return body
        return rebuilt(body, self.scalar, self.index, _guarded)

    def read(self, read: Read) -> Read:
        source = self.scope(read.source) if isinstance(read.source, Scope) else read.source
        return Read(source, tuple(map(self.index, read.indices)))

    def index(self, value: Index) -> Index:
        return substitute(value, {}, self.read)


def _guarded(conditions: Iterable[Compare], then: Scalar, otherwise: Scalar) -> Scalar:
    """Return a guard as it stands, whatever ranges decide."""
    return Guarded(tuple(conditions), then, otherwise)
