"""Operators that scale by statistics of whole axes: Softmax, LogSoftmax, LayerNormalization, InstanceNormalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from egraph.tensor.expr.index import Index
from egraph.tensor.expr.scope import Reduction, Scalar, Scope, Tensor, number
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import same_dtype
from egraph.tensor.ops.reduction import reduce_axes
from egraph.tensor.ops.sampling import SIZES, Sample, draw_broadcastable, draw_shape
from egraph.tensor.ops.scopes import add, as_number, multiply, pointwise, read, read_broadcast
from egraph.tensor.ops.sizes import axis_of, broadcasts_to, product, rank_between, refuse, same
from egraph.tensor.ops.spec import OpSpec, Shape, Values


def _softmax_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    axis_of(a["axis"], shapes[0])
    return shapes[0]


def _shifted(data: Tensor, axis: int, prefix: str) -> Scope:
    """x - max(x) along the axis, so that no exponential overflows"""
    largest = reduce_axes(data, (axis,), Reduction.MAX, f"{prefix}m")
    return pointwise(prefix, data.shape, lambda i: call("sub", read(data, i), read_broadcast(largest, i)))


def _softmax_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    """exp(x - max) / sum exp(x - max)"""
    shifted = _shifted(operands[0], a["axis"], "d")
    powers = pointwise("e", shifted.shape, lambda i: call("exp", read(shifted, i)))
    total = reduce_axes(powers, (a["axis"],), Reduction.SUM, "t")
    return pointwise("i", powers.shape, lambda i: call("div", read(powers, i), read_broadcast(total, i)))


def _log_softmax_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    """x - max - log sum exp(x - max)"""
    shifted = _shifted(operands[0], a["axis"], "d")
    total = reduce_axes(shifted, (a["axis"],), Reduction.SUM, "t", lambda x: call("exp", x))
    return pointwise("i", shifted.shape, lambda i: call("sub", read(shifted, i), call("log", read_broadcast(total, i))))


def _softmax_sample(random: Random) -> Sample:
    shape = draw_shape(random)
    return (shape,), {"axis": random.randrange(len(shape))}


def _normalized(data: Tensor, axes: Sequence[int], epsilon: float) -> Scope:
    """(x - mean) / sqrt(variance + epsilon) over the axes"""
    count = as_number(product([data.shape[axis] for axis in axes]))
    total = reduce_axes(data, axes, Reduction.SUM, "m")
    centered = pointwise("d", data.shape, lambda i: call("sub", read(data, i), call("div", read_broadcast(total, i), count)))
    squares = reduce_axes(centered, axes, Reduction.SUM, "v", lambda x: multiply(x, x))

    def body(i: tuple[Index, ...]) -> Scalar:
        variance = call("div", read_broadcast(squares, i), count)
        return call("div", read(centered, i), call("sqrt", add(variance, number(epsilon))))

    return pointwise("n", data.shape, body)


def _epsilon(a: Values) -> None:
    if not a["epsilon"] >= 0:
        refuse(f"epsilon must not be negative, got {a['epsilon']}")


def _layer_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    data, scale, bias = shapes
    axis = axis_of(a["axis"], data)
    _epsilon(a)
    broadcasts_to(scale, data[axis:], "scale")
    broadcasts_to(bias, data[axis:], "bias")
    return data


def _layer_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, scale, bias = operands
    normal = _normalized(data, range(a["axis"], len(data.shape)), a["epsilon"])
    return pointwise("i", data.shape, lambda i: add(multiply(read(normal, i), read_broadcast(scale, i)), read_broadcast(bias, i)))


def _layer_sample(random: Random) -> Sample:
    shape = draw_shape(random)
    axis = random.randrange(len(shape))
    scale = shape[axis:]
    bias = random.choice((scale, draw_broadcastable(random, scale)))
    return (shape, scale, bias or (1,)), {"axis": axis, "epsilon": random.choice((1e-5, 1e-3, 0.5))}


def _instance_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    data, scale, bias = shapes
    rank_between(data, 3, 8, "operand 0")
    _epsilon(a)
    for name, shape in (("scale", scale), ("bias", bias)):
        rank_between(shape, 1, 1, name)
        same(shape[0], data[1], f"{name} must hold one number a channel")
    return data


def _instance_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, scale, bias = operands
    normal = _normalized(data, range(2, len(data.shape)), a["epsilon"])
    return pointwise("i", data.shape, lambda i: add(multiply(read(normal, i), read(scale, i[1:2])), read(bias, i[1:2])))


def _instance_sample(random: Random) -> Sample:
    shape = (random.choice((1, 2)), random.choice(SIZES), *draw_shape(random, 1, 3))
    return (shape, (shape[1],), (shape[1],)), {"epsilon": random.choice((1e-3, 0.125, 0.5))}


NORMALIZATION: tuple[OpSpec, ...] = (
    OpSpec(
        "Softmax", 1, "normalization", _softmax_shape, _softmax_meaning, _softmax_sample, attributes=("axis",),
        flops=lambda shapes, _: 5 * math.prod(shapes[0]), notes="one axis, as from opset 13",
    ),
    OpSpec(
        "LogSoftmax", 1, "normalization", _softmax_shape, _log_softmax_meaning, _softmax_sample, attributes=("axis",),
        flops=lambda shapes, _: 5 * math.prod(shapes[0]), notes="one axis, as from opset 13",
    ),
    OpSpec(
        "LayerNormalization", 3, "normalization", _layer_shape, _layer_meaning, _layer_sample, attributes=("axis", "epsilon"),
        dtype=same_dtype, flops=lambda shapes, _: 8 * math.prod(shapes[0]),
        notes="over axes axis..; scale and bias broadcast to them",
    ),
    OpSpec(
        "InstanceNormalization", 3, "normalization", _instance_shape, _instance_meaning, _instance_sample, attributes=("epsilon",),
        dtype=same_dtype, flops=lambda shapes, _: 8 * math.prod(shapes[0]), onnx=("InstanceNormalization",),
    ),
)  # fmt: skip
