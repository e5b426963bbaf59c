"""Simulate programs whose products round their operands, in onnxruntime, by one model with a switch for each rounding.

Nothing is compiled. With all switches on, the simulation gives the error of the compiled program, except for the order of its sums. With
one switch on, it gives how far that product alone moves the outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from egraph.errors import EinsatError
from egraph.optimize.check_noise import open_exported, relative_error
from egraph.optimize.kernels import quantised_operand, rounded_operand
from egraph.optimize.rehearsal import Sample
from egraph.tensor import ELEMENT_TYPES, PLAIN, Graph, Kernel, Node, Program, TensorType, attributes, make, numpy_dtype, rewrite
from egraph.tensor.ops import OPS
from egraph.tensor.storage import MOVING
from lower.cost.rounding import MEASURED_IN, NEARLY_EXACT, ROUNDED_OPERATORS, UNIT_ROUNDOFF
from lower.quantised import PRECISION as IN_BYTES
from lower.quantised import Scale, is_quantised, kernel_scale
from runtime import Session
from runtime.errors import ExecutionError

SWITCH, WEIGHTS = "einsat.switch.", "einsat.weights."
SWITCHED_SHARE = 0.3
"""Largest part of the remaining time that is spent on measuring how far each kernel moves the outputs."""


def rounding_kernels(program: Program) -> list[Kernel]:
    """Return the kernels that round their operands."""
    return [kernel for kernel in program.kernels if kernel.implementation.precision != PLAIN]


def simulated_kernels(program: Program) -> list[Kernel]:
    """Return the rounding kernels that are simulated; the others are nearly exact."""
    return [kernel for kernel in rounding_kernels(program) if kernel.implementation.precision not in NEARLY_EXACT]


def program_error(place: str, samples: Sequence[Sample], threads: int, on: str | None = None) -> float:
    """Return the largest error of a compiled program's outputs, relative to the largest output; infinity if it does not run.

    ``on`` is the device that the program is for.
    """
    largest = 0.0
    try:
        with Session(place, threads=threads, on=on) as session:
            for feeds, expected in samples:
                largest = max(largest, _difference(expected, session.run(None, feeds)))
    except (EinsatError, ExecutionError):
        return math.inf
    return largest


def _difference(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest relative error of float outputs; NaN counts as an infinite error."""
    errors = [relative_error(want, got) for want, got in zip(expected, actual, strict=True) if np.asarray(want).dtype.kind == "f"]
    return max((error if math.isfinite(error) else math.inf for error in errors), default=0.0)


