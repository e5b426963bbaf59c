"""Elementwise ONNX operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx

from egraph.onnx.importer.state import FLOATS, Call, NotCore
from egraph.onnx.types import dtype_name
from egraph.tensor import Node
from egraph.tensor.ops import OPS
from egraph.tensor.ops.dtypes import BYTES
from egraph.tensor.ops.quantisation import WHOLE

Handler = Callable[[Call], Node | list[Node | None]]

ONE_TO_ONE = tuple(spec for spec in OPS.values() if spec.category == "elementwise" and spec.onnx == (spec.name,))
"""Operators that equal ONNX's own: same operands, same attributes, all of them floats."""


def _plain(call: Call) -> Node:
    return call.apply(call.node.op_type, *(call[k] for k in range(len(call.operands))))


def _with_floats(call: Call) -> Node:
    op = call.node.op_type
    if not onnx.defs.has(op, call.opset):
        raise NotCore("onnxruntime alone knows the operator in this opset")
    declared = onnx.defs.get_schema(op, call.opset).attributes
    values = {name: call.attribute(name, onnx.helper.get_attribute_value(declared[name].default_value)) for name in OPS[op].attributes}
    return call.apply(op, call[0], **{name: float(np.float32(value)) for name, value in values.items()})


def _variadic(op: str) -> Handler:
    def handler(call: Call) -> Node:
        return call.chain(op, [call[k] for k in range(len(call.operands))])

    return handler


def _mean(call: Call) -> Node:
    total = call.chain("Add", [call[k] for k in range(len(call.operands))])
    return total if len(call.operands) == 1 else call.apply("Div", total, call.like(len(call.operands)))


def _clip(call: Call) -> Node:
    """min(max(x, low), high), as an operator if both bounds are known"""
    if call.opset < 11:
        bounds = call.attribute("min", -math.inf), call.attribute("max", math.inf)
        return call.apply("Clip", call[0], min=float(bounds[0]), max=float(bounds[1]))
    low, high = call.data(1), call.data(2)
    if (call.has(1) and low is None) or (call.has(2) and high is None):
        result = call.apply("Max", call[0], call[1]) if call.has(1) else call[0]
        return call.apply("Min", result, call[2]) if call.has(2) else result
    lower = -math.inf if low is None else float(low.reshape(()))
    upper = math.inf if high is None else float(high.reshape(()))
    return call.apply("Clip", call[0], min=lower, max=upper)


def _gelu(call: Call) -> Node:
    return call.apply("Gelu", call[0], approximate=str(call.attribute("approximate", "none")))


def _pow(call: Call) -> Node:
    """x ^ y, an exponent of another type converted to x's type"""
    to, exponent = call[0].type.dtype, call.data(1)
    if call[1].type.dtype == to or exponent is None or to not in FLOATS:
        return call.apply("Pow", call[0], call[1])
    converted = exponent.astype(to)
    if not np.array_equal(converted, exponent):
        raise NotCore("the exponent is not a number of the base's type")
    return call.apply("Pow", call[0], call.constant(converted, to))


def _is_inf(call: Call) -> Node:
    """|x| = inf, or x = inf or x = -inf if only one of them is requested"""
    positive, negative = (int(call.attribute(f"detect_{sign}", 1)) for sign in ("positive", "negative"))
    if not positive and not negative:
        raise NotCore("nothing is asked for")
    x = call.apply("Abs", call[0]) if positive and negative else call[0]
    return call.apply("Equal", x, call.like(math.inf if positive else -math.inf))


def _where(call: Call) -> Node:
    """One operand, of any type, if the condition is known and the same everywhere"""
    condition = call.data(0)
    if condition is None or not condition.size or bool(condition.any()) != bool(condition.all()):
        return call.apply("Where", call[0], call[1], call[2])
    chosen, shape = call[1 if condition.any() else 2], np.broadcast_shapes(*(call.shape(k) for k in range(3)))
    return chosen if chosen.type.shape == shape else call.apply("Expand", chosen, shape=tuple(int(n) for n in shape))


def _trilu(call: Call) -> Node:
    """x on one side of a diagonal, 0 on the other"""
    rows, columns = call.shape(0)[-2:]
    if rows * columns > call.state.fold_limit_bytes:
        raise NotCore("the condition takes more than constants may")
    offset = int(call.known(1).reshape(())) if call.has(1) else 0
    upper = bool(call.attribute("upper", 1))
    kept = ~np.tri(rows, columns, offset - 1, bool) if upper else np.tri(rows, columns, offset, bool)
    return call.apply("Where", call.constant(kept, "bool"), call[0], call.like(0))


def swish(default: float) -> Handler:
    """x sigmoid(alpha x)"""

    def handler(call: Call) -> Node:
        alpha = float(call.attribute("alpha", default))
        inner = call[0] if alpha == 1.0 else call.apply("Mul", call[0], call.like(alpha))
        return call.apply("Mul", call[0], call.apply("Sigmoid", inner))

    return handler


def _dropout(call: Call) -> list[Node | None]:
    if call.opset < 7 or (call.has(2) and (call.data(2) is None or bool(call.known(2)))):
        raise NotCore("dropout in training mode")
    if call.uses_more_than_first():
        raise NotCore("the mask is used")
    return [call[0]] + [None] * (len(call.node.output) - 1)


def _identity(call: Call) -> Node:
    return call[0]


def _cast(call: Call) -> Node:
    return as_type(call, call[0], dtype_name(int(call.attribute("to", 0))))


def _cast_like(call: Call) -> Node:
    return as_type(call, call[0], call[1].type.dtype)


def as_type(call: Call, node: Node, dtype: str) -> Node:
    """Return an operand as another type: unchanged, an integer as a number, a number as an integer, a truth value as 1 or 0, or whether
    it is not zero.
    """
    source_dtype = node.type.dtype
    if dtype == source_dtype:
        return node
    if dtype == "float32" and node in call.state.wholes:
        return call.state.wholes[node]
    if dtype == "bool":
        number = node if source_dtype == "float32" else as_type(call, node, "float32")
        return call.apply("Not", call.apply("Equal", number, call.constant(0, "float32")))
    if dtype == "int32" and source_dtype in BYTES:
        return call.apply("Cast", node, to=dtype)
    if dtype != "float32" and (dtype not in WHOLE or source_dtype not in ("bool", "float32")):
        raise NotCore("the element type changes")
    if source_dtype == "bool":
        number = call.apply("Where", node, call.constant(1, "float32"), call.constant(0, "float32"))
        if dtype == "float32":
            return number
        whole = call.apply("Truncate", number, to=dtype)
        call.state.wholes[whole] = number
        return whole
    return call.apply("Truncate" if source_dtype == "float32" else "Cast", node, to=dtype)


HANDLERS: Mapping[str, Handler] = {
    **{spec.name: _with_floats if spec.attributes else _plain for spec in ONE_TO_ONE},
    "Sum": _variadic("Add"),
    "Max": _variadic("Max"),
    "Min": _variadic("Min"),
    "Mean": _mean,
    "Clip": _clip,
    "Gelu": _gelu,
    "Swish": swish(1.0),
    "Pow": _pow,
    "IsInf": _is_inf,
    "Where": _where,
    "Trilu": _trilu,
    "Dropout": _dropout,
    "Identity": _identity,
    "Cast": _cast,
    "CastLike": _cast_like,
}
