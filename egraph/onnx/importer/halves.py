"""Read a model that computes in float16 or bfloat16 as the same model in float32.

Every value between its inputs and its outputs becomes float32, and casts between the types disappear. Inputs and outputs keep their types,
with one cast each. The result is the model with fewer roundings, each of which moves a number by at most the unit roundoff of its type
(2^-11 in float16, 2^-8 in bfloat16). Intermediate numbers beyond 65504 do not overflow, whereas float16 has infinities there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from egraph.onnx.importer.model_file import tensors_inside, to_array
from egraph.onnx.importer.order import nodes_inside, subgraphs

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
UNIT_ROUNDOFF: Mapping[str, float] = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding a number to each type, within the type's range."""
STANDARD = ("", "ai.onnx")
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "softmax_precision", "stash_type"})
"""Attributes whose integer names an element type."""
_OF_BITS = frozenset({"BitCast"})
"""Operators whose meaning depends on the width of an element."""
_WIDE_NAME = "{}/float32"


def half_types(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the types of 16 bits that a model has, except those of its values without a stated type."""
    elements = {t.elem_type for value in (*model.graph.input, *model.graph.output) for t in _tensor_types(value.type)}
    elements |= {tensor.data_type for tensor in model.graph.initializer}
    for node in model.graph.node:
        elements |= {tensor.data_type for tensor in tensors_inside(node)}
        elements |= {a.i for inner in nodes_inside(node) for a in inner.attribute if a.name in _TYPE_ATTRIBUTES}
    return tuple(name for name, element in zip(UNIT_ROUNDOFF, HALVES, strict=True) if element in elements)


def refusal(model: onnx.ModelProto, is_widened: Callable[[str, str], bool]) -> str | None:
    """Return the reason why a model cannot be read in float32, or None if it can. ``is_widened`` decides on operators of other domains."""
    for node in (inner for outer in model.graph.node for inner in nodes_inside(outer)):
        if node.op_type in _OF_BITS or (node.domain not in STANDARD and not is_widened(node.domain, node.op_type)):
            return f"{node.domain or 'ai.onnx'}.{node.op_type} may mean something else in float32"
    if model.functions:
        return "its functions could not be inlined"
    if model.graph.sparse_initializer:
        return "it has sparse weights"
    for value in (*model.graph.input, *model.graph.output):
        if not value.type.WhichOneof("value"):
            return f"the file does not say of which type {value.name!r} is"
        half = any(each.elem_type in HALVES for each in _tensor_types(value.type))
        if half and not value.type.HasField("tensor_type"):
            return f"{value.name!r} is no tensor"
        if half and value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            return f"onnxruntime, with which results are compared, takes and gives no bfloat16 ({value.name!r})"
    return None


def in_float32(model: onnx.ModelProto, folder: Path | None, fed: frozenset[str] = frozenset()) -> onnx.ModelProto:
    """Return a model with float32 in place of all types of 16 bits, except for its inputs and outputs.

    ``fed``: initialisers that are nevertheless inputs.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    graph = wide.graph
    kept = [tensor for tensor in graph.initializer if tensor.name not in fed]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    constants = {tensor.name for tensor in graph.initializer}
    fed_halves = {v.name: v.type.tensor_type.elem_type for v in graph.input if v.name not in constants and _is_half(v)}
    given = {v.name: v.type.tensor_type.elem_type for v in graph.output if _is_half(v) and v.name not in fed_halves}
    inner_names = {name: _WIDE_NAME.format(name) for name in (*fed_halves, *given)}
    _widen_graph(graph, folder, inner_names, kept_values=frozenset((*fed_halves, *given)))
    nodes = [_cast(name, inner_names[name], TensorProto.FLOAT) for name in fed_halves]
    nodes += graph.node
    nodes += [_cast(inner_names[name], name, element) for name, element in given.items()]
    for tensor in graph.initializer:
        tensor.name = inner_names.get(tensor.name, tensor.name)
    del graph.node[:]
    graph.node.extend(nodes)
    return wide


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in HALVES


def _cast(source: str, result: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [result], name=f"{result}/cast", to=to)


def _tensor_types(type: onnx.TypeProto) -> Iterator[onnx.TypeProto.Tensor]:
    """Yield the tensor types in a type."""
    match type.WhichOneof("value"):
        case "tensor_type":
            yield type.tensor_type
        case "sequence_type":
            yield from _tensor_types(type.sequence_type.elem_type)
        case "optional_type":
            yield from _tensor_types(type.optional_type.elem_type)
        case "map_type":
            yield from _tensor_types(type.map_type.value_type)


def _widen_graph(graph: onnx.GraphProto, folder: Path | None, names: Mapping[str, str], kept_values: frozenset[str] = frozenset()) -> None:
    """Widen a graph in place; ``names``: new names of values that nodes use; ``kept_values``: inputs and outputs that keep their types."""
    for tensor in graph.initializer:
        _widen_tensor(tensor, folder)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.name in kept_values:
            continue
        value.name = names.get(value.name, value.name)
        _widen_type(value.type)
    left = [value for value in graph.value_info if value.name not in kept_values]
    del graph.value_info[:]
    graph.value_info.extend(left)
    for node in graph.node:
        for values in (node.input, node.output):
            for position, name in enumerate(values):
                values[position] = names.get(name, name)
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in HALVES:
                attribute.i = TensorProto.FLOAT
            if attribute.HasField("t"):
                _widen_tensor(attribute.t, folder)
            for tensor in attribute.tensors:
                _widen_tensor(tensor, folder)
            if attribute.HasField("tp"):
                _widen_type(attribute.tp)
        for inner in subgraphs(node):
            _widen_graph(inner, folder, names)


def _widen_type(type: onnx.TypeProto) -> None:
    for each in _tensor_types(type):
        if each.elem_type in HALVES:
            each.elem_type = TensorProto.FLOAT


def _widen_tensor(tensor: onnx.TensorProto, folder: Path | None) -> None:
    if tensor.data_type in HALVES:
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(to_array(tensor, folder), np.float32), tensor.name))
