"""Conversions between numbers and integers: Cast, Truncate, Saturate, Quantize and Dequantize.

Integer products are MatMul and Conv of bytes. Quantize and Dequantize are operators and not quotients and products, so
that no rule for these moves a number to the other side of a rounding. Results that ONNX fixes to the bit stay fixed
unless a rule about quantisation itself changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from egraph.tensor.expr.scope import Scalar, Scope, Tensor, number
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import BYTES, INTEGERS, RANGES
from egraph.tensor.ops.sampling import Sample, draw_broadcastable, draw_shape
from egraph.tensor.ops.scopes import add, multiply, pointwise, read, read_broadcast
from egraph.tensor.ops.sizes import broadcasts_to, one_of, refuse
from egraph.tensor.ops.spec import OpSpec, Shape, Values

NUMBERS = ("float32", "int32")
WHOLE = ("int32", "int64")
LIMITS = {dtype: RANGES[dtype] for dtype in sorted(BYTES)}
"""The least and the largest number of each byte type."""


def _cast_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    one_of(a["to"], NUMBERS, "to")
    return shapes[0]


def _admits_cast(dtypes: Sequence[str], a: Values) -> None:
    if a.get("to") == "int32" and not (RANGES["int32"][0] <= RANGES[dtypes[0]][0] and RANGES[dtypes[0]][1] <= RANGES["int32"][1]):
        refuse(f"int32 does not hold every {dtypes[0]}")


def _truncate_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    one_of(a["to"], WHOLE, "to")
    return shapes[0]


def _truncated(a: Values, x: Scalar) -> Scalar:
    """Return x rounded toward 0."""
    return call(f"to_{a['to']}", call("where", call("less", x, number(0)), call("ceil", x), call("floor", x)))


def _saturate_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    one_of(a["to"], tuple(LIMITS), "to")
    return shapes[0]


def _scaled_shape(shapes: Sequence[Shape], _: Values) -> Shape:
    broadcasts_to(shapes[1], shapes[0], "scale")
    broadcasts_to(shapes[2], shapes[0], "zero point")
    return shapes[0]


def _saturated(x: Scalar, to: str) -> Scalar:
    """Return the whole number x, or the nearest number that the type holds."""
    low, high = LIMITS[to]
    return call(f"to_{to}", call("min", call("max", x, number(low)), number(high)))


def _pointwise(body: Callable[..., Scalar]) -> Callable[[Sequence[Tensor], Values], Scope]:
    def meaning(operands: Sequence[Tensor], a: Values) -> Scope:
        x, *others = operands
        shape = x.shape
        return pointwise("i", shape, lambda i: body(a, read(x, i), *(read_broadcast(each, i) for each in others)))

    return meaning


def _quantize(operands: Sequence[Tensor], _: Values) -> Scope:
    """round(x / scale) + zero_point, half to even, saturated"""
    to = operands[2].dtype

    def body(_: Values, x: Scalar, scale: Scalar, zero_point: Scalar) -> Scalar:
        return _saturated(add(call("round", call("div", x, scale)), call("to_float32", zero_point)), to)

    return _pointwise(body)(operands, {})


def _dequantize(_: Values, x: Scalar, scale: Scalar, zero_point: Scalar) -> Scalar:
    """(x - zero_point) * scale, the difference in int32"""
    return multiply(call("to_float32", call("sub", call("to_int32", x), call("to_int32", zero_point))), scale)


def _quantized(dtypes: Sequence[str]) -> str:
    if dtypes[1] != "float32" or dtypes[2] not in BYTES:
        refuse(f"the scale must be float32 and the zero point {' or '.join(sorted(BYTES))}, got {', '.join(dtypes[1:])}")
    return dtypes[2]


def _dequantized(dtypes: Sequence[str]) -> str:
    if dtypes[1] != "float32" or dtypes[2] != dtypes[0]:
        refuse(f"the scale must be float32 and the zero point {dtypes[0]}, got {', '.join(dtypes[1:])}")
    return "float32"


def _alone(random: Random, to: str) -> Sample:
    return (draw_shape(random),), {"to": to}


def _scaled(random: Random) -> Sample:
    shape = draw_shape(random)
    return (shape, draw_broadcastable(random, shape), draw_broadcastable(random, shape)), {}


_FLOAT32 = frozenset({"float32"})
QUANTISATION: tuple[OpSpec, ...] = (
    OpSpec(
        "Cast", 1, "elementwise", _cast_shape, _pointwise(lambda a, x: call(f"to_{a['to']}", x)), lambda random: _alone(random, "float32"),
        attributes=("to",), dtypes=INTEGERS, admits=_admits_cast, sample_dtypes=("int64",),
        notes="integers to float32, and those that int32 holds to int32",
    ),
    OpSpec(
        "Truncate", 1, "elementwise", _truncate_shape, _pointwise(_truncated), lambda random: _alone(random, random.choice(WHOLE)),
        attributes=("to",), dtypes=_FLOAT32, notes="ONNX's Cast of numbers to integers; what these do not hold may become anything",
    ),
    OpSpec(
        "Saturate", 1, "elementwise", _saturate_shape, _pointwise(lambda a, x: _saturated(call("round", x), a["to"])),
        lambda random: _alone(random, random.choice(tuple(LIMITS))), attributes=("to",), dtypes=_FLOAT32,
        notes="the nearest byte, of two the even one",
    ),
    OpSpec(
        "Quantize", 3, "elementwise", _scaled_shape, _quantize, _scaled, dtype=_quantized, dtypes=_FLOAT32,
        sample_dtypes=("float32", "float32", "uint8"),
        notes="scale and zero point broadcast to x, and the result is of the zero point's type; ONNX's QuantizeLinear",
    ),
    OpSpec(
        "Dequantize", 3, "elementwise", _scaled_shape, _pointwise(_dequantize), _scaled, dtype=_dequantized, dtypes=BYTES | {"int32"},
        sample_dtypes=("int8", "float32", "int8"), notes="scale and zero point broadcast to x; ONNX's DequantizeLinear",
    ),
)  # fmt: skip
