"""Scalar functions as vector code: polynomial and rational approximations in float32, a few units in the last place off.

A call of the C library costs ten times as much and does not vectorise. Sources of the coefficients: Cephes (exp, log,
sin, cos) and the minimax rationals that Eigen and onnxruntime use (tanh, erf).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from tvm import tirx

Expr = Any
"""A TIR expression; a vector when its type has lanes."""
EXPONENTIAL = (1.3814540107e-3, 8.3687451362e-3, 4.1668390787e-2, 1.6666520399e-1, 4.9999993432e-1, 1.0, 1.0)
"""Coefficients of e^r, |r| <= ln(2) / 2, with the least relative error (3.1e-9) among those that end with 1 + r."""

TURNS = ((341782637, 31), (423170132, 60), (352195499, 89), (488592205, 118), (461485765, 147), (90590992, 176))
"""1 / (2 pi) in parts of 29 bits, ``bits / 2**exponent``: their products with a float32 are exact in 64 bits; enough of them for 2**128."""


def lanes(value: Expr) -> int:
    return int(value.ty.dtype.lanes)


def element(value: Expr) -> str:
    """Return the element type's name: 'float32' of a float32x16."""
    return str(value.ty).split("x")[0]


def constant(value: float | int | bool, like: Expr) -> Expr:
    """Return a constant of the type of ``like``."""
    scalar = tirx.const(value, element(like))
    return scalar if lanes(like) == 1 else tirx.Broadcast(scalar, lanes(like))


def number(value: Fraction | float, name: str) -> Expr:
    """Return a number as a constant of an element type; an integer takes its least or largest for an infinity."""
    if name.startswith("float"):
        return tirx.const(float(value), name)
    if name == "bool":
        return tirx.const(bool(value), name)
    limits = np.iinfo(name)
    return tirx.const(int(min(max(value, int(limits.min)), int(limits.max))), name)


def widen(value: Expr, count: int) -> Expr:
    return tirx.Broadcast(value, count) if count > 1 and lanes(value) == 1 else value


def typed(name: str, count: int) -> str:
    return name if count == 1 else f"{name}x{count}"


def cast(value: Expr, name: str) -> Expr:
    return value if element(value) == name else tirx.Cast(typed(name, lanes(value)), value)


def from_bfloat16(bits: Expr) -> Expr:
    """Return the float32 whose upper half these bits are."""
    wide = tirx.Cast(typed("uint32", lanes(bits)), bits)
    return tirx.reinterpret(typed("float32", lanes(bits)), wide << constant(16, wide))


