"""Quantised models: products of dequantised numbers as products of bytes, and bytes moved in place of numbers.

An equation here is one over the reals, as everywhere: ``dequantize`` is exact, and ``quantize`` rounds alike on both sides.
Guards come in the order in which the operands stand, ranks before numbers: what is refused by the first operands is refused once.
"""

from __future__ import annotations

import math

from egraph.rule import Attributes, Equation, Rounding, Rule, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import (
    cast,
    concat,
    conv,
    dequantize,
    gather,
    max_pool,
    pad,
    quantize,
    reduce_sum,
    relu,
    saturate,
    transpose,
)
from egraph.rules.axes import along, channel_axis
from egraph.rules.family import named, snake
from egraph.rules.matmul import row_vector

MOST_PRODUCTS = (2**31 - 1) // (255 * 255)
"""Products of two bytes that surely add up to an int32."""


def _require_positive(s: Weight) -> None:
    require(s.number is not None and 0 < s.number < math.inf, "the scale must be one known positive number")


def _require_numbers(s: Tensor, z: Tensor) -> None:
    require(s.rank == 0 and z.rank == 0, "scale and zero point must be one number without axes")


# Sums of int32 that become numbers


@rule(rounding="assumes finite")
def number_of_sum(x: Tensor, c: Weight) -> Equation:
    """number(x + c) = number(x) + number(c)"""
    return cast(x + c, to="float32") == cast(x, to="float32") + cast(c, to="float32")


@rule(rounding="assumes finite")
def number_of_difference(x: Tensor, y: Tensor) -> Equation:
    """number(x - y) = number(x) - number(y)"""
    return cast(x - y, to="float32") == cast(x, to="float32") - cast(y, to="float32")


# Integer products


