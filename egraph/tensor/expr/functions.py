"""Scalar functions: name, arity, and what each means in float64 and in the prime field.

A function without an exact meaning in the field F_p (p = 2^31 - 1) has a fixed pseudo-random surrogate there: equal
arguments give equal results and nothing else is known of it. So a test in F_p may refute an equation that only an
identity of that function would prove, and agreement is not conclusive if surrogates were used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

PRIME = 2**31 - 1
Array = np.ndarray


@dataclass(frozen=True)
class ScalarFunction:
    """``real`` works on float64 arrays, ``prime`` on int64 residues (None: only a surrogate exists)."""

    name: str
    arity: int
    real: Callable[..., Array]
    prime: Callable[..., Array] | None = None


def prime_power(base: Array, exponent: int) -> Array:
    """base ** exponent in F_p, for exponent >= 0"""
    result, square = np.ones_like(base), base % PRIME
    while exponent:
        if exponent & 1:
            result = result * square % PRIME
        square, exponent = square * square % PRIME, exponent >> 1
    return result


def prime_inverse(value: Array) -> Array:
    """1 / value in F_p (Fermat); the inverse of zero is zero."""
    return prime_power(value, PRIME - 2)


def surrogate(name: str, *arguments: Array) -> Array:
    """Return a fixed pseudo-random residue for a function's name and arguments."""
    state = np.asarray(sum((i + 1) * ord(c) for i, c in enumerate(name)) * 7919 % PRIME, dtype=np.int64)
    for argument in arguments:
        state = (state * 1103515245 + np.asarray(argument, dtype=np.int64)) % PRIME
        state = prime_power(state + 12345, 5)
    return state


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _compare(test: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.asarray(test(a, b), np.float64)


def _where(condition: Array, then: Array, otherwise: Array) -> Array:
    return np.asarray(np.where(condition != 0, then, otherwise))


CONVERSIONS: Mapping[str, str] = {f"to_{dtype}": dtype for dtype in ("float32", "int32", "int64", "int8", "uint8")}
"""Functions that convert a number to an element type, and that type. The number does not change, because the type holds it,
except for the rounding of float32."""

_TABLE = (
    ScalarFunction("add", 2, np.add, lambda a, b: (a + b) % PRIME),
    ScalarFunction("sub", 2, np.subtract, lambda a, b: (a - b) % PRIME),
    ScalarFunction("mul", 2, np.multiply, lambda a, b: a * b % PRIME),
    ScalarFunction("div", 2, np.divide, lambda a, b: a * prime_inverse(b) % PRIME),
    ScalarFunction("neg", 1, np.negative, lambda a: (-a) % PRIME),
    ScalarFunction("reciprocal", 1, np.reciprocal, prime_inverse),
    ScalarFunction("max", 2, np.maximum, np.maximum),
    ScalarFunction("min", 2, np.minimum, np.minimum),
    ScalarFunction("pow", 2, np.power),
    ScalarFunction("abs", 1, np.abs),
    ScalarFunction("sign", 1, np.sign),
    ScalarFunction("exp", 1, np.exp),
    ScalarFunction("log", 1, np.log),
    ScalarFunction("sqrt", 1, np.sqrt),
    ScalarFunction("erf", 1, _erf),
    ScalarFunction("tanh", 1, np.tanh),
    ScalarFunction("sin", 1, np.sin),
    ScalarFunction("cos", 1, np.cos),
    ScalarFunction("floor", 1, np.floor),
    ScalarFunction("ceil", 1, np.ceil),
    ScalarFunction("round", 1, np.round),
    ScalarFunction("less", 2, _compare(np.less)),
    ScalarFunction("less_equal", 2, _compare(np.less_equal)),
    ScalarFunction("greater", 2, _compare(np.greater)),
    ScalarFunction("greater_equal", 2, _compare(np.greater_equal)),
    ScalarFunction("equal", 2, _compare(np.equal), lambda a, b: (a == b).astype(np.int64)),
    ScalarFunction("and_", 2, lambda a, b: np.logical_and(a, b).astype(np.float64), lambda a, b: ((a != 0) & (b != 0)).astype(np.int64)),
    ScalarFunction("or_", 2, lambda a, b: np.logical_or(a, b).astype(np.float64), lambda a, b: ((a != 0) | (b != 0)).astype(np.int64)),
    ScalarFunction("not_", 1, lambda a: np.logical_not(a).astype(np.float64), lambda a: (a == 0).astype(np.int64)),
    ScalarFunction("where", 3, _where, _where),
    *(ScalarFunction(name, 1, lambda a: a, lambda a: a) for name in CONVERSIONS),
    ScalarFunction("is_nan", 1, lambda a: np.isnan(a).astype(np.float64), lambda a: np.zeros_like(a)),
)
FUNCTIONS: Mapping[str, ScalarFunction] = {f.name: f for f in _TABLE}
RATIONAL = frozenset({"add", "sub", "mul", "div", "neg", "reciprocal", *CONVERSIONS})
"""Functions that F_p computes exactly, so that agreement there bounds the probability of error."""
