"""Quantised operators of ONNX and of onnxruntime's quantiser, as integer products and roundings.

An integer product is computed of the bytes themselves. The contribution of the zero points is computed separately, in int32, where
everything is exact as long as the true sum fits. The float32 operations follow in onnxruntime's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from egraph.onnx.importer.blocks import dequantized_blocks
from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.infer import evaluate
from egraph.onnx.importer.state import Call, NotCore, axis_of
from egraph.onnx.importer.unsigned import SIGN
from egraph.onnx.importer.window import window_of
from egraph.onnx.types import dtype_name
from egraph.tensor import Node
from egraph.tensor.ops.dtypes import BYTES

MOST_PRODUCTS = (2**31 - 1) // (255 * 255)
"""The number of products of two bytes, without their zero points, whose sum always fits an int32."""


HALF_BYTES: Mapping[str, str] = {"int4": "int8", "uint4": "uint8"}
"""The byte types that hold weights of four bits, one weight per byte."""
COMBINE: Mapping[str, Callable[..., np.ndarray]] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}

# Scales and zero points


def _along(call: Call, node: Node, axis: int, rank: int) -> Node:
    """Return one number, or one per place along an axis, in a shape that broadcasts."""
    if node.type.elements == 1:
        return _shaped(call, node, ())
    if node.type.rank != 1:
        raise NotCore("scales or zero points stand in blocks")
    return _shaped(call, node, tuple(node.type.elements if k == axis else 1 for k in range(rank)))


def _shaped(call: Call, node: Node, shape: tuple[int, ...]) -> Node:
    """Return a node in another shape; a constant remains a constant, whose value is available."""
    data = call.state.data(node)
    return call.reshape(node, shape) if data is None else call.constant(data.reshape(shape), node.type.dtype)


def _scale(call: Call, index: int, axis: int, rank: int) -> Node:
    if call[index].type.dtype != "float32":
        raise NotCore("a scale is not float32")
    return _along(call, call[index], axis, rank)


def _zero_point(call: Call, index: int, axis: int, rank: int, dtype: str) -> Node:
    """Return the zero point as numbers of a type; 0 if it is absent."""
    data = call.data(index)
    if not call.has(index) or (data is not None and not data.any()):
        return call.constant(0, dtype)
    return _along(call, _as(call, call[index], dtype), axis, rank)


def _as(call: Call, node: Node, dtype: str) -> Node:
    """Return integers as numbers of another type; constants are converted at once."""
    data = call.state.data(node)
    if node.type.dtype == dtype:
        return node
    return call.apply("Cast", node, to=dtype) if data is None else call.constant(data, dtype)


def _is_zero(call: Call, node: Node) -> bool:
    data = call.state.data(node)
    return data is not None and not data.any()


def _combined(call: Call, op: str, left: Node, right: Node) -> Node:
    """Return a product, quotient, sum or difference of scales; it is computed at once, in float32, if both are known."""
    x, y = call.state.data(left), call.state.data(right)
    if x is None or y is None:
        return call.apply(op, left, right)
    return call.constant(COMBINE[op](x, y), "float32")


def _byte(dtype: str) -> str:
    if dtype not in BYTES:
        raise NotCore(f"quantised to {dtype}, not to bytes")
    return dtype


def _axis(call: Call) -> int:
    if int(call.attribute("block_size", 0)):
        raise NotCore("scales stand in blocks")
    per_axis = call.has(1) and call[1].type.elements > 1
    return axis_of(int(call.attribute("axis", 1)), len(call.shape(0))) if per_axis else 0


def _quantize_linear(call: Call) -> Node:
    output_dtype = int(call.attribute("output_dtype", 0))
    to = _byte(call[2].type.dtype if call.has(2) else dtype_name(output_dtype) if output_dtype else "uint8")
    axis, rank = _axis(call), len(call.shape(0))
    if call[0].type.dtype != "float32":
        raise NotCore("the numbers are not float32")
    return call.apply("Quantize", call[0], _scale(call, 1, axis, rank), _zero_point(call, 2, axis, rank, to))


def _dequantize_linear(call: Call) -> Node:
    if int(call.attribute("block_size", 0)):
        return dequantized_blocks(call)
    axis, rank = _axis(call), len(call.shape(0))
    if call[0].type.dtype == "int32" and call.has(2) and not _is_zero(call, call[2]):
        raise NotCore("an int32 with a zero point")
    dtype = HALF_BYTES.get(call[0].type.dtype, call[0].type.dtype)
    data = call.constant(call.known(0), dtype) if dtype != call[0].type.dtype else call[0]
    x, zero = _signed(call, data, _zero_point(call, 2, axis, rank, dtype))
    return call.apply("Dequantize", x, _scale(call, 1, axis, rank), zero)


def _dynamic_quantize_linear(call: Call) -> list[Node | None]:
    """Return the bytes with scale and zero point from the least and the largest number, with zero between them."""
    x = call[0]
    axes = tuple(range(len(call.shape(0))))
    zero = call.constant(0, "float32")
    high = call.apply("Max", _whole(call, "ReduceMax", x, axes), zero)
    low = call.apply("Min", _whole(call, "ReduceMin", x, axes), zero)
    step = call.apply("Div", call.apply("Sub", high, low), call.constant(255, "float32"))
    scale = call.apply("Where", call.apply("Equal", high, low), call.constant(1, "float32"), step)
    zero_point = call.apply("Quantize", call.apply("Neg", low), scale, call.constant(0, "uint8"))
    return [call.apply("Quantize", x, scale, zero_point), scale, zero_point]


def _whole(call: Call, op: str, x: Node, axes: tuple[int, ...]) -> Node:
    return call.reshape(call.apply(op, x, axes=axes), ()) if axes else x


# Integer products


def _reduced(call: Call, x: Node, axes: tuple[int, ...]) -> Node:
    """Return sums of bytes over axes, in int32."""
    data = call.state.data(x)
    if data is not None:
        return call.constant(data.astype(np.int32).sum(axis=axes, keepdims=True, dtype=np.int32), "int32")
    return call.apply("ReduceSum", _as(call, x, "int32"), axes=axes)


def _bounded(products: int) -> None:
    if products > MOST_PRODUCTS:
        raise NotCore(f"{products} products of bytes may exceed an int32")


def _bytes_of(call: Call, *indices: int) -> None:
    for index in indices:
        _byte(call[index].type.dtype)


def _minus(call: Call, total: Node, *factors: Node) -> Node:
    """Return total - factor * factor in int32, without factors that are zero."""
    if any(_is_zero(call, factor) for factor in factors):
        return total
    return call.apply("Sub", total, call.apply("Mul", *factors))


def _signed(call: Call, weights: Node, zero: Node) -> tuple[Node, Node]:
    """Return constant bytes as signed ones with their zero point, w - y = (w - 128) - (y - 128): libraries multiply by signed bytes."""
    data, offset = call.state.data(weights), call.state.data(zero)
    if data is None or offset is None or weights.type.dtype != "uint8":
        return weights, zero
    dtype = "int8" if zero.type.dtype == "uint8" else zero.type.dtype
    return call.constant(data.astype(np.int32) - SIGN, "int8"), call.constant(offset.astype(np.int32) - SIGN, dtype)


def _product(call: Call, left: Node, right: Node, left_zero: Node, right_zero: Node) -> Node:
    """sum (a - z) (b - y) = sum a b - z (sum b - K y) - y sum a"""
    right, right_zero = _signed(call, right, right_zero)
    rank_left, rank_right = left.type.rank, right.type.rank
    if min(rank_left, rank_right) < 2:
        raise NotCore("an operand is a vector")
    count = left.type.sizes[-1]
    _bounded(count)
    total = call.apply("MatMul", left, right)
    sums = _reduced(call, right, (rank_right - 2,)) if not _is_zero(call, left_zero) else right_zero
    if not _is_zero(call, left_zero) and not _is_zero(call, right_zero):
        sums = call.apply("Sub", sums, call.apply("Mul", right_zero, call.constant(count, "int32")))
    total = _minus(call, total, left_zero, sums)
    return total if _is_zero(call, right_zero) else _minus(call, total, right_zero, _reduced(call, left, (rank_left - 1,)))


def _row_and_column(call: Call, left: int, left_zero: int, right_zero: int) -> tuple[Node, Node]:
    """Return the zero points of both operands of a product: one number, one per row on the left, one per column on the right."""
    rows = call[left].type.rank
    zeros = [call.constant(0, "int32") if not call.has(index) else _as(call, call[index], "int32") for index in (left_zero, right_zero)]
    if zeros[0].type.elements > 1:
        shape = zeros[0].type.sizes
        if len(shape) != 1:
            raise NotCore("zero points of every matrix of a batch")
        zeros[0] = _shaped(call, zeros[0], (*shape, 1))
    elif rows:
        zeros[0] = _shaped(call, zeros[0], ())
    if zeros[1].type.elements > 1 and zeros[1].type.rank != 1:
        raise NotCore("zero points of every matrix of a batch")
    return zeros[0], zeros[1] if zeros[1].type.elements > 1 else _shaped(call, zeros[1], ())


def _matmul_integer(call: Call) -> Node:
    _bytes_of(call, 0, 1)
    return _product(call, call[0], call[1], *_row_and_column(call, 0, 2, 3))


def _convolution(call: Call, data: int, weight: int, data_zero: int, weight_zero: int) -> Node:
    """sum (x - z) (w - y) over the taps inside the data = sum x w - z sum w - y sum (x - z)"""
    _bytes_of(call, data, weight)
    x, w = call[data], call[weight]
    rank, group = w.type.rank, int(call.attribute("group", 1))
    kernel = w.type.sizes[2:]
    window = window_of(call, kernel, x.type.sizes[2:])
    _bounded(math.prod(w.type.sizes[1:]))
    z = _zero_point(call, data_zero, 0, rank, "int32")
    y = _zero_point(call, weight_zero, 1, rank, "int32")
    signed, offset = _signed(call, w, y)
    if group == 1 or _is_zero(call, offset):
        w, y = signed, offset
    pads = window.pads
    known = call.state.data(z)
    if any(pads) and known is not None and known.any():  # padding is the zero point
        half = len(pads) // 2
        x = call.apply("Pad", x, before=(0, 0, *pads[:half]), after=(0, 0, *pads[half:]), mode="constant", value=float(known))
        pads = (0,) * len(pads)

    def convolved(values: Node, by: Node) -> Node:
        return call.apply("Conv", values, by, strides=window.strides, pads=pads, dilations=window.dilations, group=group, layout="NCHW")

    def ones(shape: Sequence[int]) -> Node:
        return call.constant(np.ones(shape), "int8")

    total = convolved(x, w)
    if not _is_zero(call, z):
        taps = _reduced(call, w, tuple(range(1, rank)))
        weights = convolved(ones(x.type.sizes), w) if any(pads) else _shaped(call, taps, (1, taps.type.sizes[0], *[1] * (rank - 2)))
        total = _minus(call, total, z, weights)
    if not _is_zero(call, y):
        if group != 1:
            raise NotCore("a zero point of the weights of a convolution in groups")
        window_ones = ones((1, *w.type.sizes[1:]))
        sums = convolved(x, window_ones)
        if not _is_zero(call, z):
            sums = _minus(call, sums, z, convolved(ones((1, *x.type.sizes[1:])), window_ones))
        total = _minus(call, total, y, sums)
    return total


def _conv_integer(call: Call) -> Node:
    return _convolution(call, 0, 1, 2, 3)


def _requantized(call: Call, total: Node, scale: Node, zero_point: Node, to: str) -> Node:
    """saturate(round(total * scale) + zero_point)"""
    scaled = call.apply("Mul", _as(call, total, "float32"), scale)
    if _is_zero(call, zero_point):
        return call.apply("Saturate", scaled, to=to)
    return call.apply("Saturate", call.apply("Add", call.apply("Round", scaled), zero_point), to=to)


def _result_type(call: Call, zero_point: int) -> str:
    return _byte(call[zero_point].type.dtype)


def _ql_matmul(call: Call) -> Node:
    _bytes_of(call, 0, 3)
    zeros = _row_and_column(call, 0, 2, 5)
    total = _product(call, call[0], call[3], *zeros)
    rank = total.type.rank
    left = _scale(call, 1, rank - 2, rank)
    scale = _combined(call, "Div", _combined(call, "Mul", left, _scale(call, 4, rank - 1, rank)), _scale(call, 6, 0, 0))
    return _requantized(call, total, scale, _zero_point(call, 7, 0, 0, "float32"), _result_type(call, 7))


def _ql_conv(call: Call) -> Node:
    rank = len(call.shape(0))
    total = _convolution(call, 0, 3, 2, 5)
    if call.has(8):
        total = call.apply("Add", total, call.reshape(call[8], (1, call.shape(8)[0], *[1] * (rank - 2))))
    scale = _combined(call, "Div", _combined(call, "Mul", _scale(call, 1, 0, 0), _scale(call, 4, 1, rank)), _scale(call, 6, 0, 0))
    return _requantized(call, total, scale, _zero_point(call, 7, 0, 0, "float32"), _result_type(call, 7))


# Operators of onnxruntime's quantiser beside ONNX's own: float32 between a Dequantize and a Quantize


def _dequantized(call: Call, data: int) -> Node:
    """Return the numbers of (bytes, scale, zero point), starting at operand ``data``."""
    _bytes_of(call, data)
    return call.apply("Dequantize", call[data], _scale(call, data + 1, 0, 0), _zero_point(call, data + 2, 0, 0, call[data].type.dtype))


def _quantized_as(call: Call, x: Node, scale: int) -> Node:
    to = _byte(call[scale + 1].type.dtype)
    return call.apply("Quantize", x, _scale(call, scale, 0, 0), _zero_point(call, scale + 1, 0, 0, to))


def _ql_mul(call: Call) -> Node:
    """saturate((a - z) (b - y) (s t / u) + v): a product that is rounded before the zero point is added"""
    _bytes_of(call, 0, 3)
    scale = _combined(call, "Div", _combined(call, "Mul", _scale(call, 1, 0, 0), _scale(call, 4, 0, 0)), _scale(call, 6, 0, 0))
    numbers = [_centred(call, k) for k in (0, 3)]
    return _shifted(call, call.apply("Mul", call.apply("Mul", *numbers), scale), 7)


def _centred(call: Call, data: int) -> Node:
    """Return bytes minus their zero point, as float32."""
    zero = _zero_point(call, data + 2, 0, 0, "float32")
    number = _as(call, call[data], "float32")
    return number if _is_zero(call, zero) else call.apply("Sub", number, zero)


def _shifted(call: Call, scaled: Node, zero_point: int) -> Node:
    """Return saturate(x + zero point), by a sum that no compiler fuses with the product x."""
    zero = _zero_point(call, zero_point, 0, 0, "float32")
    if not _is_zero(call, zero):
        clipped = call.apply("Clip", scaled, min=-FAR, max=FAR)
        scaled = call.apply("Add", clipped, zero)
    return call.apply("Saturate", scaled, to=_result_type(call, zero_point))


FAR = 1024.0
"""Every number beyond this bound saturates, whatever the zero point is."""


def _ql_add(call: Call) -> Node:
    """saturate(a s/u + (b t/u + (v - (z s/u + y t/u)))): by fused multiply-adds, as in onnxruntime's addition of bytes"""
    _bytes_of(call, 0, 3)
    order = (3, 0) if _repeats_left(call.shape(0), call.shape(3)) else (0, 3)
    result = _scale(call, 6, 0, 0)
    ratios = [_combined(call, "Div", _scale(call, k + 1, 0, 0), result) for k in order]
    zeros = [_zero_point(call, k + 2, 0, 0, "float32") for k in order]
    shifts = [_combined(call, "Mul", ratio, zero) for ratio, zero in zip(ratios, zeros, strict=True)]
    fixed = _combined(call, "Sub", _zero_point(call, 7, 0, 0, "float32"), _combined(call, "Add", *shifts))
    left, right = (call.apply("Mul", _as(call, call[k], "float32"), ratio) for k, ratio in zip(order, ratios, strict=True))
    return call.apply("Saturate", call.apply("Add", left, call.apply("Add", right, fixed)), to=_result_type(call, 7))


