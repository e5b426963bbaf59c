"""Sizes given for inputs in place of those that the file fixes, and initializers that are made inputs by giving their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from egraph.onnx.importer.order import subgraphs


def give_sizes(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Give inputs other sizes than the file fixes, in place; return what was changed, in words.

    What the file says of all other values was worked out at the old sizes: it is forgotten, and inferred anew.
    """
    changes = []
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        sizes = shapes.get(value.name)
        if sizes is None or len(sizes) != len(dims) or any(size < 0 for size in sizes):
            continue  # refused where the sizes are bound
        if any(dim.HasField("dim_value") and dim.dim_value != size for dim, size in zip(dims, sizes, strict=True)):
            before = ",".join(str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in dims)
            changes.append(f"the input {value.name!r} has the sizes {','.join(map(str, sizes))} in place of the file's {before}")
            for dim, size in zip(dims, sizes, strict=True):
                dim.dim_value = size
    if changes:
        for graph in _all_graphs(model.graph):
            graph.ClearField("value_info")
            for value in (*graph.output, *(graph.input if graph is not model.graph else ())):
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")
    return tuple(changes)


def _all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all that its nodes hold."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _all_graphs(inner)
