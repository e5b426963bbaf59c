"""MatMul, Gemm, Conv and ConvTranspose."""

from __future__ import annotations

from collections.abc import Mapping

from egraph.onnx.importer.elementwise import Handler
from egraph.onnx.importer.state import Call, NotCore
from egraph.onnx.importer.window import window_of
from egraph.tensor import Node


def _matmul(call: Call) -> Node:
    """x @ y, with a vector as a matrix of one row (x) or one column (y), which the result drops"""
    left, right = call.shape(0), call.shape(1)
    if not left or not right:
        raise NotCore("an operand has no axis")
    x = call.reshape(call[0], (1, *left)) if len(left) == 1 else call[0]
    y = call.reshape(call[1], (*right, 1)) if len(right) == 1 else call[1]
    product = call.apply("MatMul", x, y)
    sizes = product.type.sizes
    if len(left) > 1 and len(right) > 1:
        return product
    return call.reshape(product, (*sizes[:-2], *(sizes[-2:-1] if len(left) > 1 else ()), *(sizes[-1:] if len(right) > 1 else ())))


def _gemm(call: Call) -> Node:
    """alpha A' B' + beta C"""
    left = call.transpose(call[0], (1, 0)) if call.attribute("transA", 0) else call[0]
    right = call.transpose(call[1], (1, 0)) if call.attribute("transB", 0) else call[1]
    alpha, beta = float(call.attribute("alpha", 1.0)), float(call.attribute("beta", 1.0))
    if alpha != 1.0 and right.op in ("Constant", "Transpose") and call.data(1) is not None:
        right, alpha = call.apply("Mul", right, call.like(alpha)), 1.0
    result = call.apply("MatMul", left, right)
    if alpha != 1.0:
        result = call.apply("Mul", result, call.like(alpha))
    if not call.has(2) or beta == 0.0:
        return result
    addend = call[2] if beta == 1.0 else call.apply("Mul", call[2], call.like(beta))
    return call.apply("Add", result, addend)


def _biased(call: Call, result: Node) -> Node:
    """result + bias[1, C, 1, ...]"""
    if not call.has(2):
        return result
    return call.apply("Add", result, call.reshape(call[2], (1, call.shape(2)[0], *[1] * (result.type.rank - 2))))


def _conv(call: Call) -> Node:
    space, kernel = call.shape(0)[2:], call.shape(1)[2:]
    window = window_of(call, kernel, space)
    result = call.apply("Conv", call[0], call[1], strides=window.strides, pads=window.pads, dilations=window.dilations,
                        group=int(call.attribute("group", 1)), layout="NCHW")
    return _biased(call, result)


def _conv_transpose(call: Call) -> Node:
    space, kernel = call.shape(0)[2:], call.shape(1)[2:]
    count = len(space)
    strides = tuple(int(n) for n in call.attribute("strides", [1] * count))
    dilations = tuple(int(n) for n in call.attribute("dilations", [1] * count))
    extra = [int(n) for n in call.attribute("output_padding", [0] * count)]
    pads = [int(n) for n in call.attribute("pads", [0] * (2 * count))]
    output_shape = call.attribute("output_shape")
    automatic = str(call.attribute("auto_pad", "NOTSET"))
    if len(kernel) != count or len(pads) != 2 * count or not len(strides) == len(dilations) == len(extra) == count:
        raise NotCore("the window does not fit the rank")
    if output_shape is not None or automatic in ("SAME_UPPER", "SAME_LOWER"):
        scaled = [n * s for n, s in zip(space, strides, strict=True)]
        sizes = scaled if output_shape is None else [int(n) for n in output_shape][-count:]
        for axis in range(count):
            extent = (kernel[axis] - 1) * dilations[axis] + 1
            total = strides[axis] * (space[axis] - 1) + extra[axis] + extent - sizes[axis]
            if total < 0:
                raise NotCore("the output is larger than its windows")
            small, large = total // 2, total - total // 2
            pads[axis], pads[axis + count] = (small, large) if automatic == "SAME_UPPER" else (large, small)
    elif automatic == "VALID":
        pads = [0] * (2 * count)
    if min(pads) < 0:
        raise NotCore("negative padding")
    result = call.apply("ConvTranspose", call[0], call[1], strides=strides, pads=tuple(pads), dilations=dilations,
                        group=int(call.attribute("group", 1)), output_padding=tuple(extra), layout="NCHW")
    return _biased(call, result)


HANDLERS: Mapping[str, Handler] = {
    "MatMul": _matmul, "Gemm": _gemm, "Conv": _conv, "ConvTranspose": _conv_transpose,
}  # fmt: skip