def _repeats_left(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """Return whether one element of the left is added to a run of the right's elements: onnxruntime then adds right and left."""
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True)
    inner = [pair for pair in pairs if max(pair) > 1]
    return bool(inner) and inner[-1][0] == 1


def _ql_sigmoid(call: Call) -> Node:
    """table(x) of onnxruntime's result for each byte, because its approximation of the function decides how ties are rounded"""
    dtype = call[0].type.dtype
    _bytes_of(call, 0)
    if not call.has(4) or any(call.data(k) is None for k in range(1, 5)):
        return _by_function(call, lambda x: call.apply("Sigmoid", x))
    limits = np.iinfo(dtype)
    table = evaluate(call, {call.node.input[0]: call.constant(np.arange(limits.min, limits.max + 1), dtype)})
    if table is None:
        raise NotCore("a sigmoid that onnxruntime refuses")
    place = _as(call, call[0], "int32")
    place = call.apply("Sub", place, call.constant(limits.min, "int32")) if limits.min else place
    return call.apply("Gather", call.constant(table[0], table[0].dtype.name), place, axis=0)


def _ql_leaky_relu(call: Call) -> Node:
    """quantize(leaky_relu(dequantize(x)))"""
    alpha = float(np.float32(call.attribute("alpha", 0.01)))
    return _by_function(call, lambda x: call.apply("LeakyRelu", x, alpha=alpha))