def select(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    count = max(lanes(condition), lanes(then), lanes(otherwise))
    return tirx.Select(widen(condition, count), widen(then, count), widen(otherwise, count))


def intrinsic(name: str, *values: Expr) -> Expr:
    """Call an LLVM intrinsic whose arguments and result have one type."""
    return tirx.call_llvm_pure_intrin(str(values[0].ty), name, *values)


def larger(a: Expr, b: Expr) -> Expr:
    """Return the larger of two values, NaN where either is none: one instruction and, unless one is a constant, two more for NaN."""
    if element(a) == element(b) == "int32":
        return _of_integers("llvm.smax", a, b)
    if _is_constant(a):
        a, b = b, a
    compared = select(a < b, b, a)
    return compared if _is_constant(b) else _unless_nan(b, compared)


def smaller(a: Expr, b: Expr) -> Expr:
    """Return the smaller of two values, NaN where either is none."""
    if element(a) == element(b) == "int32":
        return _of_integers("llvm.smin", a, b)
    if _is_constant(a):
        a, b = b, a
    compared = select(b < a, b, a)
    return compared if _is_constant(b) else _unless_nan(b, compared)


def _of_integers(name: str, a: Expr, b: Expr) -> Expr:
    """Call an intrinsic: choices have each operand twice, and LLVM narrows chains of them to bytes in exponential time."""
    count = max(lanes(a), lanes(b))
    return intrinsic(name, widen(a, count), widen(b, count))


def _unless_nan(value: Expr, compared: Expr) -> Expr:
    if not element(value).startswith("float"):
        return compared
    return select(value <= constant(float("inf"), value), compared, value)  # the compiler folds value == value to true


def _is_constant(value: Expr) -> bool:
    scalar = value.value if isinstance(value, tirx.Broadcast) else value
    return isinstance(scalar, tirx.IntImm | tirx.FloatImm) and scalar.value == scalar.value


class Functions:
    """Emit scalar functions; ``bind(expression)`` names a value so that it is computed once."""

    def __init__(self, bind: Any) -> None:
        self.bind = bind

    def call(self, name: str, arguments: list[Expr]) -> Expr:
        """Return the value of a scalar function of ``egraph.tensor.expr.functions`` at bound arguments of one element type."""
        return getattr(self, "f_" + name)(*arguments)

    def polynomial(self, x: Expr, coefficients: tuple[float, ...]) -> Expr:
        """Return c0 x^n + c1 x^(n-1) + ... by Horner's rule."""
        total = constant(coefficients[0], x)
        for c in coefficients[1:]:
            total = total * x + constant(c, x)
        return self.bind(total)

    f_add = staticmethod(lambda a, b: a + b)
    f_sub = staticmethod(lambda a, b: a - b)
    f_mul = staticmethod(lambda a, b: a * b)
    f_div = staticmethod(lambda a, b: tirx.Div(a, b))
    f_max = staticmethod(larger)
    f_min = staticmethod(smaller)
    f_less = staticmethod(lambda a, b: a < b)
    f_less_equal = staticmethod(lambda a, b: a <= b)
    f_greater = staticmethod(lambda a, b: a > b)
    f_greater_equal = staticmethod(lambda a, b: a >= b)
    f_equal = staticmethod(lambda a, b: tirx.EQ(a, b))
    f_and_ = staticmethod(lambda a, b: tirx.And(a, b))
    f_or_ = staticmethod(lambda a, b: tirx.Or(a, b))
    f_not_ = staticmethod(lambda a: tirx.Not(a))
    f_where = staticmethod(select)

    def f_is_nan(self, a: Expr) -> Expr:
        """Whether all bits of the exponent are set, and one of the rest: the compiler folds a == a to true"""
        bits = tirx.reinterpret(typed("int32", lanes(a)), a) & constant(0x7FFFFFFF, tirx.reinterpret(typed("int32", lanes(a)), a))
        return bits > constant(0x7F800000, bits)

    def to_bfloat16(self, a: Expr) -> Expr:
        """The upper half of a float32, rounded half to even: all but infinities and NaN carry into their exponents rightly"""
        bits = self.bind(tirx.reinterpret(typed("uint32", lanes(a)), a))
        upper = self.bind(bits >> constant(16, bits))
        rounded = (bits + constant(0x7FFF, bits) + (upper & constant(1, bits))) >> constant(16, bits)
        is_nan = (bits & constant(0x7FFFFFFF, bits)) > constant(0x7F800000, bits)
        return tirx.Cast(typed("uint16", lanes(a)), select(is_nan, upper | constant(0x40, bits), rounded))

    f_to_float32 = staticmethod(lambda a: cast(a, "float32"))
    f_to_int32 = staticmethod(lambda a: cast(a, "int32"))
    f_to_int64 = staticmethod(lambda a: cast(a, "int64"))
    f_to_int8 = staticmethod(lambda a: cast(cast(a, "int32"), "int8"))
    f_to_uint8 = staticmethod(lambda a: cast(cast(a, "int32"), "uint8"))

    f_sqrt = staticmethod(lambda a: intrinsic("llvm.sqrt", a))
    f_floor = staticmethod(lambda a: intrinsic("llvm.floor", a))
    f_ceil = staticmethod(lambda a: intrinsic("llvm.ceil", a))
    f_round = staticmethod(lambda a: intrinsic("llvm.nearbyint", a))

    def f_neg(self, a: Expr) -> Expr:
        return constant(-0.0, a) - a if element(a).startswith("float") else constant(0, a) - a

    def f_reciprocal(self, a: Expr) -> Expr:
        return tirx.Div(constant(1.0, a), a)

    def f_abs(self, a: Expr) -> Expr:
        if element(a) == "float32":
            bits = tirx.reinterpret(typed("int32", lanes(a)), a)
            return tirx.reinterpret(typed("float32", lanes(a)), bits & constant(0x7FFFFFFF, bits))
        return select(a < constant(0, a), constant(0, a) - a, a)

    def f_sign(self, a: Expr) -> Expr:
        zero = constant(0, a)
        nothing = select(tirx.EQ(a, zero), zero, a)  # NaN is left
        return select(a > zero, constant(1, a), select(a < zero, constant(-1, a), nothing))

    def f_exp(self, x: Expr) -> Expr:
        """2^n p(r) with x = n ln 2 + r, 0.9 units in the last place off at most; zero below -86.98 (where it is 1.7e-38)."""
        clamped = self.bind(select(x > constant(88.8, x), constant(88.8, x), x))
        # The sum's last bits are n + 126, so that shifted into the exponent they are 2^(n-1); the 2 is in the polynomial.
        magic = self.bind(clamped * constant(1.44269504088896341, x) + constant(12583038.0, x))
        n = self.bind(magic - constant(12583038.0, x))
        r = self.bind((clamped - n * constant(0.693359375, x)) - n * constant(-2.12194440e-4, x))
        p = self.polynomial(r, tuple(2 * c for c in EXPONENTIAL))
        bits = tirx.reinterpret(typed("int32", lanes(x)), magic)
        half = tirx.reinterpret(typed("float32", lanes(x)), bits << constant(23, bits))
        result = self.bind(p * half)
        return select(x < constant(-87.0, x), constant(0.0, x), result)

    def f_log(self, x: Expr) -> Expr:
        """(e + log m) with x = m 2^e and m in [sqrt 1/2, sqrt 2)"""
        tiny = self.bind(x < constant(1.17549435e-38, x))
        scaled = self.bind(select(tiny, x * constant(8388608.0, x), x))
        bits = self.bind(tirx.reinterpret(typed("int32", lanes(x)), scaled))
        exponent = ((bits >> constant(23, bits)) & constant(255, bits)) - constant(126, bits)
        e = self.bind(cast(exponent, "float32") - select(tiny, constant(23.0, x), constant(0.0, x)))
        mantissa = (bits & constant(0x007FFFFF, bits)) | constant(0x3F000000, bits)
        m = self.bind(tirx.reinterpret(typed("float32", lanes(x)), mantissa))
        low = self.bind(m < constant(0.707106781186547524, x))
        e = self.bind(select(low, e - constant(1.0, x), e))
        f = self.bind(select(low, m + m, m) - constant(1.0, x))
        z = self.bind(f * f)
        p = self.polynomial(f, (
            7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
            -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
        ))  # fmt: skip
        y = p * f * z + e * constant(-2.12194440e-4, x) - z * constant(0.5, x)
        value = self.bind(f + y + e * constant(0.693359375, x))
        infinity = constant(float("inf"), x)
        value = self.bind(select(x < infinity, value, x))
        value = self.bind(select(tirx.EQ(x, constant(0.0, x)), constant(float("-inf"), x), value))
        return select(x < constant(0.0, x), constant(float("nan"), x), value)

    def f_tanh(self, x: Expr) -> Expr:
        """x p(x^2) / q(x^2), and one from where it is within 2.8e-7 of that: a sum with -1 may be multiplied by anything"""
        limit = 7.90531110763549805
        z = self.bind(x * x)
        p = self.polynomial(z, (
            -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
            1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
        ))  # fmt: skip
        q = self.polynomial(z, (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03))
        inside = self.bind(tirx.Div(x * p, q))
        return select(x > constant(limit, x), constant(1.0, x), select(x < constant(-limit, x), constant(-1.0, x), inside))

    def f_erf(self, x: Expr) -> Expr:
        """x p(x^2) / q(x^2) on [-4, 4], beyond which erf rounds to one"""
        c = self.bind(select(x > constant(4.0, x), constant(4.0, x), x))
        c = self.bind(select(c < constant(-4.0, x), constant(-4.0, x), c))
        z = self.bind(c * c)
        p = self.polynomial(z, (
            -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
            -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
        ))  # fmt: skip
        q = self.polynomial(
            z, (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)
        )
        return tirx.Div(c * p, q)

    def f_pow(self, x: Expr, y: Expr) -> Expr:
        """exp(y log |x|), with the sign of x for an odd exponent, NaN for a negative x and a fractional one unless x is infinite"""
        magnitude = self.bind(self.f_abs(x))
        value = self.bind(self.f_exp(self.bind(y * self.bind(self.f_log(magnitude)))))
        floor = self.bind(intrinsic("llvm.floor", y))
        odd = tirx.EQ(floor - constant(2.0, y) * intrinsic("llvm.floor", floor * constant(0.5, y)), constant(1.0, y))
        signed = select(odd, intrinsic("llvm.copysign", value, widen(x, lanes(value))), value)
        has_value = tirx.Or(x >= constant(0.0, x), tirx.EQ(x, constant(float("-inf"), x)))
        fraction = select(has_value, value, constant(float("nan"), value))
        is_one = tirx.Or(tirx.EQ(y, constant(0.0, y)), tirx.EQ(x, constant(1.0, x)))
        return select(is_one, constant(1.0, value), select(tirx.EQ(floor, y), signed, fraction))

    def power(self, x: Expr, exponent: Fraction | float) -> Expr:
        """x ** exponent for a known exponent: products and square roots where they do."""
        quarter = Fraction(exponent) * 4 if -64 < exponent < 64 else Fraction(1, 3)
        if quarter.denominator != 1 or abs(quarter) > 32:
            return self.f_pow(x, constant(float(exponent), x))
        exponent_bits, quarters = divmod(abs(int(quarter)), 4)
        total: Expr | None = None
        square = x
        while exponent_bits:
            if exponent_bits & 1:
                total = square if total is None else self.bind(total * square)
            exponent_bits >>= 1
            if exponent_bits:
                square = self.bind(square * square)
        if quarters:
            root = self.bind(intrinsic("llvm.sqrt", x))
            fourth = self.bind(intrinsic("llvm.sqrt", root)) if quarters & 1 else None
            for part in ([root] if quarters & 2 else []) + ([fourth] if fourth is not None else []):
                total = part if total is None else self.bind(total * part)
        total = constant(1.0, x) if total is None else total
        return tirx.Div(constant(1.0, x), total) if exponent < 0 else total

    def f_sin(self, x: Expr) -> Expr:
        return select(tirx.EQ(x, constant(0.0, x)), x, self._wave(x, 0))  # of -0.0, too

    def f_cos(self, x: Expr) -> Expr:
        return self._wave(x, 1)

    def _wave(self, x: Expr, quarter_turns: int) -> Expr:
        """sin(x + quarter_turns pi/2), for every finite x: whole turns are taken from each part of x / (2 pi), and all of it is exact"""
        wide = self.bind(cast(x, "float64"))
        turns: Expr | None = None
        for bits, exponent in TURNS:
            part = self.bind(wide * constant(bits * 2.0**-exponent, wide))
            fraction = self.bind(part - self.f_round(part))
            turns = fraction if turns is None else self.bind(turns + fraction)
        quarters = self.bind((turns - self.f_round(turns)) * constant(4.0, wide))
        n = self.bind(self.f_round(quarters))
        r = self.bind(cast((quarters - n) * constant(math.pi / 2, wide), element(x)))
        bits = self.bind(cast(n, "int32") + constant(quarter_turns, cast(n, "int32")))
        z = self.bind(r * r)
        sine = self.polynomial(z, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)) * z * r + r
        cosine = self.polynomial(z, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)) * (z * z)
        cosine = cosine - z * constant(0.5, x) + constant(1.0, x)
        lowest_bit, zero = constant(1, bits), constant(0, bits)
        value = self.bind(select(tirx.EQ(bits & lowest_bit, zero), sine, cosine))
        return select(tirx.EQ(bits & constant(2, bits), zero), value, constant(0.0, x) - value)
