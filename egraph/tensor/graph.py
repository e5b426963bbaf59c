"""Whole programs: a ``Graph`` of nodes with its weights, and a ``Program`` of kernels in running order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from egraph.tensor.implementation import Implementation
from egraph.tensor.node import Node

INVERTIBLE_MOVES = ("Transpose", "Reshape")
"""Operators that keep every element of their operand, each once."""


@dataclass(frozen=True)
class OnnxContext:
    """Data that opaque nodes need from the source model: opset versions and serialised model-local functions."""

    opsets: tuple[tuple[str, int], ...] = (("", 20),)
    functions: tuple[bytes, ...] = ()
    ir_version: int = 10


@dataclass(frozen=True)
class Graph:
    """A tensor program. ``tensors`` holds constants by the ``digest`` attribute of their ``Constant`` node
    (arrays may be memory-mapped); ``origins`` names the source nodes that each node stands for."""

    name: str
    inputs: tuple[Node, ...]
    outputs: tuple[tuple[str, Node], ...]
    tensors: Mapping[str, np.ndarray]
    origins: Mapping[Node, tuple[str, ...]] = field(default_factory=dict)
    context: OnnxContext = OnnxContext()
    names: Mapping[Node, str] = field(default_factory=dict)
    """Tensor names in the source model, for the values that had one. A program also names nodes that it does not compute: a value that
    the model has in another layout than the program is named at the moves (``INVERTIBLE_MOVES``) that produce it."""

    @property
    def roots(self) -> tuple[Node, ...]:
        return tuple(node for _, node in self.outputs)

    def named_moves(self, values: Collection[Node]) -> list[Node]:
        """Return the named nodes that are these values in other layouts."""
        return [node for node in self.names if node not in values and _moved(node) in values]


def _moved(node: Node) -> Node:
    """Return the value that a node holds in another layout; the node itself if it is not a move."""
    while node.op in INVERTIBLE_MOVES:
        (node,) = node.inputs
    return node


@dataclass(frozen=True)
class Kernel:
    """One launch: ``fragment`` (over placeholders) applied to ``inputs`` yields ``output``.

    ``fragment`` alone decides cost and code; ``inputs[i]`` is bound to ``Placeholder(index=i)``.
    An opaque kernel's fragment is an ``Opaque`` node, its output has type ``tuple``.
    """

    fragment: Node
    inputs: tuple[Node, ...]
    output: Node
    implementation: Implementation
    rules: tuple[str, ...] = ()
    """Names of the rules that justify that the kernel computes its value of the input program."""
    cost_us: float = 0.0
    """The predicted time in microseconds."""
    steps: tuple[str, ...] = ()
    """The reasons that lead from the input program's node to the kernel's result, in order."""
    source_range: tuple[float, float] | None = None
    """The smallest and the largest number observed in the operand that a kernel in bytes quantises; None for all other kernels."""


@dataclass(frozen=True)
class Program:
    """A graph together with a partition into kernels, operands before users."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    cost_us: float
    rules: tuple[str, ...] = ()
    """Rules that justify the program, including those that joined values that no kernel computes."""