def _by_function(call: Call, function: Callable[[Node], Node]) -> Node:
    if not call.has(4):
        raise NotCore("without a zero point of the result")
    return _quantized_as(call, function(_dequantized(call, 0)), 3)


def _global_average(call: Call) -> Node:
    """saturate(round(sum (x - z) * (s / (u count))) + v)"""
    _bytes_of(call, 0)
    if int(call.attribute("channels_last", 0)):
        raise NotCore("channels last")
    axes = tuple(range(2, len(call.shape(0))))
    count = math.prod(call.shape(0)[2:])
    _bounded(count)
    zero = _zero_point(call, 2, 0, 0, "int32")
    total = _minus(call, _reduced(call, call[0], axes), zero, call.constant(count, "int32"))
    share = _combined(call, "Mul", _scale(call, 3, 0, 0), call.constant(count, "float32"))
    scale = _combined(call, "Div", _scale(call, 1, 0, 0), share)
    return _requantized(call, total, scale, _zero_point(call, 4, 0, 0, "float32"), _result_type(call, 4))


def _ql_average(call: Call) -> Node:
    """saturate(mean (x - z) s / u + v)"""
    if int(call.attribute("channels_last", 0)) or int(call.attribute("ceil_mode", 0)):
        raise NotCore("channels last, or ceil_mode")
    if not call.has(4):
        raise NotCore("without a zero point of the result")
    window = window_of(call, call.attribute("kernel_shape", []), call.shape(0)[2:])
    mean = call.apply("AveragePool", _dequantized(call, 0), kernel_shape=window.kernel, strides=window.strides, pads=window.pads,
                      dilations=window.dilations, count_include_pad=int(call.attribute("count_include_pad", 0)), layout="NCHW")
    steps = call.apply("Div", mean, _scale(call, 3, 0, 0))
    return call.apply("Saturate", call.apply("Add", steps, _zero_point(call, 4, 0, 0, "float32")), to=_result_type(call, 4))


