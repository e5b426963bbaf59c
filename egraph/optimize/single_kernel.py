"""A program of one kernel on random operands, and the standard model that says what it must compute."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from egraph.onnx.integer_ranges import FLAGS, integer_ranges
from egraph.tensor import Graph, Implementation, Kernel, Node, Program, TensorType, attributes, make, placeholders, rewrite, walk
from runtime.feeds import PERIOD, FeedSpec, Values, random_array

NEVER_NEGATIVE = ("Exp", "Abs", "Sigmoid", "Softmax", "Softplus", "Sqrt")
DIVISORS = {"Sqrt": 0, "Log": 0, "Reciprocal": 0, "Pow": 0, "Div": 1}
"""Operators that are not defined, or badly conditioned, where this operand is near or below 0."""


def kernel_program(fragment: Node, implementation: Implementation, *, seed: int) -> Program:
    """Return a program of this one kernel, with random weights, to be measured."""
    ranges = integer_ranges((fragment,))
    values = leaf_values(fragment)
    generator = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    leaves: dict[Node, Node] = {}
    for leaf in placeholders(fragment):
        index = leaf.integer("index")
        if leaf.attribute("constant"):
            digest = f"random{index}"
            array = _drawn(leaf.type, generator, ranges.get(leaf, FLAGS), values[leaf])
            tensors[digest] = np.require(_scaled(array), requirements="C")  # of no axes stays so
            leaves[leaf] = make("Constant", (), attributes(digest=digest), leaf.type)
        else:
            leaves[leaf] = make("Input", (), attributes(name=f"x{index}"), TensorType(leaf.type.dtype, leaf.type.shape))
    root = rewrite((fragment,), lambda old, operands: leaves.get(old) or make(old.op, operands, old.attributes, old.type))[fragment]
    operands = tuple(leaves.values())
    inputs = tuple(node for node in operands if node.op == "Input")
    graph = Graph("kernel", inputs, (("y", root),), tensors)
    return Program(graph, (Kernel(fragment, operands, root, implementation),), 0.0)


def _drawn(type: TensorType, generator: np.random.Generator, interval: tuple[int, int], values: Values) -> np.ndarray:
    """Draw weights; of large ones a part, which is repeated: drawing takes longer than a kernel does."""
    low, high = interval
    is_whole = type.elements <= PERIOD or type.dtype == "string"
    shape = type.sizes if is_whole else (PERIOD,)
    drawn = random_array(type.dtype, shape, generator, bound=high + 1, values=values, low=low)
    return drawn if is_whole else np.resize(drawn, type.sizes)


def _scaled(array: np.ndarray) -> np.ndarray:
    """Scale weights as trained ones are, so that sums are of the size of their summands and no activation saturates."""
    if array.ndim < 2 or array.dtype.kind != "f":
        return array
    return (array / math.sqrt(max(1, math.prod(array.shape[1:])))).astype(array.dtype)


def leaf_values(fragment: Node) -> dict[Node, Values]:
    """Return how to draw each placeholder: away from 0 where only that keeps a root, logarithm or quotient meaningful.

    Exponents are whole: a power of what may be near 0 would magnify its rounding without bound.
    """
    critical: set[Node] = set()
    stack = [node.inputs[DIVISORS[node.op]] for node in walk((fragment,)) if node.op in DIVISORS]
    while stack:
        node = stack.pop()
        is_square = node.op == "Mul" and node.inputs[0] is node.inputs[1]
        if node not in critical and node.op not in NEVER_NEGATIVE and not is_square:
            critical.add(node)
            stack.extend(node.inputs)
    exponents = {leaf for node in walk((fragment,)) if node.op == "Pow" for leaf in walk(node.inputs[1:])}

    def values(leaf: Node) -> Values:
        return "whole" if leaf in exponents else "positive" if leaf in critical else "normal"

    return {node: values(node) for node in walk((fragment,)) if node.op == "Placeholder"}


def feed_specs(program: Program) -> tuple[FeedSpec, ...]:
    """Return what to draw for the inputs of a program of one kernel."""
    ranges = integer_ranges(program.graph.roots)
    (kernel,) = program.kernels
    values = leaf_values(kernel.fragment)
    drawn = {kernel.inputs[leaf.integer("index")]: value for leaf, value in values.items()}
    return tuple(
        FeedSpec(node.string("name"), node.type.dtype, node.type.sizes, high + 1, drawn.get(node, "normal"), low)
        for node in program.graph.inputs
        for low, high in [ranges.get(node, FLAGS)]
    )


def reference_graph(graph: Graph) -> Graph:
    """Return the graph with its constants as inputs, called by their digests: small, however large the weights are."""
    constants = sorted((node for node in walk(graph.roots) if node.op == "Constant"), key=lambda node: node.string("digest"))
    inputs = {node: make("Input", (), attributes(name=node.string("digest")), node.type) for node in constants}
    roots = list(dict.fromkeys(graph.roots))
    new = rewrite(roots, lambda old, operands: inputs.get(old) or make(old.op, operands, old.attributes, old.type))
    return replace(
        graph, inputs=(*graph.inputs, *inputs.values()), outputs=tuple((name, new[node]) for name, node in graph.outputs), tensors={}
    )  # fmt: skip
