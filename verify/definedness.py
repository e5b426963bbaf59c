"""Find where an expression may have no value: its partial functions, infinite constants and NaN.

``x + 1/y - 1/y = x`` holds wherever the left side is defined. The laws of the reals do not see the difference, so
it is looked for in the expressions themselves, before terms cancel. NaN has no laws, it only spreads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from egraph.tensor.expr.bodies import walked_through
from egraph.tensor.expr.index import has_reals
from egraph.tensor.expr.scope import Apply, Guarded, IndexNumber, Number, Read, Scalar, Scope

_PARTIAL = {
    "div": "nonzero divisor", "reciprocal": "nonzero divisor", "log": "positive argument of a logarithm",
    "sqrt": "argument of a root not negative", "pow": "power defined",
}  # fmt: skip


def differences(left: Scope, right: Scope) -> frozenset[str]:
    """Return the facts that the partial functions of one side alone need."""
    return frozenset(_PARTIAL[name] for name in _partial(left) ^ _partial(right))


def is_partial(scope: Scope) -> bool:
    """Return whether an expression applies a function that has no value for some arguments, or holds an infinite constant."""
    return bool(_partial(scope)) or any(_is_infinite(body) and body != identity for body, identity in _scalars(scope))


def _partial(scope: Scope) -> set[str]:
    """Return the partial functions that an expression applies."""
    return {
        "div" if body.function == "reciprocal" else body.function
        for body, _ in _scalars(scope)
        if isinstance(body, Apply) and body.function in _PARTIAL and not _is_defined(body.function, body.arguments)
    }


def _is_infinite(body: Scalar) -> bool:
    return isinstance(body, Number) and isinstance(body.value, float) and math.isinf(body.value)


def _scalars(scope: Scope) -> Iterator[tuple[Scalar, Number | None]]:
    """Yield the scalars of an expression, each with the identity of the reduction that it is a case of."""
    seen: set[tuple[int, int]] = set()
    pending: list[tuple[Scalar, Number | None]] = [(scope.body, scope.reduction.identity)]
    while pending:
        body, identity = pending.pop()
        if (id(body), id(identity)) in seen:
            continue
        seen.add((id(body), id(identity)))
        yield body, identity
        match body:
            case Apply(_, arguments):
                pending += [(argument, None) for argument in arguments]
            case Guarded(_, then, otherwise):
                pending += [(then, identity), (otherwise, identity)]
            case Read(Scope() as source, _):
                pending.append((source.body, source.reduction.identity))


def _is_defined(function: str, arguments: tuple[Scalar, ...]) -> bool:
    """Return whether its form settles it: a divisor other than zero, a whole power of anything, a size, the root of a square."""
    last = arguments[-1]
    match function, last:
        case "sqrt", Apply("mul", (factor, twin)):
            return factor == twin
        case "div" | "reciprocal" | "log" | "sqrt", Number(value):
            return value > 0
        case "pow", Number(Fraction() as value):
            return value >= 0 and value.denominator == 1
        case "div" | "reciprocal", IndexNumber(value):
            return not has_reals(value)  # sizes and counts of windows are at least one; a number with a name may be zero
    return False


SPREADING = frozenset({
    "add", "sub", "mul", "div", "neg", "reciprocal", "max", "min", "abs", "sign", "exp", "log", "sqrt", "erf", "tanh", "sin", "cos",
    "floor", "ceil", "round",
})  # fmt: skip
"""Functions of which every NaN among the arguments makes the result NaN: no power, no comparison, no choice."""


def has_nan(scope: Scope) -> bool:
    """Return whether an expression contains a NaN."""
    return any(isinstance(part, Number) and isinstance(part.value, float) and math.isnan(part.value) for part in walked_through(scope.body))


def is_nan(body: Scalar) -> bool:
    """Return whether a scalar is certainly NaN at every position."""
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
