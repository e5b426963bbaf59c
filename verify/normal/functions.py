"""Scalar functions and constants as values: arithmetic, the laws of each function, uninterpreted calls, rounded numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from egraph.tensor.expr.functions import CONVERSIONS
from egraph.tensor.expr.index import has_reals
from verify.normal.algebra import add, only_term, plain
from verify.normal.choices import choose, positive, split, truth, zero
from verify.normal.context import ONE, ZERO, Context, constant, negated, number, scaled, single
from verify.normal.extrema import maximum, minimum
from verify.normal.naming import blind_key, close, factor_text, value_text
from verify.normal.products import content, exponential, multiply, power, reciprocal, split_constant
from verify.normal.signs import sign, sign_of_factor
from verify.normal.terms import INFINITY, Call, Factor, IndexFactor, Term, Value

Function = Callable[[Context, Sequence[Value]], Value]
LARGEST_POWER = 8
_PRIMES = tuple(p for p in range(2, 1000) if all(p % d for d in range(2, int(p**0.5) + 1)))


def call(context: Context, function: str, arguments: Sequence[Value]) -> Value:
    """function(arguments)"""
    if context.infinite and function in ("add", "sub", "mul", "div") and any(INFINITY in value_text(context, a) for a in arguments):
        context.use("arithmetic with infinite constants")
    direct = _DIRECT.get(function)
    if direct is not None:
        return direct(context, arguments)
    law = _LAWS.get(function)
    if law is not None:
        return split(context, arguments, lambda given: law(context, given))
    return split(context, arguments, lambda given: opaque(context, function, given))


def opaque(context: Context, function: str, arguments: Sequence[Value]) -> Value:
    """Return a call about which nothing more is known."""
    return single(Call(function, tuple(close(context, a) for a in arguments)))


def divided(context: Context, value: Value, *, positive: bool) -> Value:
    """1 / value; if the whole value is known to be ``positive``, so is each piece into which conditions split it."""
    before, context.dividing = context.dividing, positive or context.dividing
    try:
        return split(context, (value,), lambda given: reciprocal(context, given[0]))
    finally:
        context.dividing = before


def _divide(context: Context, arguments: Sequence[Value]) -> Value:
    return multiply(context, arguments[0], _reciprocal(context, arguments[1:]))


def _reciprocal(context: Context, arguments: Sequence[Value]) -> Value:
    return divided(context, arguments[0], positive=sign(context, arguments[0]) == 1)


def _absolute(context: Context, arguments: Sequence[Value]) -> Value:
    """|a b| = |a| |b|"""
    term = only_term(arguments[0])
    if term is not None and plain(term) and len(term.factors) > 1:
        result = number(abs(term.coefficient))
        for factor in term.factors:
            result = multiply(context, result, _absolute(context, (single(factor),)))
        return result
    return maximum(context, (arguments[0], negated(arguments[0])))


def _sign(context: Context, arguments: Sequence[Value]) -> Value:
    """sign(a b) = sign(a) sign(b)"""
    term = only_term(arguments[0])
    if term is not None and plain(term) and len(term.factors) > 1:
        result = number(1 if term.coefficient > 0 else -1)
        for factor in term.factors:
            result = multiply(context, result, _sign(context, (single(factor),)))
        return result
    return add(context, positive(context, arguments[0]), negated(positive(context, negated(arguments[0]))))


def _less(context: Context, arguments: Sequence[Value]) -> Value:
    return positive(context, add(context, arguments[1], negated(arguments[0])))


def _less_equal(context: Context, arguments: Sequence[Value]) -> Value:
    """[a <= b] = not [b < a], except for NaN"""
    context.use("comparison of numbers")
    return add(context, ONE, negated(_less(context, (arguments[1], arguments[0]))))


def _equal(context: Context, arguments: Sequence[Value]) -> Value:
    return zero(context, add(context, arguments[0], negated(arguments[1])))


def _and(context: Context, arguments: Sequence[Value]) -> Value:
    return multiply(context, truth(context, arguments[0]), truth(context, arguments[1]))


def _not(context: Context, arguments: Sequence[Value]) -> Value:
    return add(context, ONE, negated(truth(context, arguments[0])))


def _or(context: Context, arguments: Sequence[Value]) -> Value:
    """not (not a and not b)"""
    left, right = (_not(context, (a,)) for a in arguments)
    return add(context, ONE, negated(multiply(context, left, right)))


_DIRECT: Mapping[str, Function] = {
    "add": lambda context, a: add(context, *a),
    "sub": lambda context, a: add(context, a[0], negated(a[1])),
    "mul": lambda context, a: multiply(context, a[0], a[1]),
    "neg": lambda context, a: negated(a[0]),
    "div": _divide,
    "reciprocal": _reciprocal,
    "max": maximum,
    "min": minimum,
    "abs": _absolute,
    "sign": _sign,
    "less": _less,
    "greater": lambda context, a: _less(context, (a[1], a[0])),
    "less_equal": _less_equal,
    "greater_equal": lambda context, a: _less_equal(context, (a[1], a[0])),
    "equal": _equal,
    "and_": _and,
    "or_": _or,
    "not_": _not,
    "where": lambda context, a: choose(context, a[0], a[1], a[2]),
    **dict.fromkeys(CONVERSIONS, lambda _, a: a[0]),
}


def logarithm(context: Context, value: Value) -> Value:
    """log(a b) = log(a) + log(b) for common factors of a sum"""
    constant_value = constant(value)
    if constant_value is not None:
        return ZERO if constant_value == 1 else opaque(context, "log", (value,))
    coefficient, factors, cofactor = content(context, value)
    if coefficient < 0:
        return opaque(context, "log", (value,))
    parts = [] if coefficient == 1 else [opaque(context, "log", (number(coefficient),))]
    unknown = sum(sign_of_factor(context, factor) != 1 for factor in factors) + (constant(cofactor) is None)
    if unknown > 1:  # two of them may be negative
        context.use("positive argument of a logarithm")
    parts += [_logarithm_of_factor(context, factor) for factor in factors]
    if constant(cofactor) is None:
        parts.append(opaque(context, "log", (cofactor,)))
    return add(context, *parts)


def _logarithm_of_factor(context: Context, factor: Factor) -> Value:
    match factor:
        case Call("exp", (exponent,)):
            return exponent
        case Call("reciprocal", (inner,)):
            return negated(logarithm(context, inner))
        case Call("sqrt", (inner,)):
            return scaled(logarithm(context, inner), Fraction(1, 2))
    return opaque(context, "log", (single(factor),))


def root(context: Context, value: Value) -> Value:
    """sqrt(s^2 t v) = s sqrt(t v), with a root of its own for each positive factor"""
    constant_value = constant(value)
    if constant_value is not None:
        if constant_value < 0:
            return opaque(context, "sqrt", (value,))
        outside, inside = _square_part(constant_value)
        return number(outside) if inside == 1 else scaled(opaque(context, "sqrt", (number(inside),)), outside)
    coefficient, factors, cofactor = content(context, value)
    if coefficient < 0:
        return opaque(context, "sqrt", (value,))
    outside, inside = _square_part(coefficient)
    result, kept = number(outside), []
    texts = [factor_text(context, f) for f in factors]
    skipped: set[int] = set()
    for position, factor in enumerate(factors):
        if position in skipped:
            continue
        twin = next((k for k in range(position + 1, len(factors)) if texts[k] == texts[position] and k not in skipped), None)
        if twin is not None:  # sqrt(f f) = |f|
            skipped.add(twin)
            result = multiply(context, result, _absolute(context, (single(factor),)))
        elif sign_of_factor(context, factor) == 1:
            result = multiply(context, result, _root_of_positive(context, factor))
        else:
            kept.append(factor)
    inner = scaled(cofactor, Fraction(inside))
    if kept:
        inner = multiply(context, inner, Value((Term(Fraction(1), (), (), tuple(kept)),)))
    if constant(inner) is not None:
        return result if constant(inner) == 1 else multiply(context, result, root(context, inner))
    return multiply(context, result, opaque(context, "sqrt", (inner,)))


def _root_of_positive(context: Context, factor: Factor) -> Value:
    match factor:
        case Call("exp", (exponent,)):
            return exponential(context, scaled(exponent, Fraction(1, 2)))
        case Call("reciprocal", (inner,)):
            return reciprocal(context, root(context, inner))
    return opaque(context, "sqrt", (single(factor),))


def _square_part(value: Fraction) -> tuple[Fraction, int]:
    """Return (s, t) with value = s^2 t for an integer t without squares of small primes."""
    inside, outside = value.numerator * value.denominator, 1
    for prime in _PRIMES:
        if prime * prime > inside:
            break
        while inside % (prime * prime) == 0:
            inside //= prime * prime
            outside *= prime
    exact = math.isqrt(inside)
    if exact * exact == inside:
        inside, outside = 1, outside * exact
    return Fraction(outside, value.denominator), inside


def _power(context: Context, arguments: Sequence[Value]) -> Value:
    base, exponent = arguments
    exponent_value = constant(exponent)
    if constant(base) == 1:
        return ONE
    if exponent_value is None or exponent_value.denominator > 2 or abs(exponent_value) > LARGEST_POWER:
        return opaque(context, "pow", arguments)
    result = power(context, base, math.floor(abs(exponent_value)))
    if exponent_value.denominator == 2:
        result = multiply(context, result, root(context, base))
    return result if exponent_value >= 0 else call(context, "reciprocal", (result,))


def _odd(name: str) -> Function:
    def law(context: Context, arguments: Sequence[Value]) -> Value:
        value = arguments[0]
        if not value.terms:
            return ZERO
        if _leads_negative(context, value):
            return negated(opaque(context, name, (negated(value),)))
        return opaque(context, name, arguments)

    return law


def _cosine(context: Context, arguments: Sequence[Value]) -> Value:
    value = arguments[0]
    if not value.terms:
        return ONE
    return opaque(context, "cos", (negated(value) if _leads_negative(context, value) else value,))


def _leads_negative(context: Context, value: Value) -> bool:
    return min(value.terms, key=lambda t: blind_key(context, t)).coefficient < 0


def _floor(context: Context, arguments: Sequence[Value]) -> Value:
    """floor(v + n) = floor(v) + n and floor((floor(v) + m) / n) = floor((v + m) / n) for integers m and n > 0"""
    varying, offset = split_constant(arguments[0])
    whole = math.floor(offset)
    if not varying.terms or _whole(varying):
        return add(context, varying, number(whole))
    match varying.terms:
        case (Term(Fraction(numerator=1, denominator=n), (), (), (Call("floor", (inner,)),)),) if (offset * n).denominator == 1:
            return _floor(context, (add(context, scaled(inner, Fraction(1, n)), number(offset)),))
    inner = add(context, varying, number(offset - whole))
    return add(context, opaque(context, "floor", (inner,)), number(whole))


def _whole(value: Value) -> bool:
    """Return whether a value is a sum of integers by its form."""
    return all(
        plain(t) and t.coefficient.denominator == 1
        and all((isinstance(f, IndexFactor) and not has_reals(f.value)) or (type(f) is Call and f.function in _WHOLE) for f in t.factors)
        for t in value.terms
    )  # fmt: skip


_WHOLE = frozenset({"floor", "round", "positive", "zero"})


def _ceil(context: Context, arguments: Sequence[Value]) -> Value:
    return negated(_floor(context, (negated(arguments[0]),)))


def _round(context: Context, arguments: Sequence[Value]) -> Value:
    """Round half to even; the function is odd and the identity on integers."""
    constant_value = constant(arguments[0])
    if constant_value is not None:
        return number(round(constant_value))
    return arguments[0] if _whole(arguments[0]) else _odd("round")(context, arguments)


_LAWS: Mapping[str, Function] = {
    "exp": lambda context, a: exponential(context, a[0]),
    "log": lambda context, a: logarithm(context, a[0]),
    "sqrt": lambda context, a: root(context, a[0]),
    "pow": _power,
    "tanh": _odd("tanh"),
    "erf": _odd("erf"),
    "sin": _odd("sin"),
    "cos": _cosine,
    "floor": _floor,
    "ceil": _ceil,
    "round": _round,
}


LARGEST_DENOMINATOR, LARGEST_SQUARE = 10**6, 2**12
"""Largest denominator of a fraction that a float is taken to stand for, and of a fraction whose root it is taken to stand for."""


def constant_number(context: Context, value: Fraction | float) -> Value:
    """Return a constant; an infinity is a symbol of which only the sign is known."""
    if isinstance(value, Fraction):
        return _meant(context, value)
    if math.isnan(value):
        return single(Call("nan", ()))
    context.infinite = True
    return scaled(single(Call(INFINITY, ())), Fraction(1 if value > 0 else -1))


def _meant(context: Context, value: Fraction) -> Value:
    """Return the simple fraction or root of a fraction whose rounding is the float with many digits; else the float itself."""
    if value.denominator < 1 << 30:
        return number(value)
    simple = value.limit_denominator(LARGEST_DENOMINATOR)
    if _rounds_to(simple, value):
        context.use("constants are rounded")
        return number(simple)
    square = (value * value).limit_denominator(LARGEST_SQUARE)
    if _rounds_to(square, value * value):
        context.use("constants are rounded")
        return scaled(root(context, number(square)), Fraction(1 if value > 0 else -1))
    return number(value)


def _rounds_to(simple: Fraction, value: Fraction) -> bool:
    return simple != 0 and abs(simple - value) <= abs(value) / (1 << 50)
