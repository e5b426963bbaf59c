"""Sizes of the model's inputs: sizes that the model fixes, sizes that ``--shape`` gives instead, and unknown sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from egraph.errors import ModelError
from egraph.onnx.importer.order import graphs_inside
from egraph.onnx.types import from_proto, is_tensor
from egraph.tensor import Dim, Node, TensorType

UNKNOWN_SIZES = "what has unknown sizes is left to onnxruntime; to optimise it, give numbers for the names in "


def input_types(values: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorType]:
    """Return every input's type; equal size names mean equal sizes in all inputs."""
    stated = {value.name: from_proto(value.type, value.name) for value in values}
    for name in shapes:
        if name not in stated:
            raise ModelError(f"the model has no input {name!r}", where="--shape",
                             fix=f"use one of its inputs: {', '.join(stated) or '(it has none)'}")
    bound: dict[str, tuple[int, str]] = {}
    for name, sizes in shapes.items():
        _bind(name, stated[name], tuple(sizes), bound)
    return {name: TensorType(type.dtype, _sizes(type, shapes.get(name), bound)) for name, type in stated.items()}


def _bind(name: str, type: TensorType, sizes: tuple[int, ...], bound: dict[str, tuple[int, str]]) -> None:
    """Check sizes given for an input against its type and bind the names of its dynamic sizes."""
    text, where = ",".join(map(str, sizes)), f"--shape {name}:{','.join(map(str, sizes))}"
    if not is_tensor(type):
        raise ModelError(f"the input {name!r} is a {type.dtype}, which has no sizes", where=where, fix=f"drop --shape {name}:{text}")
    if any(size < 0 for size in sizes):
        raise ModelError("a size is negative", where=where, fix="give sizes of at least 0")
    if type.shape is None:
        return
    flag = f"--shape {name}:{','.join(map(str, type.shape))}" + " with numbers for names" * (not type.is_static)
    if len(sizes) != len(type.shape):
        raise ModelError(f"the input {name!r} has {len(type.shape)} axes, not {len(sizes)}", where=where,
                         fix=f"give {flag}")
    for fixed, size in zip(type.shape, sizes, strict=True):
        if isinstance(fixed, str) and bound.setdefault(fixed, (size, where))[0] != size:
            raise ModelError(f"the size {fixed!r} is given as {bound[fixed][0]} and as {size}", where=f"{bound[fixed][1]} {where}",
                             fix=f"give {fixed!r} the same size in all inputs")


def _sizes(type: TensorType, override: tuple[int, ...] | None, bound: Mapping[str, tuple[int, str]]) -> tuple[Dim, ...] | None:
    if override is not None:
        return override
    if type.shape is None:
        return None
    return tuple(bound[size][0] if isinstance(size, str) and size in bound else size for size in type.shape)


def shape_hints(inputs: Sequence[Node]) -> tuple[str, ...]:
    """Return one line with the flags that fix the sizes that are still unknown; nothing if all are known."""
    flags = []
    for node in inputs:
        if is_tensor(node.type) and not node.type.is_static:
            sizes = "..." if node.type.shape is None else ",".join(map(str, node.type.shape))
            flags.append(f"--shape {node.string('name')}:{sizes}")
    return (UNKNOWN_SIZES + " ".join(flags),) if flags else ()


def give_sizes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Give inputs sizes that differ from the file's, in place; return the changes as text.

    The file's types of all other values hold for the old sizes: they are dropped and inferred again.
    """
    changes = []
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes = shapes.get(value.name)
        if sizes is None or len(sizes) != len(dims) or any(size < 0 for size in sizes):
            continue  # it is refused when the sizes are bound
        if any(dim.HasField("dim_value") and dim.dim_value != size for dim, size in zip(dims, sizes, strict=True)):
            before = ",".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
            changes.append(f"the input {value.name!r} has the sizes {','.join(map(str, sizes))} in place of the file's {before}")
            for dim, size in zip(dims, sizes, strict=True):
                dim.dim_value = size
    if changes:
        for graph in graphs_inside(model.graph):
            graph.ClearField("value_info")
            for value in (*graph.output, *(graph.input if graph is not model.graph else ())):
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")
    return tuple(changes)
