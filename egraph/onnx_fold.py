"""Compute what depends on constants alone: every constant subgraph becomes one Constant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from egraph.exporter import export, save
from egraph.ir import Graph, Node, attributes, make, rewrite, walk
from egraph.onnx_export.build import opaque_proto
from egraph.onnx_export.store import total_bytes
from egraph.onnx_import.infer import is_random
from egraph.onnx_types import array_type, is_tensor, tensor_digest

IN_MEMORY_BYTES = 256 << 20
BATCH_BYTES = 32 << 20


def fold_constants(graph: Graph) -> Graph:
    """Return the graph with every subgraph of constants computed once by onnxruntime (all with one thread: deterministic)."""
    constant: set[Node] = set()
    frontier: dict[Node, None] = {}
    for node in walk(graph.roots):
        if _computable(node, constant):
            constant.add(node)
        else:
            frontier |= dict.fromkeys(operand for operand in node.inputs if operand in constant and operand.op != "Constant")
    frontier |= dict.fromkeys(node for node in graph.roots if node in constant and node.op != "Constant")
    wanted = [node for node in frontier if node.op != "Opaque"]
    if not wanted:
        return graph
    tensors = dict(graph.tensors)
    folded: dict[Node, Node] = {}
    for node, array in evaluate_constants(graph, wanted).items():
        digest = tensor_digest(array)
        tensors.setdefault(digest, array)
        folded[node] = make("Constant", (), attributes(digest=digest), array_type(array))

    def change(node: Node, operands: tuple[Node, ...]) -> Node:
        return folded[node] if node in folded else make(node.op, operands, node.attributes, node.type)

    new = rewrite(graph.roots, change)
    alive = set(walk(new[node] for node in graph.roots))
    digests = {node.string("digest") for node in alive if node.op == "Constant"}
    return replace(
        graph,
        outputs=tuple((name, new[node]) for name, node in graph.outputs),
        tensors={digest: array for digest, array in tensors.items() if digest in digests},
        origins={new[node]: names for node, names in graph.origins.items() if node in new and new[node] in alive},
        names={new[node]: name for node, name in graph.names.items() if node in new and new[node] in alive},
    )


def _computable(node: Node, constant: set[Node]) -> bool:
    """Return whether a node's value follows from constants (and can be one)."""
    if node.op == "Constant":
        return True
    if node.op in ("Input", "Placeholder") or not node.inputs or not all(operand in constant for operand in node.inputs):
        return False
    if node.op == "Opaque":
        return not is_random(opaque_proto(node))
    return is_tensor(node.type)


def evaluate_constants(graph: Graph, nodes: list[Node]) -> Mapping[Node, np.ndarray]:
    """Return the values of nodes that depend on constants alone, a few nodes at a time so that little memory is needed."""
    values: dict[Node, np.ndarray] = {}
    for batch in _batches(graph, nodes):
        values |= zip(batch, _run(graph, batch), strict=True)
    return values


def _batches(graph: Graph, nodes: list[Node]) -> Iterator[list[Node]]:
    """Yield nodes together until they and what they read take more than ``BATCH_BYTES``: opening a session takes longer than a run."""
    batch: list[Node] = []
    used: set[str] = set()
    size_bytes = 0
    for node in nodes:
        own = _used(node)
        more = sum(graph.tensors[digest].nbytes for digest in own - used) + (node.type.size_bytes if node.type.is_static else 0)
        if batch and size_bytes + more > BATCH_BYTES:
            yield batch
            batch, used, size_bytes = [], set(), 0
            more = sum(graph.tensors[digest].nbytes for digest in own)
        batch.append(node)
        used |= own
        size_bytes += more
    if batch:
        yield batch


def _used(node: Node) -> set[str]:
    return {n.string("digest") for n in walk((node,)) if n.op == "Constant"}


def _run(graph: Graph, nodes: list[Node]) -> list[np.ndarray]:
    import onnxruntime

    used = set[str]().union(*map(_used, nodes))
    outputs = tuple((f"value{number}", node) for number, node in enumerate(nodes))
    part = Graph("constants", (), outputs, {digest: graph.tensors[digest] for digest in sorted(used)}, context=graph.context)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if total_bytes(dict(part.tensors)) <= IN_MEMORY_BYTES:
        session = onnxruntime.InferenceSession(export(part).SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(value) for value in session.run(None, {})]
    with TemporaryDirectory() as folder:
        save(part, Path(folder) / "constants.onnx")
        session = onnxruntime.InferenceSession(str(Path(folder) / "constants.onnx"), options, providers=["CPUExecutionProvider"])
        return [np.asarray(value) for value in session.run(None, {})]
