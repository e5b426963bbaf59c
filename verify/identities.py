"""Write functions by others, where a proof may need it: exactly the same function, NaN included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from egraph.tensor.expr.bodies import Rewriter, rebuilt
from egraph.tensor.expr.scope import ONE, Apply, Read, Scalar, Scope
from egraph.tensor.expr.scope import apply as call


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
"""Groups of functions, each with how it is written by others; the functions of a group are rewritten together."""


def respelt(left: Scope, right: Scope) -> list[tuple[Scope, Scope]]:
    """Return both sides in other spellings, where they have functions that can be."""
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
