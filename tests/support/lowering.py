"""Small graphs that are lowered without a search and compared with the float64 reference, for the tests of lowering."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from egraph.onnx.exporter import serialized
from egraph.tensor import (
    Candidate,
    ENode,
    FrozenEGraph,
    Graph,
    Kernel,
    Node,
    Program,
    Target,
    TensorType,
    attributes,
    bind,
    make,
    walk,
)  # fmt: skip
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.candidates import candidates
from lower.compile import CompileOptions, compile_program
from runtime.plan import Plan

SEED = 7


def float32(*shape: int) -> TensorType:
    return TensorType("float32", shape)


class Model:
    """A small graph under construction."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.inputs: list[Node] = []
        self.random = np.random.default_rng(SEED)

    def input(self, *shape: int) -> Node:
        node = make("Input", (), attributes(name=f"x{len(self.inputs)}"), float32(*shape))
        self.inputs.append(node)
        return node

    def weight(self, *shape: int) -> Node:
        digest = f"w{len(self.tensors)}"
        self.tensors[digest] = (self.random.standard_normal(shape) * 0.3).astype(np.float32)
        return make("Constant", (), attributes(digest=digest), float32(*shape))

    def conv(self, x: Node, outputs: int, kernel: int, *, layout: str = "NCHW", stride: int = 1, group: int = 1, bias: bool = True) -> Node:
        channels = x.type.sizes[1 if layout == "NCHW" else -1]
        y = apply(
            "Conv", x, self.weight(outputs, channels // group, kernel, kernel),
            strides=(stride,) * 2, pads=(kernel // 2,) * 4, dilations=(1, 1), group=group, layout=layout,
        )  # fmt: skip
        return apply("Add", y, self.weight(*((1, outputs, 1, 1) if layout == "NCHW" else (1, 1, 1, outputs)))) if bias else y

    def graph(self, *outputs: Node) -> Graph:
        return Graph("test", tuple(self.inputs), tuple((f"y{i}", node) for i, node in enumerate(outputs)), self.tensors)


def freeze(graph: Graph) -> tuple[FrozenEGraph, dict[int, Node]]:
    """Return the graph itself as an e-graph with one e-node in each class."""
    nodes = list(walk(graph.roots))
    number = {node: i for i, node in enumerate(reversed(nodes))}
    constants: set[int] = set()
    for node in nodes:
        if node.op == "Constant" or (node.inputs and all(number[i] in constants for i in node.inputs)):
            constants.add(number[node])
    classes = {number[n]: (ENode(n.op, n.attributes, tuple(number[i] for i in n.inputs)),) for n in nodes}
    named = {i: n for n, i in number.items()}
    types = {i: n.type for i, n in named.items()}
    return FrozenEGraph(classes, types, tuple(number[r] for r in graph.roots), frozenset(constants), named), named


def choose(
    graph: Graph, prefer: str, supports: Callable[[Node], str | None] | None = None, *, target: Target | None = None
) -> Program:
    """Cover the graph top-down: with views first, then the largest candidate of the preferred implementation, then the smallest one."""
    frozen, nodes = freeze(graph)
    laid = candidates(frozen, target, supports=supports)

    def rank(one: Candidate) -> tuple[bool, bool, int]:
        preferred = one.implementation.text.startswith(prefer)
        return not one.implementation.is_view, not preferred, -len(one.covered) if preferred else len(one.covered)

    kernels: dict[int, Kernel] = {}

    def compute(number: int) -> None:
        if number in kernels or number not in laid:
            return
        one = min(laid[number], key=rank)
        for operand in one.operands:
            compute(operand)
        operands = tuple(nodes[i] for i in one.operands)
        assert bind(one.fragment, list(operands)) is nodes[number]
        kernels[number] = Kernel(one.fragment, operands, nodes[number], one.implementation)

    for root in frozen.roots:
        compute(root)
    return Program(graph, tuple(kernels.values()), 0.0)


def check(graph: Graph, program: Program, folder: Path, threads: int = 1) -> Plan:
    """Compile and run a program, and compare it with the reference."""
    from runtime import Session

    plan = compile_program(program, folder, CompileOptions(threads=threads, export_graph=serialized))
    random = np.random.default_rng(SEED)
    feeds = {n.string("name"): random.standard_normal(n.type.sizes).astype(np.float32) for n in graph.inputs}
    leaves = {n: feeds[n.string("name")] for n in graph.inputs}
    leaves |= {n: graph.tensors[n.string("digest")] for n in walk(graph.roots) if n.op == "Constant"}
    expected = evaluate(graph.roots, leaves)
    with Session(folder, threads=threads) as session:
        for _ in range(2):
            got = session.run(None, feeds)
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=max(1e-5, 1e-6 * np.abs(other).max(initial=0.0)))
    return plan


def residual() -> Graph:
    m = Model()
    x = m.input(1, 3, 12, 12)
    a = apply("Relu", m.conv(x, 8, 3, stride=2))
    b = apply("Relu", apply("Add", m.conv(a, 8, 1), a))
    pooled = apply("Reshape", apply("ReduceMean", b, axes=(2, 3)), shape=(1, 8))
    return m.graph(apply("Add", apply("MatMul", pooled, m.weight(8, 10)), m.weight(10)))


def channels_last() -> Graph:
    m = Model()
    x = apply("Transpose", m.input(2, 3, 9, 7), perm=(0, 2, 3, 1))
    a = m.conv(x, 8, 3, layout="NHWC")
    swish = apply("Mul", a, apply("Sigmoid", a))
    b = apply("Clip", m.conv(swish, 8, 3, layout="NHWC", group=8), min=0.0, max=6.0)
    c = m.conv(b, 4, 1, layout="NHWC", stride=2)
    return m.graph(apply("Transpose", apply("Tanh", c), perm=(0, 3, 1, 2)))


def attention() -> Graph:
    m = Model()
    x = m.input(2, 6, 16)

    def heads(perm: tuple[int, ...]) -> Node:
        y = apply("Add", apply("MatMul", x, m.weight(16, 16)), m.weight(16))
        return apply("Transpose", apply("Reshape", y, shape=(2, 6, 4, 4)), perm=perm)

    scores = apply("Softmax", apply("MatMul", heads((0, 2, 1, 3)), heads((0, 2, 3, 1))), axis=3)
    mixed = apply("Transpose", apply("MatMul", scores, heads((0, 2, 1, 3))), perm=(0, 2, 1, 3))
    out = apply("Add", apply("MatMul", apply("Reshape", mixed, shape=(2, 6, 16)), m.weight(16, 16)), x)
    return m.graph(apply("LayerNormalization", out, m.weight(16), m.weight(16), axis=2, epsilon=1e-5))


def concatenation() -> Graph:
    m = Model()
    x = m.input(1, 4, 6, 6)
    a, b = apply("Relu", m.conv(x, 4, 3)), apply("Relu", m.conv(x, 8, 1))
    c = apply("MaxPool", a, kernel_shape=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), layout="NCHW")
    inner = apply("Concat", b, c, axis=1)
    outer = apply("Concat", a, inner, axis=1)
    return m.graph(m.conv(outer, 4, 1), inner)


def pools() -> Graph:
    m = Model()
    x = m.input(1, 4, 8, 8)
    window: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NCHW"}
    a = apply("AveragePool", x, attributes=attributes(count_include_pad=0, **window))
    b = apply("AveragePool", x, attributes=attributes(count_include_pad=1, **window))
    c = apply("LRN", apply("MaxPool", x, attributes=attributes(**window)), size=3, alpha=0.1, beta=0.75, bias=1.0, axis=1)
    transposed = apply(
        "ConvTranspose", c, m.weight(4, 3, 4, 4),
        strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, output_padding=(0, 0), layout="NCHW",
    )  # fmt: skip
    return m.graph(apply("Add", a, b), apply("LeakyRelu", apply("Add", transposed, m.weight(1, 3, 1, 1)), alpha=0.1))


GRAPHS = {f.__name__: f for f in (residual, channels_last, attention, concatenation, pools)}
