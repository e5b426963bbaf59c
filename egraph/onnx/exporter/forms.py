"""Every core operator as standard ONNX nodes that are valid in the emitter's opset.

A form takes the node (for its types and attributes), its operands' names and the name that the result must have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from egraph.errors import LowerError
from egraph.onnx.exporter.emitter import Emitter
from egraph.onnx.exporter.expression import expression
from egraph.onnx.exporter.recurrence import recurrence
from egraph.onnx.exporter.windows import FORMS as WINDOW_FORMS
from egraph.onnx.types import element_type
from egraph.tensor import Node
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES
from egraph.tensor.ops.recurrence import GATES

Form = Callable[[Emitter, Node, Sequence[str], str], None]

PLAIN = (
    *(spec.name for spec in OPS.values() if spec.category == "elementwise" and spec.onnx == (spec.name,)),
    "Transpose", "Concat", "Gather", "GatherElements", "GatherND", "InstanceNormalization",
)  # fmt: skip
"""Operators that have ONNX's operands and attributes in every opset that defines them."""


def emit(emitter: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    """Append the standard form of a core node."""
    form = FORMS.get(node.op)
    if form is None:
        raise LowerError(f"{node.op} has no ONNX form", where=str(node.type), fix="report this operator")
    form(emitter, node, operands, output)


def attributes_of(node: Node) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in node.attributes}


