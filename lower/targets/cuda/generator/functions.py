"""Scalar functions and element types as CUDA C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

TYPES = {
    "float32": "float", "float64": "double", "bool": "unsigned char", "float16": "unsigned short", "bfloat16": "unsigned short",
    "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long",
    "uint8": "unsigned char", "uint16": "unsigned short", "uint32": "unsigned int", "uint64": "unsigned long long",
}  # fmt: skip
"""How element types lie in memory; those without arithmetic are only moved."""

PREAMBLE = """\
#ifndef EINSAT_FUNCTIONS
#define EINSAT_FUNCTIONS
static __device__ __forceinline__ float einsat_max(float a, float b) { return a > b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_min(float a, float b) { return a < b || a != a ? a : b; }
static __device__ __forceinline__ float einsat_sign(float a) { return a > 0.0f ? 1.0f : a < 0.0f ? -1.0f : a; }
static __device__ __forceinline__ int einsat_quotient(int a, int b) { return a / b - (a % b < 0); }
static __device__ __forceinline__ int einsat_remainder(int a, int b) { return a % b < 0 ? a % b + b : a % b; }
#endif
"""
"""Functions that texts use; NaN is the larger and the smaller of two, as in numpy, and divisions are floor divisions."""

_TENSOR_CORES = """\
#ifndef EINSAT_TENSOR_CORES
#define EINSAT_TENSOR_CORES
#define EINSAT_OF(type) \\
static __device__ __forceinline__ unsigned einsat_pair_##type(float low, float high) { \\
  unsigned pair; \\
  asm("cvt.rn." #type "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low)); \\
  return pair; \\
} \\
static __device__ __forceinline__ void einsat_mma_##type(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) { \\
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #type "." #type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \\
               "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \\
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); \\
}
EINSAT_OF(f16)
EINSAT_OF(bf16)
#endif
"""
TENSOR_TYPES = {"fp16": "f16", "bf16": "bf16"}
"""What tensor cores call the precisions that they multiply for generated kernels."""


def preamble(precision: str) -> str:
    """Return the functions that texts of a precision use: without tensor cores, those of float32 alone."""
    return PREAMBLE + (_TENSOR_CORES if precision in TENSOR_TYPES else "")


_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=",
    "equal": "==", "and_": "&&", "or_": "||",
}  # fmt: skip
_CALLS = {
    "max": "einsat_max", "min": "einsat_min", "sign": "einsat_sign", "abs": "fabsf", "exp": "expf", "log": "logf", "sqrt": "sqrtf",
    "erf": "erff", "tanh": "tanhf", "sin": "sinf", "cos": "cosf", "floor": "floorf", "ceil": "ceilf", "round": "rintf", "pow": "powf",
}  # fmt: skip
COMPARISONS = frozenset({"less", "less_equal", "greater", "greater_equal", "equal", "is_nan"})
LOGICAL = frozenset({"and_", "or_", "not_"})
LARGEST_POWER = 8
"""The largest exponent that is computed by products."""


def call(function: str, operands: Sequence[str]) -> str:
    """Return a scalar function of ``egraph.tensor.expr.functions`` at operands of one type."""
    if function in _INFIX:
        return f"({f' {_INFIX[function]} '.join(operands)})"
    if function in _CALLS:
        return f"{_CALLS[function]}({', '.join(operands)})"
    (first, *others) = operands
    match function:
        case "to_float32":
            return f"((float){first})"
        case "to_int64":
            return f"((long long){first})"
        case "neg":
            return f"(-{first})"
        case "not_":
            return f"(!{first})"
        case "reciprocal":
            return f"(1.0f / {first})"
        case "is_nan":
            return f"({first} != {first})"
        case "where":
            return f"({first} ? {others[0]} : {others[1]})"
    raise AssertionError(f"{function} has no text")


def power(base: str, exponent: Fraction | float) -> str | None:
    """Return base ** exponent as products and square roots; None where that is not possible."""
    doubled = Fraction(exponent) * 2 if math.isfinite(exponent) else Fraction(1, 3)
    if doubled.denominator != 1 or not 0 < abs(doubled) <= 2 * LARGEST_POWER:
        return None
    factors, half = divmod(abs(int(doubled)), 2)
    product = " * ".join([base] * factors + [f"sqrtf({base})"] * half)
    return f"(1.0f / ({product}))" if exponent < 0 else f"({product})"


def literal(value: Fraction | float, kind: str) -> str:
    """Return a constant of a C type."""
    if kind == "bool":
        return "true" if value else "false"
    if kind == "double":
        return repr(float(value)) if math.isfinite(value) else f"(double){literal(value, 'float')}"
    if kind != "float":
        return f"({kind}){int(value)}"
    if math.isnan(value):
        return "__int_as_float(0x7fc00000)"
    with np.errstate(over="ignore"):
        number = float(np.float32(value))
    if math.isinf(number):
        return f"__int_as_float(0x{'7' if number > 0 else 'f'}f800000)"
    return f"{number!r}f" if number >= 0 and math.copysign(1, number) > 0 else f"({number!r}f)"
