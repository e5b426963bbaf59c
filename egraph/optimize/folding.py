"""Compute once, ahead of time, what a program derives from its weights alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from egraph.onnx.fold import evaluate_constants
from egraph.onnx.types import array_type, tensor_digest
from egraph.tensor import LEAVES, Graph, Node, Program, attributes, make, rewrite, walk


class Folder:
    """Folds programs over the same source graph; a weight expression that several of them need is computed once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._folded: dict[Node, Node] = {}
        self._tensors: dict[str, np.ndarray] = dict(graph.tensors)

    def fold(self, program: Program) -> Program:
        """Return the program with every operand that is made of weights alone replaced by one constant."""
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
        new = rewrite(kept, lambda old, operands: folded.get(old) or make(old.op, operands, old.attributes, old.type))
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