def _ql_softmax(call: Call) -> Node:
    """saturate(round(e(x) * floor(1 / u) / sum e(x)) + v), for whole numbers e(x) in a table, whose sum is below 2^28

    This sum is exact. onnxruntime adds in float32, one number after the other, so a quotient that is nearly a tie may be rounded
    differently.
    """
    _bytes_of(call, 0)
    if not call.has(4):
        raise NotCore("without a zero point of the result")
    axis = axis_of(int(call.attribute("axis", -1)), len(call.shape(0)))
    shape = call.shape(0)
    x = call[0]
    if int(call.attribute("opset", 13)) < 13:  # all axes from this one on
        x, axis = call.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:]))), 1
    steps = np.float32(1) / np.float32(call.known(3).reshape(()))
    if not 0 <= steps < MOST_STEPS:
        raise NotCore(f"a result of {steps} steps")
    table = _exponentials(float(np.float32(call.known(1).reshape(()))), x.type.sizes[axis])
    number = _as(call, x, "float32")
    lacking = call.apply("Sub", call.apply("ReduceMax", number, axes=(axis,)), number)
    exponentials = call.apply("Gather", call.constant(table, "int32"), call.apply("Truncate", lacking, to="int32"), axis=0)
    total = call.apply("Cast", call.apply("ReduceSum", exponentials, axes=(axis,)), to="float32")
    scaled = call.apply("Mul", call.apply("Cast", exponentials, to="float32"), call.constant(np.floor(steps), "float32"))
    rounded = call.apply("Round", call.apply("Div", scaled, total))
    result = call.apply("Saturate", call.apply("Add", rounded, _zero_point(call, 4, 0, 0, "float32")), to=_result_type(call, 4))
    return call.reshape(result, shape)


