"""Normalisations: softmax, batch, layer, group and instance normalisation, and related operators."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.tensor import Node


def _softmax(call: Call) -> Node:
    """Softmax over one axis; before opset 13 over all axes from that axis on, merged into one"""
    shape, name = call.shape(0), call.node.op_type
    axis = axis_of(int(call.attribute("axis", -1 if call.opset >= 13 else 1)), len(shape))
    if call.opset >= 13 or axis == len(shape) - 1:
        return call.apply(name, call[0], axis=axis)
    flat = call.reshape(call[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))
    return call.reshape(call.apply(name, flat, axis=1), shape)


def _batch_normalization(call: Call) -> list[Node | None]:
    """x s + b with s = scale / sqrt(var + epsilon), b = bias - mean s; in training mode, with the mean and variance of x"""
    if call.uses_more_than_first():
        raise NotCore("the statistics are used")
    if not int(call.attribute("spatial", 1)):
        raise NotCore("statistics of every position")
    epsilon = float(call.attribute("epsilon", 1e-5))
    if int(call.attribute("training_mode", 0)):
        return [_by_its_statistics(call, epsilon)] + [None] * (len(call.node.output) - 1)
    rank, channels = len(call.shape(0)), call.shape(1)[0]
    column = (1, channels, *[1] * (rank - 2)) if rank > 1 else (channels,)
    values = [call.data(k) for k in range(1, 5)]
    if all(v is not None for v in values):
        scale, bias, mean, variance = (np.asarray(v, dtype=np.float64) for v in values)
        with np.errstate(all="ignore"):  # a variance below -epsilon gives NaN, as in onnxruntime
            factor = scale / np.sqrt(variance + epsilon)
            shift = bias - mean * factor
        multiplier, offset = call.like(factor.reshape(column)), call.like(shift.reshape(column))
    else:
        deviation = call.apply("Sqrt", call.apply("Add", call[4], call.like(epsilon)))
        quotient = call.apply("Div", call[1], deviation)
        multiplier = call.reshape(quotient, column)
        offset = call.reshape(call.apply("Sub", call[2], call.apply("Mul", call[3], quotient)), column)
    result = call.apply("Add", call.apply("Mul", call[0], multiplier), offset)
    return [result] + [None] * (len(call.node.output) - 1)


def _by_its_statistics(call: Call, epsilon: float) -> Node:
    """Instance normalisation of all samples together: the batch becomes an axis within each channel"""
    batch, channels, *sizes = call.shape(0)
    one = call.apply("Transpose", call.reshape(call[0], (batch, channels, math.prod(sizes))), perm=(1, 0, 2))
    grouped = call.reshape(one, (1, channels, batch * math.prod(sizes)))
    normalized = call.apply("InstanceNormalization", grouped, call[1], call[2], epsilon=epsilon)
    apart = call.reshape(normalized, (channels, batch, math.prod(sizes)))
    return call.reshape(call.apply("Transpose", apart, perm=(1, 0, 2)), (batch, channels, *sizes))


def _layer_normalization(call: Call) -> list[Node | None]:
    if call.uses_more_than_first() or int(call.attribute("stash_type", 1)) != 1:
        raise NotCore("the statistics are used")
    shape = call.shape(0)
    axis = axis_of(int(call.attribute("axis", -1)), len(shape))
    bias = call[2] if call.has(2) else call.like(np.zeros(shape[axis:]))
    result = call.apply("LayerNormalization", call[0], call[1], bias, axis=axis, epsilon=float(call.attribute("epsilon", 1e-5)))
    return [result] + [None] * (len(call.node.output) - 1)


def _instance_normalization(call: Call) -> Node:
    return call.apply("InstanceNormalization", call[0], call[1], call[2], epsilon=float(call.attribute("epsilon", 1e-5)))


def _group_normalization(call: Call) -> Node:
    """Instance normalisation of every group as one channel, then scale and bias per channel (per group before opset 21)"""
    shape, groups = call.shape(0), int(call.required("num_groups"))
    if int(call.attribute("stash_type", 1)) != 1 or shape[1] % groups:
        raise NotCore("groups do not divide the channels")
    grouped = call.reshape(call[0], (shape[0], groups, math.prod(shape[1:]) // groups))
    plain = call.apply("InstanceNormalization", grouped, call.like(np.ones(groups)), call.like(np.zeros(groups)),
                       epsilon=float(call.attribute("epsilon", 1e-5)))
    result = call.reshape(plain, shape)
    unit = [1] * (len(shape) - 2)
    parts = []
    for k in (1, 2):
        part = call[k]
        if call.opset < 21:
            per_group = call.apply("Expand", call.reshape(part, (groups, 1)), shape=(groups, shape[1] // groups))
            part = call.reshape(per_group, (shape[1],))
        parts.append(call.reshape(part, (1, shape[1], *unit)))
    return call.apply("Add", call.apply("Mul", result, parts[0]), parts[1])


def _rms_normalization(call: Call) -> Node:
    if int(call.attribute("stash_type", 1)) != 1:
        raise NotCore("another precision")
    return root_mean_square_normalized(call, call[0], call[1], int(call.attribute("axis", -1)), float(call.attribute("epsilon", 1e-5)))


def root_mean_square_normalized(call: Call, x: Node, scale: Node, axis: int, epsilon: float) -> Node:
    """x / sqrt(mean x^2 + epsilon) * scale, with means over ``axis`` and all axes after it"""
    axes = tuple(range(axis_of(axis, x.type.rank), x.type.rank))
    mean = call.apply("ReduceMean", call.apply("Mul", x, x), axes=axes)
    deviation = call.apply("Sqrt", call.apply("Add", mean, call.like(epsilon)))
    return call.apply("Mul", call.apply("Div", x, deviation), scale)


def _mean_variance(call: Call) -> Node:
    """(x - mean) / (sqrt(mean (x - mean)^2) + 1e-9)"""
    shape = call.shape(0)
    axes = tuple(sorted({axis_of(int(a), len(shape)) for a in call.attribute("axes", [0, 2, 3])}))
    centered = call.apply("Sub", call[0], call.apply("ReduceMean", call[0], axes=axes))
    variance = call.apply("ReduceMean", call.apply("Mul", centered, centered), axes=axes)
    return call.apply("Div", centered, call.apply("Add", call.apply("Sqrt", variance), call.like(1e-9)))


def _lp_normalization(call: Call) -> Node:
    """x / norm of x along an axis, 0 if the norm is 0"""
    axis, order = axis_of(int(call.attribute("axis", -1)), len(call.shape(0))), int(call.attribute("p", 2))
    if order not in (1, 2):
        raise NotCore(f"the norm {order}")
    powers = call.apply("Abs", call[0]) if order == 1 else call.apply("Mul", call[0], call[0])
    total = call.apply("ReduceSum", powers, axes=(axis,))
    norm = total if order == 1 else call.apply("Sqrt", total)
    return call.apply("Where", call.apply("Equal", norm, call.like(0)), call.like(0), call.apply("Div", call[0], norm))


HANDLERS: Mapping[str, Handler] = {
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "InstanceNormalization": _instance_normalization,
    "GroupNormalization": _group_normalization,
    "RMSNormalization": _rms_normalization,
    "MeanVarianceNormalization": _mean_variance,
    "LpNormalization": _lp_normalization,
}
