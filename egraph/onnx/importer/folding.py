"""Values known at compile time: Constant, Shape arithmetic, and any node whose operands are all constants."""

from __future__ import annotations

import math

import numpy as np
import onnx

from egraph.onnx.importer.infer import evaluate, folded_size_bytes, infer, may_fold
from egraph.onnx.importer.model_file import to_array
from egraph.onnx.importer.state import FLOATS, Call
from egraph.onnx.types import is_tensor
from egraph.tensor import Node, TensorType

HALVES = ("float16", "bfloat16")
"""Element types whose values float32 holds exactly."""
EAGER_BYTES = 65536
"""Floating-point values up to this size in bytes are folded at once; larger ones stay expressions of core operators."""


def fold_shape(call: Call) -> list[Node | None] | None:
    """Return the value of Constant, Shape, Size and Range nodes, or None for other nodes and unknown sizes."""
    node = call.node
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Constant":
        value = _constant_value(call)
        return None if value is None else [call.state.came_from(call.state.constant(value), call.label)]
    if node.op_type == "Range":
        return _range(call)
    if node.op_type not in ("Shape", "Size") or not call.has(0) or not is_tensor(call[0].type) or call[0].type.shape is None:
        return None
    if node.op_type == "Size":
        return [call.constant(call[0].type.elements, "int64")] if call[0].type.is_static else None
    sizes = call[0].type.shape[slice(call.attribute("start", 0), call.attribute("end"))]
    return [call.constant(sizes, "int64")] if all(isinstance(n, int) for n in sizes) else None


def _range(call: Call) -> list[Node | None] | None:
    """start + i delta; operands with one element may have any rank, as in onnxruntime"""
    operands = [call.data(k) for k in range(3)]
    if any(v is None or v.size != 1 for v in operands):
        return None
    start, limit, delta = (np.asarray(v).reshape(()) for v in operands)
    if start.dtype.name not in ("int16", "int32", "int64", "float32", "float64") or delta == 0:
        return None
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    if count * start.dtype.itemsize > call.state.fold_limit_bytes:
        return None
    return [call.constant(start + np.arange(count).astype(start.dtype) * delta, start.dtype.name)]


def _constant_value(call: Call) -> np.ndarray | None:
    for attribute in call.node.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        match attribute.name:
            case "value":
                return to_array(value, call.state.folder)
            case "value_float" | "value_floats":
                return np.asarray(value, dtype=np.float32)
            case "value_int" | "value_ints":
                return np.asarray(value, dtype=np.int64)
            case "value_string" | "value_strings":
                return np.asarray(value, dtype=object)
    return None


def _widened(call: Call) -> np.ndarray | None:
    """Return a weight of 16 bits in float32 if the node is a cast to it: the same numbers, so no size limit applies."""
    if call.node.op_type != "Cast" or call.attribute("to") != onnx.TensorProto.FLOAT or call[0].type.dtype not in HALVES:
        return None
    return np.asarray(call.known(0), np.float32)


def fold(call: Call, *, core: bool) -> tuple[list[Node | None] | None, list[TensorType] | None]:
    """Return (the node's constant results or None, its result types if they were inferred on the way)."""
    if not call.operands or not may_fold(call):
        return None, None
    if (wide := _widened(call)) is not None:
        return [call.constant(wide, wide.dtype.name)], None
    types = infer(call)
    size = folded_size_bytes(call, types)
    inferred = [type for type in types if type.dtype != "undefined"]
    if core and all(type.dtype in FLOATS for type in inferred) and (size is None or size > EAGER_BYTES):
        return None, types
    if size is None:
        return None, types
    if size > call.state.fold_limit_bytes:
        limit = call.state.fold_limit_bytes
        call.state.note(f"not folded: {call.label} ({call.node.op_type}) would make {size} bytes, above the limit of {limit} bytes")
        return None, types
    values = evaluate(call)
    if values is None:
        return None, types
    arrays = iter(values)
    return [call.state.came_from(call.state.constant(next(arrays)), call.label) if name else None for name in call.node.output], types
