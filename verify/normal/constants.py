"""Numbers of programs as values: exact fractions, what a rounded float stands for, infinities."""

from __future__ import annotations

import math
from fractions import Fraction

from verify.normal.context import Context, number, scaled, single
from verify.normal.functions import root
from verify.normal.terms import INFINITY, Call, Value

LARGEST_DENOMINATOR, LARGEST_SQUARE = 10**6, 2**12
"""Largest denominators of the fractions that a float is taken to stand for, and of the fractions whose roots it is taken for."""


def constant_number(context: Context, value: Fraction | float) -> Value:
    """Return a constant; an infinity is a number of its own, about which only its sign is known."""
    if isinstance(value, Fraction):
        return _meant(context, value)
    if math.isnan(value):
        return single(Call("nan", ()))
    context.infinite = True
    return scaled(single(Call(INFINITY, ())), Fraction(1 if value > 0 else -1))


def _meant(context: Context, value: Fraction) -> Value:
    """Return the fraction, or the root of one, that a float with many digits is the rounding of; else the float itself."""
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
