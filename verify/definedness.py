"""Find where an expression may be undefined: its partial functions, infinite constants and NaN.

``x + 1/y - 1/y = x`` holds wherever the left side is defined. The laws of the reals do not detect the difference, so
it is sought in the expressions themselves, before terms cancel. NaN has no laws; it only propagates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product

from egraph.tensor.expr.bodies import walked_through
from egraph.tensor.expr.conditions import truth
from egraph.tensor.expr.index import has_reals, index, substitute
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Reduction, Scalar, Scope

_PARTIAL = {
    "div": "nonzero divisor", "reciprocal": "nonzero divisor", "log": "positive argument of a logarithm",
    "sqrt": "argument of a root not negative", "pow": "power defined",
}  # fmt: skip
MOST_COUNTED = 1 << 12
"""Most positions times taps at which the conditions of a count are evaluated, for one axis of an image and a window; about 0.1 s."""


def differences(left: Scope, right: Scope) -> frozenset[str]:
    """Return the facts needed by partial functions that occur on only one side."""
    return frozenset(_PARTIAL[name] for name in _partial(left) ^ _partial(right))


def is_partial(scope: Scope) -> bool:
    """Return whether an expression applies a function that is undefined for some arguments, or contains an infinite constant."""
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
    """Yield the scalars of an expression, each with the identity of its reduction if it is a case of one."""
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
    """Return whether an application is defined by its form: a nonzero divisor, an integer power, a size, the root of a square."""
    last = arguments[-1]
    match function, last:
        case "sqrt", Apply("mul", (factor, twin)):
            return factor == twin
        case "div" | "reciprocal" | "log" | "sqrt", Number(value):
            return value > 0
        case "pow", Number(Fraction() as value):
            return value >= 0 and value.denominator == 1
        case "div" | "reciprocal", IndexNumber(value):
            return not has_reals(value)  # sizes and counts of windows are at least one; a named number may be zero
        case "div" | "reciprocal", Apply("mul", factors):
            return all(_is_defined(function, (factor,)) for factor in factors)
        case "div" | "reciprocal", Read(Scope() as source, _):
            return _counts_everywhere(source)
    return False


@lru_cache(maxsize=1 << 10)
def _counts_everywhere(scope: Scope) -> bool:
    """Return whether a scope of known sizes counts how often conditions hold, and they hold at least once at every position.

    The divisor of an average over windows is such a count, because its shape rule refuses windows inside the padding only.
    """
    ranges = [(i.low, i.high) for i in (*scope.traversal, *scope.summation)]
    sizes = [range(low, high) for low, high in ranges if isinstance(low, int) and isinstance(high, int)]
    if scope.reduction is not Reduction.SUM or len(sizes) < len(ranges) or math.prod(map(len, sizes)) > MOST_COUNTED:
        return False
    conditions: Iterable[Compare] | None = None
    match scope.body:
        case Number(Fraction(numerator=1, denominator=1)):
            conditions = ()
        case Guarded(guards, Number(Fraction(numerator=1, denominator=1)), Number(Fraction(numerator=0))):
            conditions = guards
    if conditions is None:
        return False
    positions, taps = (list(product(*each)) for each in (sizes[: len(scope.traversal)], sizes[len(scope.traversal) :]))
    return all(any(_holds(conditions, scope, (*position, *tap)) for tap in taps) for position in positions)


def _holds(conditions: Iterable[Compare], scope: Scope, values: Sequence[int]) -> bool:
    """Return whether conditions are known to hold at values of a scope's iterators."""
    at = {iterator: index(value) for iterator, value in zip((*scope.traversal, *scope.summation), values, strict=True)}
    return all(truth(Compare(substitute(c.left, at), c.operator, substitute(c.right, at))) is True for c in conditions)


SPREADING = frozenset({
    "add", "sub", "mul", "div", "neg", "reciprocal", "max", "min", "abs", "sign", "exp", "log", "sqrt", "erf", "tanh", "sin", "cos",
    "floor", "ceil", "round",
})  # fmt: skip
"""Functions whose result is NaN if an argument is. Powers, comparisons and choices are not among them."""


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
