"""Opaque nodes: the ONNX node itself, with its tensors renamed by position so that equal nodes are equal values.

Operand ``k`` (an input, or an outer value that a subgraph reads) is called ``einsat.operand.k`` and result
``i`` ``einsat.result.i``; an absent operand or result keeps the empty name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from egraph.onnx.importer.infer import is_random
from egraph.onnx.importer.model_file import embed_external, tensors_inside
from egraph.onnx.importer.order import captured_names, defined_names, subgraphs
from egraph.onnx.importer.state import Call
from egraph.tensor import TUPLE, AttributeValue, Node, TensorType, attributes, make


def operand_name(index: int) -> str:
    return f"einsat.operand.{index}"


def result_name(index: int) -> str:
    return f"einsat.result.{index}"


def rename_outer(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename, in place, the outer values that a subgraph reads; names that the subgraph defines itself hide outer names."""
    defined = defined_names(graph)
    outer = {old: new for old, new in names.items() if old not in defined}
    for node in graph.node:
        node.input[:] = [outer.get(name, name) for name in node.input]
        for inner in subgraphs(node):
            rename_outer(inner, outer)
    for value in graph.output:
        value.name = outer.get(value.name, value.name)


def rename(node: onnx.NodeProto, operands: Mapping[str, str], results: Mapping[str, str]) -> None:
    """Rename a node's operands (captured ones too) and results, in place."""
    node.input[:] = [operands.get(name, name) for name in node.input]
    node.output[:] = [results.get(name, name) for name in node.output]
    for graph in subgraphs(node):
        rename_outer(graph, operands)


def opaque(call: Call, types: Sequence[TensorType]) -> list[Node | None]:
    """Return the results of the node kept as it is; None for results without a name."""
    state, proto = call.state, onnx.NodeProto()
    proto.CopyFrom(call.node)
    embed_external(tensors_inside(proto), state.folder)
    names = list(dict.fromkeys(name for name in (*proto.input, *captured_names(proto)) if name))
    results = {name: result_name(index) for index, name in enumerate(proto.output) if name}
    rename(proto, {name: operand_name(index) for index, name in enumerate(names)}, results)
    proto.ClearField("doc_string")
    proto.ClearField("metadata_props")
    proto.name = call.label if is_random(call.node) else ""
    described = tuple(_described(type) for type in types)
    node = make("Opaque", [state.values[name] for name in names],
                attributes(onnx=proto.SerializeToString(deterministic=True), results=described), TUPLE)
    state.came_from(node, call.label)
    return [
        state.came_from(make("OpaqueOutput", (node,), attributes(index=index), type), call.label) if name else None
        for index, (name, type) in enumerate(zip(proto.output, types, strict=True))
    ]


def _described(type: TensorType) -> AttributeValue:
    """Return a type as an attribute: (element type, sizes), without sizes when even the rank is unknown."""
    return (type.dtype,) if type.shape is None else (type.dtype, type.shape)
