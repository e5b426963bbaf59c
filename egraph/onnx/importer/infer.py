"""Types and values of single nodes: shape inference by onnx, folding by onnxruntime (by onnx.reference if it cannot)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx.shape_inference
from onnx import helper

from egraph.errors import ModelError
from egraph.onnx.importer.order import captured_names, subgraphs
from egraph.onnx.importer.state import Call
from egraph.onnx.types import from_proto, is_tensor, to_proto, to_tensor
from egraph.tensor import Dim, Node, TensorType, numpy_dtype

_DATA_LIMIT_BYTES = 65536
"""Constants up to this size in bytes are shown to shape inference; those that hold shapes are smaller."""
_BOUNDED = frozenset({"NonZero", "Compress", "Unique"})
"""Operators whose result has an unknown size, but at most a small multiple of their operands' elements."""
_KEPT = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Operators on constants that state how a weight is stored; folding them would only enlarge the model."""
_RANDOM = frozenset({"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"})
NEWEST_IR = 13
"""The newest IR version that onnxruntime reads."""
_NOTHING: Mapping[str, Node] = MappingProxyType({})
STANDARD_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def is_random(node: onnx.NodeProto) -> bool:
    """Return whether two runs of the node may differ, subgraphs included; operators of unknown domains may."""
    training = node.op_type == "Dropout" and (len(node.input) > 2 and bool(node.input[2]))
    inner = (n for graph in subgraphs(node) for n in graph.node)
    return node.domain not in STANDARD_DOMAINS or node.op_type in _RANDOM or training or any(is_random(n) for n in inner)


def one_node_model(call: Call, *, embed: int, other_operands: Mapping[str, Node] = _NOTHING) -> onnx.ModelProto:
    """Return a model of one node; constants up to ``embed`` bytes are initialisers, other operands inputs; ``other_operands`` by name."""
    state, node = call.state, call.node
    names = [*node.input, *(name for name in captured_names(node) if name not in node.input)]
    graph = onnx.GraphProto(name="one")
    graph.node.append(node)
    for name, value in {n: other_operands.get(n, state.values[n]) for n in names if n}.items():
        data = state.data(value)
        if data is not None and value.type.size_bytes <= embed:
            graph.initializer.append(to_tensor(data, name))
        else:
            graph.input.append(onnx.ValueInfoProto(name=name, type=to_proto(value.type)))
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in node.output if name)
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(state.opsets.items())]
    return helper.make_model(graph, opset_imports=imports, functions=state.functions, ir_version=min(max(state.ir_version, 4), NEWEST_IR))


def infer(call: Call) -> list[TensorType]:
    """Return the type of each result ('undefined' if nothing is known); raise ModelError for an ill-typed node."""
    _refuse_if_incomplete(call)
    model = one_node_model(call, embed=_DATA_LIMIT_BYTES)
    if call.node.domain == "" and not onnx.defs.has(call.node.op_type):  # an operator of an early onnx version, or a mistake
        _refuse_if_ill_typed(call, model, f"there is no operator {call.node.op_type}")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError) as error:
        _refuse_if_ill_typed(call, model, str(error))
        inferred = model
    if any(not value.type.WhichOneof("value") and value.name not in call.state.declared for value in inferred.graph.output):
        inferred = _typed_by_onnxruntime(model)
    types = [_merged(call, name, inferred) for name in call.node.output]
    if call.node.op_type == "Reshape" and call.has(0) and call[0].type.is_static and types[0].is_static:
        _refuse_other_counts(call, types[0])
    return types


def _refuse_if_incomplete(call: Call) -> None:
    """Raise ModelError for a missing operand, because shape inference in C++ may read beyond the operands."""
    node, domain = call.node, "" if call.node.domain == "ai.onnx" else call.node.domain
    version = call.state.opsets.get(domain, 0)
    if not onnx.defs.has(node.op_type, version, domain):
        return
    for index, formal in enumerate(onnx.defs.get_schema(node.op_type, version, domain).inputs):
        if formal.option == onnx.defs.OpSchema.FormalParameterOption.Single and not "".join(node.input[index : index + 1]):
            _refuse(call, f"its operand {index} ({formal.name}) is missing")


def _refuse_other_counts(call: Call, result: TensorType) -> None:
    """Raise ModelError for a Reshape to another number of elements, because shape inference trusts the given shape."""
    if call[0].type.elements != result.elements:
        _refuse(call, f"{call[0].type.elements} elements cannot have the constant shape {list(result.sizes)}")


def _typed_by_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the types that onnxruntime finds: it knows its own operators, which shape inference does not."""
    try:
        session = open_plainly(model.SerializeToString())
    except Exception:  # onnxruntime's exceptions share no narrower base class
        return model
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    elements = dict(onnx.TensorProto.DataType.items())
    outputs = {output.name: output for output in session.get_outputs()}
    for value in typed.graph.output:
        output_type = outputs[value.name]
        element = elements.get(output_type.type.removeprefix("tensor(").removesuffix(")").upper())
        if element is not None:
            shape = output_type.shape or None  # without sizes it is a scalar, or nothing is known
            value.type.CopyFrom(helper.make_tensor_type_proto(element, shape))
    return typed


