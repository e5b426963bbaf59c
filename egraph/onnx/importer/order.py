"""Sort a graph's nodes into running order, and report why that is impossible."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from egraph.errors import ModelError


def label(node: onnx.NodeProto, position: int) -> str:
    """Return the node's name, or ``op_type_position`` if it has none."""
    return str(node.name) or f"{node.op_type}_{position}"


def captured_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """Return the outer values that a node's subgraphs read, sorted."""
    names: set[str] = set()
    for graph in subgraphs(node):
        names |= _free_names(graph)
    return tuple(sorted(names))


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs among a node's attributes."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else list(a.graphs))]


def nodes_inside(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node and all nodes in its subgraphs."""
    yield node
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from nodes_inside(inner)


def graphs_inside(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs_inside(inner)


def initial_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of inputs and initialisers."""
    return {v.name for v in graph.input} | {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}


def defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return every name that a graph defines."""
    return initial_names(graph) | {name for node in graph.node for name in node.output}


def _free_names(graph: onnx.GraphProto) -> set[str]:
    used = {v.name for v in graph.output}
    for node in graph.node:
        used |= set(node.input)
        for inner in subgraphs(node):
            used |= _free_names(inner)
    return {name for name in used - defined_names(graph) if name}


def used_names(graph: onnx.GraphProto) -> frozenset[str]:
    """Return every tensor name that a node of the graph or one of its outputs reads."""
    return frozenset({name for node in graph.node for name in (*node.input, *captured_names(node))} | {v.name for v in graph.output})


def ordered(graph: onnx.GraphProto) -> list[tuple[int, onnx.NodeProto]]:
    """Return (position in the file, node) with operands before users.

    Raise ModelError for a name defined twice, a tensor that nothing defines, and a cycle (naming its nodes).
    """
    producer: dict[str, int] = {}
    initial = initial_names(graph)
    for position, node in enumerate(graph.node):
        for name in node.output:
            if name and (name in producer or name in initial):
                raise ModelError(f"the tensor {name!r} is defined twice", where=f"node {label(node, position)!r}",
                                 fix="give every node output its own name (export the model again)")
            producer[name] = position
    needs: list[set[int]] = []
    for position, node in enumerate(graph.node):
        names = [name for name in (*node.input, *captured_names(node)) if name and name not in initial]
        for name in names:
            if name not in producer:
                raise ModelError(f"the tensor {name!r} is used but nothing defines it", where=f"node {label(node, position)!r}",
                                 fix="export the model again, or add the tensor as an input or initializer")
        needs.append({producer[name] for name in names})
    for value in graph.output:
        if value.name not in producer and value.name not in initial:
            raise ModelError(f"the graph output {value.name!r} is not computed by any node", where="graph outputs",
                             fix="export the model again")
    return [(position, graph.node[position]) for position in _topological(graph, needs)]


def _topological(graph: onnx.GraphProto, needs: list[set[int]]) -> list[int]:
    if all(operand < position for position, operands in enumerate(needs) for operand in operands):
        return list(range(len(needs)))
    order: list[int] = []
    state = [0] * len(needs)  # 0 new, 1 on the path, 2 done
    for start in range(len(needs)):
        stack = [(start, False)]
        while stack:
            position, leaving = stack.pop()
            if leaving:
                state[position] = 2
                order.append(position)
            elif state[position] == 0:
                state[position] = 1
                stack.append((position, True))
                for operand in sorted(needs[position], reverse=True):
                    if state[operand] == 1:
                        raise ModelError("the graph has a cycle", where=_cycle(graph, needs, operand), fix="export the model again")
                    if state[operand] == 0:
                        stack.append((operand, False))
    return order


def _cycle(graph: onnx.GraphProto, needs: list[set[int]], start: int) -> str:
    """Return the names along one shortest cycle through ``start``, in the direction of the data."""
    came: dict[int, int] = {}
    frontier = [start]
    while start not in came and frontier:
        reached = []
        for position in frontier:
            for operand in sorted(needs[position]):
                if operand not in came:
                    came[operand] = position
                    reached.append(operand)
        frontier = reached
    path = [start]
    while start in came and (len(path) == 1 or path[-1] != start):
        path.append(came[path[-1]])
    return " -> ".join(label(graph.node[position], position) for position in path)
