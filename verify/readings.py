"""Rewrite the sides of a rule: functions expressed by others, or replaced by uninterpreted ones.

Functions expressed by others may help a proof and are exactly the same functions, including NaN. Sides that are equal with
uninterpreted functions need no law about finite or nonzero values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from egraph.tensor.expr.bodies import Rewriter, rebuilt
from egraph.tensor.expr.functions import FUNCTIONS
from egraph.tensor.expr.index import Index, substitute
from egraph.tensor.expr.scope import ONE, Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table
from egraph.tensor.expr.scope import apply as call

KEPT = frozenset({"add", "sub", "neg", "mul"})
"""Functions whose laws hold for all numbers, up to rounding."""
TRANSCENDENTAL = frozenset({"exp", "log"})
"""Functions whose laws hold only for real numbers: exp(x) exp(y) may overflow when exp(x + y) does not."""


def forgotten(scope: Scope) -> Scope:
    """Return the scope with every function outside ``KEPT``, and every constant that is not a fraction, uninterpreted."""
    return _Forgetting(frozenset(FUNCTIONS.keys() - KEPT), numbers=True).scope(scope)


def without_laws(scope: Scope, functions: Collection[str]) -> Scope:
    """Return the scope with some functions uninterpreted."""
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
    """Return a guard without simplification by ranges."""
    return Guarded(tuple(conditions), then, otherwise)


def _both(a: Scalar, b: Scalar) -> Scalar:
    """x <= y and y <= x is x == y"""
    match _ordered(a), _ordered(b):
        case (x, y), (z, w) if x == w and y == z:
            return call("equal", x, y)
    return call("and_", a, b)


def _ordered(test: Scalar) -> tuple[Scalar, Scalar] | None:
    match test:
        case Apply("less_equal", (x, y)) | Apply("greater_equal", (y, x)):
            return x, y
    return None


def _tangent(x: Scalar) -> Scalar:
    """tanh(x) = 2 / (1 + exp(-2 x)) - 1"""
    twice = call("reciprocal", call("add", ONE, call("exp", call("neg", call("add", x, x)))))
    return call("sub", call("add", twice, twice), ONE)


SPELLINGS: tuple[Mapping[str, Callable[..., Scalar]], ...] = (
    {"and_": _both},
    {"tanh": _tangent},
)
"""Groups of functions, each with its expression by others; the functions of a group are rewritten together."""


def rewritten(left: Scope, right: Scope) -> list[tuple[Scope, Scope]]:
    """Return both sides in other spellings, for each group of which they have a function."""
    pairs = []
    for spelling in SPELLINGS:
        writer = _Writer(spelling)
        sides = writer.scope(left), writer.scope(right)
        if writer.changed:
            pairs.append(sides)
    return pairs


@dataclass
class _Writer(Rewriter):
    spelling: Mapping[str, Callable[..., Scalar]]
    changed: bool = False

    def scalar(self, body: Scalar) -> Scalar:
        match body:
            case Apply(function, arguments) if function in self.spelling:
                self.changed = True
                return self.spelling[function](*map(self.scalar, arguments))
            case Read(Scope() as source, indices):
                return Read(self.scope(source), indices)
        return rebuilt(body, self.scalar)