def _refuse_if_ill_typed(call: Call, model: onnx.ModelProto, reason: str) -> None:
    """Raise ModelError unless onnxruntime accepts the node that shape inference refused."""
    try:
        open_plainly(model.SerializeToString())
    except Exception as error:  # onnxruntime's exceptions share no narrower base class
        _refuse(call, " ".join((reason or str(error)).split()), error)


def _refuse(call: Call, reason: str, error: Exception | None = None) -> NoReturn:
    operands = ", ".join(f"{n}: {call.state.values[n].type}" for n in call.node.input if n)
    raise ModelError(f"the model is ill-typed: {reason}", where=f"node {call.label!r} ({call.node.op_type}) of {operands}",
                     fix="export the model again, or check the sizes given with --shape") from error


def _merged(call: Call, name: str, model: onnx.ModelProto) -> TensorType:
    """Return a result's type by inference, completed by the model's own ``value_info``."""
    if not name:
        return TensorType("undefined", None)
    names_of_operands = {str(d) for v in call.operands if v is not None and v.type.shape for d in v.type.shape if isinstance(d, str)}
    inferred = next((from_proto(v.type, name) for v in model.graph.output if v.name == name), TensorType("undefined", None))
    declared = call.state.declared.get(name, TensorType("undefined", None))
    if inferred.dtype == "undefined":
        return declared
    if inferred.shape is None:
        return TensorType(inferred.dtype, declared.shape if declared.dtype == inferred.dtype else None)
    sizes: list[Dim] = []
    for axis, size in enumerate(inferred.shape):
        if isinstance(size, str) and size not in names_of_operands:  # inference invents new names in each one-node model
            size = f"{call.state.inside}{name}_{axis}"
            if declared.shape is not None and len(declared.shape) == len(inferred.shape):
                size = declared.shape[axis]
        sizes.append(size)
    return TensorType(inferred.dtype, tuple(sizes))


def may_fold(call: Call) -> bool:
    """Return whether the node's value is known at compile time."""
    node = call.node
    plain = not subgraphs(node) and not is_random(node) and node.op_type not in _KEPT
    return plain and all(operand is None or operand.op == "Constant" for operand in call.operands)


def folded_size_bytes(call: Call, types: Sequence[TensorType]) -> int | None:
    """Return the size of all results together, or None when it has no bound known ahead of time."""
    operands = sum(o.type.elements for o in call.operands if o is not None)
    total = 0
    for type in types:
        if type.dtype == "undefined" and not type.shape:
            continue
        if not is_tensor(type):
            return None
        if type.is_static:
            total += math.prod(type.sizes) * numpy_dtype(type.dtype).itemsize
        elif call.node.op_type in _BOUNDED:
            total += 8 * 8 * operands
        else:
            return None
    return total


def evaluate(call: Call, other_operands: Mapping[str, Node] = _NOTHING) -> list[np.ndarray] | None:
    """Return the node's results, with ``other_operands`` by name; None if neither onnxruntime nor onnx.reference can run it."""
    model = one_node_model(call, embed=1 << 62, other_operands=other_operands)
    try:
        session = open_plainly(model.SerializeToString())
        return [np.asarray(value) for value in session.run(None, {})]
    except Exception:  # onnx.reference may have operators that onnxruntime lacks
        return _evaluate_by_reference(model)


def _evaluate_by_reference(model: onnx.ModelProto) -> list[np.ndarray] | None:
    from onnx.reference import ReferenceEvaluator

    try:
        return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, {})]
    except Exception:  # an operator without a reference implementation stays opaque
        return None


def open_plainly(model: bytes, constants: Mapping[str, np.ndarray] = MappingProxyType({})) -> Any:
    """Open a model in onnxruntime to compute constants, with one thread and without optimisation, so that values are always the same.

    ``constants`` are those that the model names but does not hold; the session reads them in place.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    give_constants(options, constants)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def give_constants(options: Any, constants: Mapping[str, np.ndarray]) -> None:
    """Let a session take constants from memory, which must stay valid until the session is closed."""
    import onnxruntime

    if constants:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in constants.values()]
        options.add_external_initializers(list(constants), values)