def _scaled(total: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """Return number(total - zero) * scale as one product and one sum: what does not depend on the total is computed once."""
    scaled = cast(total, to="float32") * scale
    return scaled if zero is None else scaled + -(cast(zero, to="float32") * scale)


@rule(rounding="assumes finite")
def matmul_of_dequantized(x: Tensor, s: Tensor, z: Weight, w: Weight, t: Weight, y: Weight) -> Steps:
    """dequantize(x, s, z) dequantize(w, t, 0) = number(x w) * (s * t) - number(z * sum w) * (s * t)"""
    yield dequantize(x, s, z) @ dequantize(w, t, y)
    _require_numbers(s, z)
    require(x.rank >= 2 and w.rank == 2, "the weight must be a matrix")
    require_number(y, 0.0)
    require(w.shape[0] <= MOST_PRODUCTS, "the sums must fit into int32")
    yield _matmul_scaled(x, z, w, s * row_vector(t, w.rank, w.shape[1]))


def _matmul_scaled(x: Tensor, z: Weight, w: Tensor, scale: Tensor) -> Tensor:
    """Return number(x w) * scale - number(z * sum w) * scale."""
    zero = None if z.number is not None and z.number == 0 else cast(z, to="int32") * reduce_sum(cast(w, to="int32"), axes=(0,))
    return _scaled(x @ w, scale, zero)


@rule(rounding="assumes finite")
def matmul_of_transposed_dequantized(x: Tensor, s: Tensor, z: Weight, w: Weight, t: Weight, y: Weight, a: Attributes) -> Steps:
    """dequantize(x, s, z) dequantize(w, t, 0)^T = number(x w^T) * (s * t) - number(z * sum w^T) * (s * t)"""
    yield dequantize(x, s, z) @ transpose(dequantize(w, t, y), a)
    _require_numbers(s, z)
    require(x.rank >= 2, "rows must be multiplied")
    require(w.rank == 2 and y.rank == 0, "the weight must be a matrix, and its zero point have no axes")
    require(a.perm == (1, 0), "the weight must be transposed")
    require_number(y, 0.0)
    require(t.rank == 0 or (t.rank == 2 and t.shape[1] == 1), "the scale must be one number, or vary along the rows alone")
    require(w.shape[1] <= MOST_PRODUCTS, "the sums must fit into int32")
    yield _matmul_scaled(x, z, transpose(w, a), s * (t if t.rank == 0 else t.reshape(t.shape[0])))


@rule(rounding="assumes finite")
def matmul_of_two_dequantized(x: Tensor, s: Tensor, z: Tensor, w: Tensor, t: Tensor, y: Weight) -> Steps:
    """dequantize(x, s, z) dequantize(w, t, y) = dequantize(x w, s * t, z * sum w + y * sum (x - z))"""
    yield dequantize(x, s, z) @ dequantize(w, t, y)
    _require_numbers(s, z)
    require(x.rank >= 2 and w.rank >= 2, "the operands must be matrices")
    _require_numbers(t, y)
    require(w.shape[-2] <= MOST_PRODUCTS, "the sums must fit into int32")
    require(y.number is None or -math.inf < y.number < math.inf, "the zero point must be a number")
    zero = cast(z, to="int32") * reduce_sum(cast(w, to="int32"), axes=(w.rank - 2,))
    if y.number is None or y.number != 0:
        shifted = cast(x, to="int32") - cast(z, to="int32")
        zero = zero + cast(y, to="int32") * reduce_sum(shifted, axes=(x.rank - 1,))
    yield dequantize(x @ w, s * t, zero)


def _conv_scale(s: Tensor, t: Tensor, w: Tensor, a: Attributes, rank: int) -> Tensor:
    """Return s * t along the output channels."""
    if t.rank == 0:
        return s * t
    require(t.rank == w.rank, "the scale must have no axes or all")
    require(all(size == 1 for size in t.shape[1:]), "the scale must vary along the output channels alone")
    return s * along(t.reshape(t.shape[0]), channel_axis(a, rank), rank)


def _conv_zero(z: Tensor, w: Tensor, a: Attributes, rank: int) -> Tensor:
    """Return z * sum w along the output channels."""
    sums = reduce_sum(cast(w, to="int32"), axes=tuple(range(1, w.rank))).reshape(w.shape[0])
    return cast(z, to="int32") * along(sums, channel_axis(a, rank), rank)


def _require_int32(w: Tensor) -> None:
    require(w.type.elements // w.shape[0] <= MOST_PRODUCTS, "the sums must fit into int32")


@rule(rounding="assumes finite")
def conv_of_dequantized(x: Tensor, s: Tensor, z: Weight, w: Weight, t: Weight, y: Weight, a: Attributes) -> Steps:
    """conv(dequantize(x, s, z), dequantize(w, t, 0)) = number(conv(x, w)) * (s * t) - number(z * sum w) * (s * t)"""
    yield conv(dequantize(x, s, z), dequantize(w, t, y), a)
    _require_numbers(s, z)
    require_number(y, 0.0)
    is_around_zero = z.number is not None and z.number == 0
    require(is_around_zero or not any(a.pads), "nothing must be padded where the zero point is not 0")
    _require_int32(w)
    yield _scaled(conv(x, w, a), _conv_scale(s, t, w, a, x.rank), None if is_around_zero else _conv_zero(z, w, a, x.rank))


@rule(rounding="assumes finite")
def padded_conv_of_dequantized(x: Tensor, s: Weight, z: Weight, w: Weight, t: Weight, y: Weight, a: Attributes) -> Steps:
    """conv(dequantize(x, s, z), dequantize(w, t, 0)) = number(conv(pad(x, z), w)) * (s * t) - number(z * sum w) * (s * t)"""
    yield conv(dequantize(x, s, z), dequantize(w, t, y), a)
    _require_numbers(s, z)
    require_number(y, 0.0)
    require(z.number is not None and z.number != 0, "the zero point must be one known number, and not zero")
    finite = all(c.number is None or -math.inf < c.number < math.inf for c in (s, t))
    require(finite, "the scales must be finite: padding would be no number")
    require(any(a.pads), "something must be padded")
    _require_int32(w)
    n = x.rank - 2
    before, after = a.pads[:n], a.pads[n:]
    if a.layout == "NCHW":
        padded = pad(x, before=(0, 0, *before), after=(0, 0, *after), mode="constant", value=z.number or 0.0)
    else:
        padded = pad(x, before=(0, *before, 0), after=(0, *after, 0), mode="constant", value=z.number or 0.0)
    unpadded = a.but(pads=(0,) * (2 * n))
    yield _scaled(conv(padded, w, unpadded), _conv_scale(s, t, w, a, x.rank), _conv_zero(z, w, a, x.rank))


# Sums that become bytes again


FINITE: Rounding = "assumes finite"


def _requantized(to: str) -> Rule:
    def law(x: Tensor, s: Weight, u: Weight, v: Weight) -> Steps:
        yield quantize(cast(x, to="float32") * s, u, v)
        _require_numbers(u, v)
        require_number(v, 0.0)
        _require_positive(u)
        yield saturate(cast(x, to="float32") * (s / u), to=to)

    return named(law, f"requantized_to_{to}", f"quantize(number(x) * s, u, 0) = saturate(number(x) * (s / u)),  to {to}", rounding=FINITE)


def _requantized_with_shift(to: str) -> Rule:
    def law(x: Tensor, s: Weight, c: Weight, u: Weight, v: Weight) -> Steps:
        yield quantize(cast(x, to="float32") * s + c, u, v)
        _require_numbers(u, v)
        require_number(v, 0.0)
        _require_positive(u)
        yield saturate(cast(x, to="float32") * (s / u) + c / u, to=to)

    equation = f"quantize(number(x) * s + c, u, 0) = saturate(number(x) * (s / u) + c / u),  to {to}"
    return named(law, f"requantized_to_{to}_with_shift", equation, rounding=FINITE)


@rule(rounding="assumes finite")
def requantized_by_one(x: Tensor, s: Weight, u: Weight, v: Weight) -> Steps:
    """quantize(number(x) * s, u, v) = quantize(number(x) * (s / u), 1, v)"""
    yield quantize(cast(x, to="float32") * s, u, v)
    _require_numbers(u, v)
    require(v.number is None or v.number != 0, "without a zero point there is nothing left but to saturate")
    _require_positive(u)
    yield quantize(cast(x, to="float32") * (s / u), u / u, v)


@rule(rounding="assumes finite")
def requantized_by_one_with_shift(x: Tensor, s: Weight, c: Weight, u: Weight, v: Weight) -> Steps:
    """quantize(number(x) * s + c, u, v) = quantize(number(x) * (s / u) + c / u, 1, v)"""
    yield quantize(cast(x, to="float32") * s + c, u, v)
    _require_numbers(u, v)
    require(v.number is None or v.number != 0, "without a zero point there is nothing left but to saturate")
    _require_positive(u)
    yield quantize(cast(x, to="float32") * (s / u) + c / u, u / u, v)


# Rectifiers that saturation makes superfluous


@rule
def saturate_relu(x: Tensor) -> Equation:
    """saturate(relu(x)) = saturate(x),  unsigned"""
    return saturate(relu(x), to="uint8") == saturate(x, to="uint8")


@rule
def quantize_relu(x: Tensor, s: Weight, z: Weight) -> Steps:
    """quantize(relu(x), s, z) = quantize(x, s, z),  z the least byte, s > 0"""
    yield quantize(relu(x), s, z)
    require(z.type.dtype == "uint8" or z.type.dtype == "int8", "the zero point must be a byte")
    require_number(z, 0.0 if z.type.dtype == "uint8" else -128.0)
    _require_positive(s)
    yield quantize(x, s, z)


# Bytes moved in place of numbers


def _moved_dequantized(op: str) -> Rule:
    def law(x: Tensor, s: Tensor, z: Tensor, a: Attributes) -> Steps:
        yield operation(op, dequantize(x, s, z), by=a)
        _require_numbers(s, z)
        yield dequantize(operation(op, x, by=a), s, z)

    return named(law, f"{snake(op)}_of_dequantized", f"{op}(dequantize(x, s, z)) = dequantize({op}(x), s, z),  s and z one number each")


def _moved_out(op: str) -> Rule:
    def law(x: Tensor, s: Tensor, z: Tensor, a: Attributes) -> Steps:
        yield dequantize(operation(op, x, by=a), s, z)
        _require_numbers(s, z)
        yield operation(op, dequantize(x, s, z), by=a)

    return named(law, f"{snake(op)}_out_of_dequantize", f"dequantize({op}(x), s, z) = {op}(dequantize(x, s, z)),  s and z one number each")


def _moved_quantized(op: str) -> Rule:
    def law(x: Tensor, s: Tensor, z: Tensor, a: Attributes) -> Steps:
        yield quantize(operation(op, x, by=a), s, z)
        _require_numbers(s, z)
        yield operation(op, quantize(x, s, z), by=a)

    return named(law, f"{snake(op)}_before_quantize", f"quantize({op}(x), s, z) = {op}(quantize(x, s, z)),  s and z one number each")


@rule
def gather_of_dequantized(x: Tensor, s: Tensor, z: Tensor, i: Tensor, a: Attributes) -> Steps:
    """gather(dequantize(x, s, z), i) = dequantize(gather(x, i), s, z),  s and z one number each"""
    yield gather(dequantize(x, s, z), i, a)
    _require_numbers(s, z)
    yield dequantize(gather(x, i, a), s, z)


@rule
def concat_of_dequantized(x: Tensor, y: Tensor, s: Tensor, z: Tensor, a: Attributes) -> Steps:
    """concat(dequantize(x, s, z), dequantize(y, s, z)) = dequantize(concat(x, y), s, z),  s and z one number each"""
    yield concat(dequantize(x, s, z), dequantize(y, s, z), a=a)
    _require_numbers(s, z)
    yield dequantize(concat(x, y, a=a), s, z)


@rule
def max_pool_of_dequantized(x: Tensor, s: Weight, z: Tensor, a: Attributes) -> Steps:
    """max_pool(dequantize(x, s, z)) = dequantize(max_pool(x), s, z),  s > 0 and z one number"""
    yield max_pool(dequantize(x, s, z), a)
    _require_numbers(s, z)
    _require_positive(s)
    yield dequantize(max_pool(x, a), s, z)


@rule
def concat_before_quantize(x: Tensor, y: Tensor, s: Tensor, z: Tensor, a: Attributes) -> Steps:
    """quantize(concat(x, y), s, z) = concat(quantize(x, s, z), quantize(y, s, z)),  s and z one number each"""
    yield quantize(concat(x, y, a=a), s, z)
    _require_numbers(s, z)
    yield concat(quantize(x, s, z), quantize(y, s, z), a=a)


@rule
def max_pool_before_quantize(x: Tensor, s: Weight, z: Tensor, a: Attributes) -> Steps:
    """quantize(max_pool(x), s, z) = max_pool(quantize(x, s, z)),  s > 0 and z one number"""
    yield quantize(max_pool(x, a), s, z)
    _require_numbers(s, z)
    _require_positive(s)
    yield max_pool(quantize(x, s, z), a)


RULES: tuple[Rule, ...] = (
    number_of_sum, number_of_difference, matmul_of_dequantized, matmul_of_transposed_dequantized, matmul_of_two_dequantized,
    conv_of_dequantized, padded_conv_of_dequantized, requantized_by_one, requantized_by_one_with_shift,
    *(family(to) for to in ("uint8", "int8") for family in (_requantized, _requantized_with_shift)), saturate_relu, quantize_relu,
    *(_moved_dequantized(op) for op in ("Reshape", "Transpose", "Slice")), *(_moved_quantized(op) for op in ("Reshape", "Transpose")),
    *(_moved_out(op) for op in ("Reshape", "Transpose")),
    gather_of_dequantized, concat_of_dequantized, concat_before_quantize, max_pool_of_dequantized, max_pool_before_quantize,
)
