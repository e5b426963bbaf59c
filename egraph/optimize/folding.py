"""Compute the expressions of a program over its weights once, ahead of time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from egraph.onnx.exporter import parts
from egraph.onnx.importer.infer import open_plainly
from egraph.onnx.types import array_type, tensor_digest
from egraph.tensor import LEAVES, Graph, Node, Program, attributes, make, rewrite, walk
from runtime.cores import usable_cores

BATCH_BYTES = 32 << 20
MOST_TOGETHER = 8
"""Largest number of sessions that compute constants in parallel; more would be bound by memory."""


class Folder:
    """Folds programs over the same source graph; an expression over weights that several programs need is computed once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._folded: dict[Node, Node] = {}
        self._tensors: dict[str, np.ndarray] = dict(graph.tensors)

    def fold(self, program: Program) -> Program:
        """Return the program with every operand that depends only on weights replaced by one constant."""
        read = dict.fromkeys([node for kernel in program.kernels for node in kernel.inputs] + list(program.graph.roots))
        made = {kernel.output for kernel in program.kernels}
        unfolded = [node for node in read if node.op not in LEAVES and node not in made and node not in self._folded]
        if unfolded:
            graph = replace(self._graph, outputs=tuple((f"constant{i}", node) for i, node in enumerate(unfolded)))
            for node, array in evaluate_constants(graph, unfolded).items():
                digest = tensor_digest(array)
                self._tensors.setdefault(digest, array)
                self._folded[node] = make("Constant", (), attributes(digest=digest), array_type(array))
        folded = self._folded
        kept = [*program.graph.roots, *read, *made]
        moved = program.graph.named_moves(frozenset(walk(made)))
        new = rewrite((*kept, *moved), lambda old, operands: folded.get(old) or make(old.op, operands, old.attributes, old.type))
        kernels = tuple(replace(k, inputs=tuple(new[node] for node in k.inputs), output=new[k.output]) for k in program.kernels)
        alive = {node.string("digest") for node in walk(new[node] for node in kept) if node.op == "Constant"}
        return replace(program, graph=_rebuilt(program.graph, new, alive, self._tensors), kernels=kernels)


def _rebuilt(graph: Graph, new: Mapping[Node, Node], alive: set[str], tensors: Mapping[str, np.ndarray]) -> Graph:
    outputs = tuple((name, new[node]) for name, node in graph.outputs)
    return replace(
        graph,
        outputs=outputs,
        tensors={digest: tensors[digest] for digest in sorted(alive)},
        origins={new[node]: names for node, names in graph.origins.items() if node in new},
        names={new[node]: name for node, name in graph.names.items() if node in new},
    )


def evaluate_constants(graph: Graph, nodes: list[Node]) -> Mapping[Node, np.ndarray]:
    """Return the values of nodes that depend only on constants. Each core computes a few nodes at a time, to need little memory."""
    batches = list(_batches(graph, nodes))
    with ThreadPoolExecutor(min(len(batches), MOST_TOGETHER, usable_cores()) or 1) as pool:
        arrays = pool.map(lambda batch: _run(graph, batch), batches)
        return {node: array for batch, some in zip(batches, arrays, strict=True) for node, array in zip(batch, some, strict=True)}


def _batches(graph: Graph, nodes: list[Node]) -> Iterator[list[Node]]:
    """Yield nodes in batches of up to ``BATCH_BYTES`` with their operands, because opening a session takes longer than a run."""
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
    used = set[str]().union(*map(_used, nodes))
    outputs = tuple((f"value{number}", node) for number, node in enumerate(nodes))
    part = Graph("constants", (), outputs, {digest: graph.tensors[digest] for digest in sorted(used)}, context=graph.context)
    return list(map(np.asarray, open_plainly(*parts(part)).run(None, {})))
