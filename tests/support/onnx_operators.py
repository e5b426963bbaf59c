"""One ONNX node (with transposes around it for the NHWC layout) for every core operator, as a reference for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from egraph.tensor import TensorType

Parts = tuple[list[Any], dict[str, Any]]
"""Further constant inputs (None: absent) and the node's attributes."""

OPSET = 20


def _no_more(a: Mapping[str, Any], _: Sequence[TensorType]) -> Parts:
    return [], dict(a)


def _int64(values: Sequence[int]) -> np.ndarray:
    return np.array(values, np.int64)


def _without_layout(a: Mapping[str, Any], _: Sequence[TensorType]) -> Parts:
    return [], {key: value for key, value in a.items() if key != "layout"}


def _slice(a: Mapping[str, Any], types: Sequence[TensorType]) -> Parts:
    ends = [end if end >= 0 else -size - 1 for end, size in zip(a["ends"], types[0].sizes, strict=True)]
    return [_int64(a["starts"]), _int64(ends), _int64(range(len(ends))), _int64(a["steps"])], {}


def _resize(a: Mapping[str, Any], types: Sequence[TensorType]) -> Parts:
    names = {"mode": "mode", "coordinate_mode": "coordinate_transformation_mode", "nearest_mode": "nearest_mode",
             "cubic_coeff_a": "cubic_coeff_a", "exclude_outside": "exclude_outside"}  # fmt: skip
    attributes = {onnx_name: a[name] for name, onnx_name in names.items()}
    sizes = types[0].sizes
    if all(int(np.float32(size) * np.float32(scale)) == result for size, scale, result in zip(sizes, a["scales"], a["sizes"], strict=True)):
        return [None, np.array(a["scales"], np.float32)], attributes
    return [None, None, _int64(a["sizes"])], attributes


_PARTS: Mapping[str, Callable[[Mapping[str, Any], Sequence[TensorType]], Parts]] = {
    "Reshape": lambda a, _: ([_int64(a["shape"])], {}),
    "Expand": lambda a, _: ([_int64(a["shape"])], {}),
    "Cast": lambda a, _: ([], {"to": TensorProto.FLOAT}),
    "Clip": lambda a, _: ([np.float32(a["min"]), np.float32(a["max"])], {}),
    "Slice": _slice,
    "Pad": lambda a, _: ([_int64((*a["before"], *a["after"])), np.float32(a["value"])], {"mode": a["mode"]}),
    "Resize": _resize,
    "LRN": lambda a, _: ([], {key: value for key, value in a.items() if key != "axis"}),
    **{f"Reduce{kind}": lambda a, _: ([_int64(a["axes"])], {"keepdims": 1}) for kind in ("Sum", "Max", "Min", "Mean", "Prod")},
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool"), _without_layout),
}


def model(op: str, types: Sequence[TensorType], attributes: Mapping[str, Any], result: TensorType) -> onnx.ModelProto:
    """Return a model that applies one core operator to inputs ``x0, x1, ...`` as standard ONNX."""
    constants, values = _PARTS.get(op, _no_more)(attributes, types)
    names = [f"x{i}" for i in range(len(types))]
    feeds = names + [f"c{i}" if constant is not None else "" for i, constant in enumerate(constants)]
    output = "y"
    nodes = []
    rank = types[0].rank
    if attributes.get("layout") == "NHWC" or (op == "LRN" and attributes["axis"] == rank - 1):
        nodes.append(helper.make_node("Transpose", [feeds[0]], ["t"], perm=[0, rank - 1, *range(1, rank - 1)]))
        nodes.append(helper.make_node("Transpose", ["z"], ["y"], perm=[0, *range(2, rank), 1]))
        feeds[0], output = "t", "z"
    nodes.insert(len(nodes) and 1, helper.make_node(op, feeds, [output], **values))
    tensors = [onnx.numpy_helper.from_array(np.asarray(c), f"c{i}") for i, c in enumerate(constants) if c is not None]
    inputs = [helper.make_tensor_value_info(n, _element(t.dtype), t.sizes) for n, t in zip(names, types, strict=True)]
    graph = helper.make_graph(nodes, op, inputs, [helper.make_tensor_value_info("y", _element(result.dtype), None)], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def _element(dtype: str) -> int:
    return int({"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "int64": TensorProto.INT64}[dtype])


def run(proto: onnx.ModelProto, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Return the model's output as onnxruntime computes it without graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {f"x{i}": operand for i, operand in enumerate(operands)})[0])