MOST_STEPS = 2.0**24
"""The number of steps of a softmax's result up to which the sum with a zero point is exact in float32."""


def _exponentials(scale: float, count: int) -> np.ndarray:
    """Return e^(-scale k) for every byte k as scaled whole numbers, of which ``count`` together stay below 2^32 / e^3."""
    if not 0 < scale < math.inf:
        raise NotCore(f"a scale of {scale}")
    room = max(0.0, math.log((2**32 - 1) // count) - 3.0) / scale
    return np.array([int(math.exp((float(255 - k) - 255.0 + room) * scale)) for k in range(256)], np.int64)


def _ql_concat(call: Call) -> Node:
    """Concat of (bytes, scale, zero point) each; the result's scale and zero point are the first operands"""
    if (len(call.operands) - 2) % 3:
        raise NotCore("operands do not come in threes")
    parts = [_dequantized(call, k) for k in range(2, len(call.operands), 3)]
    axis = axis_of(int(call.attribute("axis", 0)), parts[0].type.rank)
    return _quantized_as(call, call.apply("Concat", *parts, axis=axis), 0)


def _q_gemm(call: Call) -> Node:
    """alpha * scale * scale * (A' B' + C), quantised if a scale of the result is given"""
    _bytes_of(call, 0, 3)
    left = call.transpose(call[0], (1, 0)) if call.attribute("transA", 0) else call[0]
    right = call.transpose(call[3], (1, 0)) if call.attribute("transB", 0) else call[3]
    if float(call.attribute("alpha", 1.0)) != 1.0:
        raise NotCore("a factor of the product")
    left_zero, right_zero = _zero_point(call, 2, 0, 0, "int32"), _zero_point(call, 5, 1, 2, "int32")
    total = _product(call, left, right, left_zero, right_zero)
    total = call.apply("Add", total, call[6]) if call.has(6) else total
    scale = _combined(call, "Mul", _scale(call, 1, 0, 0), _scale(call, 4, 1, 2))
    if not call.has(7):
        return call.apply("Mul", _as(call, total, "float32"), scale)
    scale = _combined(call, "Div", scale, _scale(call, 7, 0, 0))
    return _requantized(call, total, scale, _zero_point(call, 8, 0, 0, "float32"), _result_type(call, 8))


def _matmul_integer_to_float(call: Call) -> Node:
    """(a - z) (b - y) * (scale * scale) + bias"""
    _bytes_of(call, 0, 1)
    total = _product(call, call[0], call[1], *_row_and_column(call, 0, 4, 5))
    rank = total.type.rank
    scale = _combined(call, "Mul", _scale(call, 2, 0, 0), _scale(call, 3, rank - 1, rank))
    result = call.apply("Mul", _as(call, total, "float32"), scale)
    return call.apply("Add", result, call[6]) if call.has(6) else result


HANDLERS: Mapping[str, Handler] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _ql_matmul,
    "QLinearConv": _ql_conv,
}
ONNXRUNTIME_HANDLERS: Mapping[str, Handler] = {
    "QuantizeLinear": _quantize_linear,
    "DequantizeLinear": _dequantize_linear,
    "QLinearAdd": _ql_add,
    "QLinearMul": _ql_mul,
    "QLinearSigmoid": _ql_sigmoid,
    "QLinearLeakyRelu": _ql_leaky_relu,
    "QLinearSoftmax": _ql_softmax,
    "QLinearAveragePool": _ql_average,
    "QLinearGlobalAveragePool": _global_average,
    "QLinearConcat": _ql_concat,
    "QGemm": _q_gemm,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
}
"""Handlers of operators of the domain com.microsoft."""