class Simulation:
    """A program in onnxruntime with a switch for each rounding product; returns how far outputs move, relative to the largest.

    Constants of products in bytes are not switched: their rounding is assumed to move outputs as far as the other operand's.
    """

    def __init__(self, program: Program, inputs: Sequence[Mapping[str, Any]], threads: int) -> None:
        self.nodes = list(dict.fromkeys(node for kernel in simulated_kernels(program) for node in products(kernel)))
        self._scales = {node: kernel_scale(kernel) for kernel in program.kernels if is_quantised(kernel) for node in products(kernel)}
        switches = switched(program.graph, self.nodes, self._scales)
        self._weights, self._inputs = switches.weights, inputs
        self._session = open_exported(switches.graph, threads, optimise=False)
        self._names = {port.name for port in self._session.get_inputs()}
        self._exact = [self._outputs((), feeds) for feeds in inputs]
        by_input = [self._error(range(len(self.nodes)), at) for at in range(len(inputs))]
        self.together = max(by_input)
        """How far all products together move the outputs, on the inputs where this is largest."""
        self._worst = by_input.index(self.together)

    def error(self, on: Collection[Node]) -> float:
        """Return how far the outputs move if these products round, on the inputs where this is largest."""
        switched_on = [i for i, node in enumerate(self.nodes) if node in on]
        return max(self._error(switched_on, at) for at in range(len(self._inputs)))

    def contributions(self, time_left: Callable[[], float] = lambda: math.inf) -> dict[Node, float]:
        """Return how far the outputs move if one product alone rounds, on the inputs where all together move them most.

        If there is no time for each product, neighbours are switched together and share their effect.
        """
        nodes, before_seconds = self.nodes, time_left()
        self._error((), self._worst)
        run_seconds = before_seconds - time_left() if math.isfinite(before_seconds) else 0.0
        most = max(1, int(SWITCHED_SHARE * time_left() / run_seconds)) if run_seconds > 0 else len(nodes)
        together = -(-len(nodes) // most)
        bytes_share = UNIT_ROUNDOFF[MEASURED_IN] / UNIT_ROUNDOFF[IN_BYTES]
        moved: dict[Node, float] = {}
        for start in range(0, len(nodes), together):
            group = range(start, min(start + together, len(nodes)))
            moved |= dict.fromkeys((nodes[i] for i in group), self._error(group, self._worst) / math.sqrt(len(group)))
        return {node: error * math.sqrt(2) * bytes_share if node in self._scales else error for node, error in moved.items()}

    def _error(self, on: Sequence[int], at: int) -> float:
        return _difference(self._exact[at], self._outputs(on, self._inputs[at]))

    def _outputs(self, on: Sequence[int], feeds: Mapping[str, Any]) -> Sequence[Any]:
        states = {f"{SWITCH}{i}": np.array([i in on]) for i in range(len(self.nodes))}
        weights = {name: _coarser(value) if i in on else value for i, name, value in self._weights}
        given = {name: value for name, value in {**feeds, **states, **weights}.items() if name in self._names}
        results: Sequence[Any] = self._session.run(None, given)
        return results


def _coarser(weights: np.ndarray) -> np.ndarray:
    """Return weights rounded to ``MEASURED_IN``."""
    rounded: np.ndarray = weights.astype(numpy_dtype(ELEMENT_TYPES[MEASURED_IN])).astype(weights.dtype)
    return rounded


def products(kernel: Kernel) -> list[Node]:
    """Return the products and convolutions that a kernel computes."""
    contractions, stack = [], [kernel.output]
    seen = set(kernel.inputs)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
            contractions += [node] if node.op in ROUNDED_OPERATORS else []
    return contractions


@dataclass(frozen=True)
class Switched:
    """A graph in which some products have switches: inputs that make them round their operands."""

    graph: Graph
    weights: tuple[tuple[int, str, np.ndarray], ...]
    """Constant operands, which are inputs here, each of one product: its number, the name, and the value before rounding.

    They are inputs because rounding all weights in each run, to use a few of them, would take longer than the run.
    """


def switched(graph: Graph, nodes: Sequence[Node], scales: Mapping[Node, Scale] = {}) -> Switched:
    """Return the graph with a switch for each of these products that rounds its operands; products with ``scales`` quantise instead."""
    number = {node: i for i, node in enumerate(nodes)}
    switches = tuple(make("Input", (), attributes(name=f"{SWITCH}{i}"), TensorType("bool", (1,))) for i in range(len(nodes)))
    weights: dict[Node, tuple[int, str, np.ndarray]] = {}
    roots = list(dict.fromkeys(graph.roots))

    def coarser(product: Node, position: int, operand: Node) -> Node:
        at, constant = number[product], moved_constant(operand)
        if product in scales:
            if constant is not None:
                return operand
            return make("Where", (switches[at], quantised_operand(operand, scales[product]), operand), (), operand.type)
        if constant is not None:
            leaf = make("Input", (), attributes(name=f"{WEIGHTS}{at}.{position}"), constant.type)
            weights[leaf] = at, leaf.string("name"), graph.tensors[constant.string("digest")]
            in_place = rewrite((operand,), lambda old, below: leaf if old is constant else make(old.op, below, old.attributes, old.type))
            return in_place[operand]
        return make("Where", (switches[at], rounded_operand(operand, MEASURED_IN), operand), (), operand.type)

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        if old in number:
            operands = tuple(coarser(old, i, new) if i < 2 else new for i, new in enumerate(operands))
        return make(old.op, operands, old.attributes, old.type)

    new = rewrite(roots, change)
    tensors = {**graph.tensors, **{node.string("digest"): value for scale in scales.values() for node, value in scale.constants.items()}}
    outputs = tuple((name, new[node]) for name, node in graph.outputs)
    inputs = (*graph.inputs, *switches, *weights)
    return Switched(replace(graph, inputs=inputs, outputs=outputs, tensors=tensors if scales else graph.tensors), tuple(weights.values()))


def moved_constant(node: Node) -> Node | None:
    """Return the constant that a value is, with its elements in any order, or None if it is computed."""
    while node.op != "Constant" and node.op in OPS and OPS[node.op].category in MOVING and len(node.inputs) == 1:
        (node,) = node.inputs
    return node if node.op == "Constant" else None
