"""Bounds of integers: arithmetic in int32 wraps around, whereas the normal form treats it as arithmetic on all integers.

Ring laws hold with and without wrap-around; the two differ only after a conversion to float32.
"""

from __future__ import annotations

import math

from egraph.tensor.expr.functions import CONVERSIONS
from egraph.tensor.expr.index import length
from egraph.tensor.expr.scope import Apply, Guarded, Number, Read, Reduction, Scalar, Scope, Tensor

LARGEST_INT32 = 2**31 - 1
NO_OVERFLOW = "sums and products of int32 that do not overflow"
"""The fact about data that a conversion rests on if its argument may exceed int32."""
MAGNITUDES = {"bool": 1, "uint8": 255, "int8": 255}
"""Largest magnitude of an element by type. Both kinds of bytes have the same, so that a proof for one is a proof for the other."""


def magnitude(value: Scalar) -> float:
    """Return the largest magnitude of an expression over integers; infinity if nothing is known."""
    match value:
        case Number(constant):
            return abs(float(constant))
        case Read(Tensor(_, _, dtype), _):
            return MAGNITUDES.get(dtype, LARGEST_INT32)
        case Read(Scope() as scope, _):
            return _magnitude_of(scope)
        case Apply("min", (Apply("max", (_, Number(low))), Number(high))):
            return max(abs(float(low)), abs(float(high)))
        case Apply("add" | "sub", (left, right)):
            return magnitude(left) + magnitude(right)
        case Apply("mul", (left, right)):
            return magnitude(left) * magnitude(right)
        case Apply("neg" | "abs", (inner,)):
            return magnitude(inner)
        case Guarded(_, then, Number(identity)) if math.isinf(identity):  # the identity of a maximum, which has another element
            return magnitude(then)
        case Apply("where", (_, then, otherwise)) | Guarded(_, then, otherwise):
            return max(magnitude(then), magnitude(otherwise))
        case Apply(function, (inner,)) if function in CONVERSIONS:
            return magnitude(inner)
    return math.inf


def _magnitude_of(scope: Scope) -> float:
    """Return the largest magnitude of a scope's elements; for a sum, that of a term times the number of terms."""
    body = magnitude(scope.body)
    if not scope.summation or scope.reduction in (Reduction.MAX, Reduction.MIN):
        return body
    try:
        return body * math.prod(map(length, scope.summation)) if scope.reduction == Reduction.SUM else math.inf
    except ValueError:  # of symbolic length
        return math.inf