def _plain(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    e.add(node.op, operands, output=output, **attributes_of(node))


def _equal(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    _same(e, node, operands, output)


def _same(e: Emitter, node: Node, operands: Sequence[str], output: str = "") -> str:
    """Write x = y. Before opset 11, Equal does not compare numbers: write neither less nor greater, and both are numbers."""
    dtype = node.inputs[0].type.dtype
    if e.opset >= 11 or not dtype.startswith("float"):
        return e.add("Equal", operands, output=output)
    differs = e.add("Or", [e.add("Less", operands), e.add("Greater", operands)])
    one, zero = e.constant(1, dtype), e.constant(0, dtype)
    numbers = [e.add("Or", [e.add("Less", [name, one]), e.add("Greater", [name, zero])]) for name in operands]
    return e.add("And", [e.add("Not", [differs]), e.add("And", numbers)], output=output)


def _or_equal(strict: str) -> Form:
    def form(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
        if e.opset >= 12:
            _plain(e, node, operands, output)
        else:
            e.add("Or", [e.add(strict, operands), _same(e, node, operands)], output=output)

    return form


def _cast(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    e.add("Cast", operands, output=output, to=element_type(node.type.dtype))


def _matmul(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    """Write a product. Signed bytes on the right become unsigned bytes, 128 greater, with a zero point that is 128 greater.

    onnxruntime's sums of products by signed bytes saturate on processors without instructions for them.
    """
    if node.inputs[0].type.dtype not in BYTES:
        e.add("MatMul", operands, output=output)
    elif node.inputs[1].type.dtype != "int8":
        e.add("MatMulInteger", operands, output=output)
    else:
        wide = e.add("Cast", [operands[1]], to=element_type("int32"))
        unsigned = e.add("Cast", [e.add("Add", [wide, e.constant(128, "int32")])], to=element_type("uint8"))
        e.add("MatMulInteger", [operands[0], unsigned, "", e.constant(128, "uint8")], output=output)


def _saturate(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    e.add("QuantizeLinear", [*operands, e.constant(1, "float32"), e.constant(0, node.type.dtype)], output=output)


def _quantize(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    x, scale, zero_point = operands
    if all(operand.type.elements == 1 for operand in node.inputs[1:]):
        scalars = [name if operand.type.rank == 0 else e.add("Reshape", [name, e.integers([])])
                   for name, operand in zip(operands[1:], node.inputs[1:], strict=True)]
        e.add("QuantizeLinear", [x, *scalars], output=output)
        return
    shift = e.add("Cast", [zero_point], to=element_type("float32"))
    _saturate(e, node, [e.add("Add", [e.add("Round", [e.add("Div", [x, scale])]), shift])], output)


def _dequantize(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    x, scale, zero_point = operands
    wide = [e.add("Cast", [name], to=element_type("int32")) for name in (x, zero_point)]
    e.add("Mul", [e.add("Cast", [e.add("Sub", wide)], to=element_type("float32")), scale], output=output)


def _numbers(e: Emitter, name: str, bits: int, shape: Sequence[int]) -> str:
    """Return the numbers that are packed in bytes of this shape, the lowest bits first, in float32."""
    if bits < 8:
        parts = []
        for shift in range(0, 8, bits):
            left = e.constant(8 - bits - shift, "uint8")
            alone = e.add("BitShift", [name, left], direction="LEFT")
            part = e.add("BitShift", [alone, e.constant(8 - bits, "uint8")], direction="RIGHT")
            parts.append(e.add("Reshape", [part, e.integers([*shape, 1])]))
        name = e.add("Reshape", [e.add("Concat", parts, axis=len(shape)), e.integers([*shape[:-1], shape[-1] * 8 // bits])])
    return e.add("Cast", [name], to=element_type("float32"))


def _dequantize_blocks(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    """(numbers - zero points) * scales in blocks, without the padding of the last block"""
    bits, (*lead, blocks, width), zeros_shape = node.integer("bits"), node.inputs[0].type.sizes, node.inputs[2].type.sizes
    packed, scales, zeros = operands
    one_a_block, last = e.integers([*lead, blocks, 1]), e.integers([-1])
    zeros = e.add("Slice", [_numbers(e, zeros, bits, zeros_shape), e.integers([0]), e.integers([blocks]), last])
    difference = e.add("Sub", [_numbers(e, packed, bits, (*lead, blocks, width)), e.add("Reshape", [zeros, one_a_block])])
    scaled = e.add("Mul", [difference, e.add("Reshape", [scales, one_a_block])])
    flat = e.add("Reshape", [scaled, e.integers([*lead, blocks * width * 8 // bits])])
    e.add("Slice", [flat, e.integers([0]), e.integers([node.integer("size")]), last], output=output)


def _hard_swish(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    if e.opset >= 14:
        _plain(e, node, operands, output)
    else:
        e.add("Mul", [operands[0], e.add("HardSigmoid", operands, alpha=1 / 6, beta=0.5)], output=output)


def _mish(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    if e.opset >= 18:
        _plain(e, node, operands, output)
    else:
        e.add("Mul", [operands[0], e.add("Tanh", [e.add("Softplus", operands)])], output=output)


def _gelu(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    """x/2 (1 + erf(x / sqrt 2)), or its tanh approximation, if opset 20's Gelu is missing"""
    if e.opset >= 20:
        return _plain(e, node, operands, output)
    x, dtype = operands[0], node.type.dtype
    if node.attribute("approximate") == "none":
        inner = e.add("Erf", [e.add("Mul", [x, e.constant(math.sqrt(0.5), dtype)])])
    else:
        cube = e.add("Mul", [e.add("Mul", [x, x]), e.add("Mul", [x, e.constant(0.044715, dtype)])])
        inner = e.add("Tanh", [e.add("Mul", [e.add("Add", [x, cube]), e.constant(math.sqrt(2 / math.pi), dtype)])])
    half = e.add("Mul", [x, e.constant(0.5, dtype)])
    e.add("Mul", [half, e.add("Add", [inner, e.constant(1.0, dtype)])], output=output)
    return None


def _clip(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    bounds: dict[str, Any] = {name: node.real(name) for name in ("min", "max") if math.isfinite(node.real(name))}
    if e.opset >= 11:
        names = [e.constant(bounds[name], node.type.dtype) if name in bounds else "" for name in ("min", "max")]
        e.add("Clip", [*operands, *names], output=output)
    else:
        e.add("Clip", operands, output=output, **bounds)


def _reshape(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    e.add("Reshape", [*operands, e.integers(node.type.sizes)], output=output)


def _expand(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    e.add("Expand", [*operands, e.integers(node.type.sizes)], output=output)


def _slice(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    a, sizes = attributes_of(node), node.inputs[0].type.sizes
    cut = [k for k, n in enumerate(sizes) if (a["starts"][k], a["ends"][k], a["steps"][k]) != (0, n, 1)]
    if e.opset >= 10:
        ends = [a["ends"][k] if a["ends"][k] >= 0 else -sizes[k] - 1 for k in cut]  # a negative end would count from the end
        bounds = [e.integers(values) for values in ([a["starts"][k] for k in cut], ends, cut, [a["steps"][k] for k in cut])]
        e.add("Slice", [*operands, *bounds], output=output)
        return
    current = operands[0]
    for order, axis in enumerate(cut):
        chosen = list(range(a["starts"][axis], a["ends"][axis], a["steps"][axis]))
        current = e.add("Gather", [current, e.integers(chosen)], axis=axis, output=output if order == len(cut) - 1 else "")
    if not cut:
        e.add("Identity", operands, output=output)


def _pad(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    a = attributes_of(node)
    pads = a["before"] + a["after"]
    if e.opset >= 11:
        value = [e.constant(a["value"], node.type.dtype)] if a["mode"] == "constant" else []
        e.add("Pad", [*operands, e.integers(pads), *value], mode=a["mode"], output=output)
    else:
        e.add("Pad", operands, pads=pads, mode=a["mode"], value=float(a["value"]), output=output)


def _gives(size: int, scale: np.float32, result: int) -> bool:
    """Return whether a scale yields a size, in whatever precision a reader computes it."""
    return math.floor(np.float32(size) * scale) == math.floor(size * float(scale)) == result


def _resize(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    a, sizes = attributes_of(node), node.inputs[0].type.sizes
    if e.opset < 11:
        e.add("Resize" if e.opset == 10 else "Upsample", [*operands, e.constant(a["scales"], "float32")], mode=a["mode"], output=output)
        return
    by_scale = all(_gives(n, np.float32(s), m) for n, s, m in zip(sizes, a["scales"], a["sizes"], strict=True))
    bounds = ["", e.constant(a["scales"], "float32")] if by_scale else ["", "", e.integers(a["sizes"])]
    if e.opset < 13:  # the region of interest is not optional yet
        bounds[0] = e.constant([], "float32")
        if not by_scale:
            bounds[1] = bounds[0]
    values = {"coordinate_transformation_mode": a["coordinate_mode"], "mode": a["mode"]}
    if a["mode"] == "nearest":
        values["nearest_mode"] = a["nearest_mode"]
    if a["mode"] == "cubic":
        values |= {"cubic_coeff_a": a["cubic_coeff_a"], "exclude_outside": a["exclude_outside"]}
    e.add("Resize", [*operands, *bounds], output=output, **values)


def _reduce(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    axes = attributes_of(node)["axes"]
    if e.opset >= 18 or (e.opset >= 13 and node.op == "ReduceSum"):
        e.add(node.op, [*operands, e.integers(axes)], keepdims=1, output=output)
    else:
        e.add(node.op, operands, axes=axes, keepdims=1, output=output)


def _softmax(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    axis, rank = node.integer("axis"), node.type.rank
    if e.opset >= 13 or axis == rank - 1:
        e.add(node.op, operands, axis=axis, output=output)
        return
    perm = [k for k in range(rank) if k != axis] + [axis]
    last = e.add(node.op, [e.add("Transpose", operands, perm=perm)], axis=rank - 1)
    e.add("Transpose", [last], perm=[perm.index(k) for k in range(rank)], output=output)


def _layer_normalization(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    a, shape = attributes_of(node), node.type.sizes
    axis, dtype = a["axis"], node.type.dtype
    if e.opset >= 17:
        full = [name if operand.type.sizes == shape[axis:] else e.add("Expand", [name, e.integers(shape[axis:])])
                for name, operand in zip(operands[1:], node.inputs[1:], strict=True)]
        e.add("LayerNormalization", [operands[0], *full], axis=axis, epsilon=a["epsilon"], output=output)
        return

    def mean(name: str) -> str:
        axes = list(range(axis, len(shape)))
        return e.add("ReduceMean", [name], axes=axes, keepdims=1)

    centered = e.add("Sub", [operands[0], mean(operands[0])])
    variance = mean(e.add("Mul", [centered, centered]))
    deviation = e.add("Sqrt", [e.add("Add", [variance, e.constant(a["epsilon"], dtype)])])
    scaled = e.add("Mul", [e.add("Div", [centered, deviation]), operands[1]])
    e.add("Add", [scaled, operands[2]], output=output)


def _place(e: Emitter, node: Node, operands: Sequence[str], output: str) -> None:
    a = attributes_of(node)
    last: dict[str, Any] = {"select_last_index": 1} if a["select_last_index"] else {}  # an older opset has no such attribute
    e.add(node.op, operands, axis=a["axis"], keepdims=1, **last, output=output)


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(PLAIN, _plain),
    **WINDOW_FORMS,
    "Equal": _equal,
    "LessOrEqual": _or_equal("Less"),
    "GreaterOrEqual": _or_equal("Greater"),
    "Cast": _cast,
    "Truncate": _cast,
    "MatMul": _matmul,
    "Saturate": _saturate,
    "Quantize": _quantize,
    "Dequantize": _dequantize,
    "DequantizeBlocks": _dequantize_blocks,
    "HardSwish": _hard_swish,
    "Mish": _mish,
    "Gelu": _gelu,
    "Clip": _clip,
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    **dict.fromkeys(("ArgMax", "ArgMin"), _place),
    **dict.fromkeys(("ReduceSum", "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd"), _reduce),
    "Expression": expression,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "LayerNormalization": _layer_normalization,
    **dict.fromkeys(GATES, recurrence),
}
