"""Compute what depends on constants alone, by onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from egraph.onnx.exporter import export, save
from egraph.onnx.exporter.store import total_bytes
from egraph.onnx.importer.infer import plain_options
from egraph.tensor import Graph, Node, walk

IN_MEMORY_BYTES = 256 << 20
BATCH_BYTES = 32 << 20


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
        digests = _used(node)
        more = sum(graph.tensors[digest].nbytes for digest in digests - used) + (node.type.size_bytes if node.type.is_static else 0)
        if batch and size_bytes + more > BATCH_BYTES:
            yield batch
            batch, used, size_bytes = [], set(), 0
            more = sum(graph.tensors[digest].nbytes for digest in digests)
        batch.append(node)
        used |= digests
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
    options = plain_options()
    if total_bytes(dict(part.tensors)) <= IN_MEMORY_BYTES:
        session = onnxruntime.InferenceSession(export(part).SerializeToString(), options, providers=["CPUExecutionProvider"])
        return [np.asarray(value) for value in session.run(None, {})]
    with TemporaryDirectory() as folder:
        save(part, Path(folder) / "constants.onnx")
        session = onnxruntime.InferenceSession(str(Path(folder) / "constants.onnx"), options, providers=["CPUExecutionProvider"])
        return [np.asarray(value) for value in session.run(None, {})]
