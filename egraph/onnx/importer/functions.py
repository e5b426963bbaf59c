"""Operators that ONNX defines by others: the standard's function is read in the operator's place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import onnx

from egraph.onnx.importer.order import captured_names, subgraphs
from egraph.onnx.importer.state import Call, Importing, usable
from egraph.onnx.types import to_proto


def _attention_differs(call: Call) -> bool:
    """Return whether the scores are an output, which differ at masked positions, or a factor has no finite root."""
    factors = [float(call.attribute(name, 1.0)) for name in ("scale", "softcap")]
    return any(name in call.state.used for name in call.node.output[3:]) or not all(0 <= factor < math.inf for factor in factors)


DIFFERS: Mapping[str, Callable[[Call], bool]] = {"Attention": _attention_differs}
"""Tests by operator for nodes that onnxruntime computes differently from the operator's function in the standard."""


def body_of(call: Call) -> tuple[Importing, onnx.FunctionProto] | None:
    """Return the state in which an operator's function is read, and the function; None if the standard has none."""
    node, state = call.node, call.state
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type):
        return None
    if not all(operand is None or usable(operand.type) for operand in call.operands):
        return None
    if node.op_type in DIFFERS and DIFFERS[node.op_type](call):
        return None
    try:
        function = _function(call, onnx.defs.get_schema(node.op_type, call.opset))
    except ValueError:  # the node lacks an attribute or operand that its function reads
        return None
    if function is None:
        return None
    values = {name: value for name, value in zip(function.input, call.operands, strict=False) if value is not None}
    opsets = {**state.opsets, **{entry.domain: entry.version for entry in function.opset_import}}
    used = frozenset({name for inner in function.node for name in (*inner.input, *captured_names(inner))})
    used |= {formal for formal, name in zip(function.output, node.output, strict=False) if name in state.used}
    return replace(state, opsets=opsets, declared={}, values=values, lazy={}, used=used), function


def _function(call: Call, schema: onnx.defs.OpSchema) -> onnx.FunctionProto | None:
    """Return the function of the operator as this node uses it, with its attributes inserted."""
    node = onnx.NodeProto()
    node.CopyFrom(call.node)
    given = {attribute.name for attribute in node.attribute}
    node.attribute.extend(kind.default_value for name, kind in schema.attributes.items() if name not in given and kind.default_value.name)
    if schema.has_function:
        data = schema.get_function_with_opset_version(_version(schema.function_opset_versions, call.opset))
    elif schema.has_context_dependent_function:
        types = [(onnx.TypeProto() if value is None else to_proto(value.type)).SerializeToString() for value in call.operands]
        version = _version(schema.context_dependent_function_opset_versions, call.opset)
        data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
    else:
        return None
    function = data if isinstance(data, onnx.FunctionProto) else onnx.FunctionProto.FromString(data)
    values = {attribute.name: attribute for attribute in node.attribute}
    for inner in function.node:
        _put_in(inner, values)
    return function


def _version(versions: list[int], opset: int) -> int:
    """Return the newest version that is no newer than the model's opset, else the oldest: its nodes have the meaning of that version."""
    return max((version for version in versions if version <= opset), default=min(versions))


def _put_in(node: onnx.NodeProto, values: Mapping[str, onnx.AttributeProto]) -> None:
    """Replace the attributes that refer to attributes of the function by their values, in subgraphs too, in place."""
    for graph in subgraphs(node):
        for inner in graph.node:
            _put_in(inner, values)
    attributes = list(node.attribute)
    node.ClearField("attribute")
    for attribute in attributes:
        if not attribute.ref_attr_name:
            node.attribute.append(attribute)
        elif attribute.ref_attr_name in values:
            node.attribute.append(values[attribute.ref_attr_name])
            node.attribute[-1].name = attribute.name
