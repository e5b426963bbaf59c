"""Where NaN comes from and where it goes: numbers that are no numbers have no laws, they only spread."""

from __future__ import annotations

import math

from egraph.tensor.expr.bodies import walked_through
from egraph.tensor.expr.scope import Apply, Guarded, Number, Read, Scalar, Scope

SPREADING = frozenset({
    "add", "sub", "mul", "div", "neg", "reciprocal", "max", "min", "abs", "sign", "exp", "log", "sqrt", "erf", "tanh", "sin", "cos",
    "floor", "ceil", "round",
})  # fmt: skip
"""Functions of which every NaN among the arguments makes the result NaN: no power, no comparison, no choice."""


def has_nan(scope: Scope) -> bool:
    """Return whether a NaN stands somewhere in an expression."""
    return any(isinstance(each, Number) and isinstance(each.value, float) and math.isnan(each.value) for each in walked_through(scope.body))


def is_nan(body: Scalar) -> bool:
    """Return whether a scalar is NaN for certain, at every place."""
    match body:
        case Number(float() as value):
            return math.isnan(value)
        case Apply("where", (_, then, otherwise)):
            return is_nan(then) and is_nan(otherwise)
        case Apply(function, arguments):
            return function in SPREADING and any(map(is_nan, arguments))
        case Guarded(_, then, otherwise):
            return is_nan(then) and is_nan(otherwise)
        case Read(Scope() as source, _):
            return is_nan(source.body)
    return False
