"""Inputs that are fixed to a value and become constants of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from egraph.errors import ModelError
from egraph.onnx.integer_ranges import compared_numbers
from egraph.onnx.types import opaque_proto
from egraph.tensor import Graph, Node, walk

WHERE = "--constant"
TRUTH = {"true": True, "false": False, "1": True, "0": False}


def fix_inputs(
    model: onnx.ModelProto, values: Mapping[str, Sequence[str]], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Turn inputs into constants, in place. One number fills the whole input; ``shapes`` has sizes that the model leaves open.

    Raise ModelError if there is no such input, or it cannot have such a value.
    """
    for name, numbers in values.items():
        given = next((each for each in model.graph.input if each.name == name), None)
        if given is None:
            initialised = {tensor.name for tensor in model.graph.initializer}
            names = ", ".join(each.name for each in model.graph.input if each.name not in initialised)
            raise ModelError(f"the model has no input {name!r}", where=WHERE, fix=f"use one of its inputs: {names}")
        value = numpy_helper.from_array(_array(given, numbers, shapes), name)
        for initial in [tensor for tensor in model.graph.initializer if tensor.name == name]:
            model.graph.initializer.remove(initial)
        model.graph.input.remove(given)
        model.graph.node.insert(0, helper.make_node("Constant", [], [name], value=value))


def constant_hints(graph: Graph) -> tuple[str, ...]:
    """Return one line with the ``--constant`` flags that decide which branches are taken; empty if inputs alone decide none."""
    deciding: dict[Node, None] = {}
    for node in walk(graph.roots):
        if node.op == "Opaque" and (proto := opaque_proto(node)).op_type == "If" and proto.domain == "":
            leaves = [leaf for leaf in walk(node.inputs[:1]) if not leaf.inputs and leaf.op != "Constant"]
            if all(leaf.op == "Input" and leaf.type.is_static and leaf.type.elements == 1 for leaf in leaves):
                deciding |= dict.fromkeys(leaves)
    if not deciding:
        return ()
    numbers = compared_numbers(graph.roots, graph.tensors)
    flags = (f"{WHERE} {leaf.string('name')}={numbers[leaf][0] if leaf in numbers else 'NUMBER'}" for leaf in deciding)
    return (f"onnxruntime runs the branches that the model chooses by its inputs; to optimise one of them: {' '.join(flags)}",)


def _array(given: onnx.ValueInfoProto, numbers: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> np.ndarray:
    """Return the value of an input, in its type and sizes."""
    kind = given.type.tensor_type
    if not given.type.HasField("tensor_type") or kind.elem_type == onnx.TensorProto.STRING:
        raise ModelError(f"the input {given.name!r} is no tensor of numbers", where=WHERE, fix="leave it an input")
    fixed = tuple(dim.dim_value if dim.HasField("dim_value") else None for dim in kind.shape.dim) if kind.HasField("shape") else None
    sizes = shapes.get(given.name, fixed)
    if sizes is None or None in sizes:
        what = f"the input {given.name!r} has sizes that the model leaves open"
        raise ModelError(what, where=WHERE, fix=f"give them: --shape {given.name}:SIZES")
    shape = tuple(size for size in sizes if size is not None)
    dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
    flat = np.array([_number(given.name, text, dtype) for text in numbers], dtype)
    if flat.size != 1 and flat.size != np.prod(shape, dtype=np.int64):
        what = f"the input {given.name!r} has {int(np.prod(shape, dtype=np.int64))} elements, and {flat.size} numbers are given"
        raise ModelError(what, where=WHERE, fix="give one number for all of them, or one for each, separated by commas")
    return np.full(shape, flat[0], dtype) if flat.size == 1 else flat.reshape(shape)


def _number(name: str, text: str, dtype: np.dtype) -> bool | int | float:
    try:
        if dtype.kind == "b":
            return TRUTH[text.lower()]
        if dtype.kind in "iu":
            number = int(text)
            limits = np.iinfo(dtype)
            if not limits.min <= number <= limits.max:
                raise ValueError
            return number
        return float(text)
    except (KeyError, ValueError) as error:
        what, example = f"{text!r} is no {dtype.name}, as the input {name!r} is", "true" if dtype.kind == "b" else "1"
        raise ModelError(what, where=WHERE, fix=f"give numbers of that type: {WHERE} {name}={example}") from error
