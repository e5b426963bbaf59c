"""Compare products by weights of four or eight bits, which become numbers in registers, with the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egraph.onnx.exporter import serialized
from egraph.onnx.types import array_type, tensor_digest
from egraph.tensor import Graph, Node, TensorType, attributes, make, placeholder, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.compile import CompileOptions, compile_program
from lower.targets.cpu.blocks.match import BlocksCall, match
from runtime import Session
from tests.support.lowering import choose


def product(rows: tuple[int, ...], size: int, columns: int, bits: int, width: int, *, bias: bool) -> Graph:
    random, blocks = np.random.default_rng(size + columns), -(-size * bits // (8 * width))
    x = make("Input", (), attributes(name="x"), TensorType("float32", (*rows, size)))
    tensors: dict[str, np.ndarray] = {}

    def constant(array: np.ndarray) -> Node:
        digest = tensor_digest(array)
        tensors[digest] = array
        return make("Constant", (), attributes(digest=digest), array_type(array))

    weight = apply(
        "DequantizeBlocks", constant(random.integers(0, 256, (columns, blocks, width)).astype(np.uint8)),
        constant(random.standard_normal((columns, blocks)).astype(np.float32)),
        constant(random.integers(0, 256, (columns, -(-blocks * bits // 8))).astype(np.uint8)), bits=bits, size=size,
    )  # fmt: skip
    result = apply("MatMul", x, apply("Transpose", weight, perm=(1, 0)))
    if bias:
        result = apply("Add", constant(random.standard_normal(columns).astype(np.float32)), result)
    return Graph("product", (x,), (("y", result),), tensors)


def compare(graph: Graph, folder: Path, threads: int) -> None:
    program = choose(graph, "blocks")
    assert [kernel.implementation.text for kernel in program.kernels] == ["blocks.matmul"]
    compile_program(program, folder, CompileOptions(threads=threads, export_graph=serialized))
    x = np.random.default_rng(1).standard_normal(graph.inputs[0].type.sizes).astype(np.float32)
    leaves = {graph.inputs[0]: x} | {n: graph.tensors[n.string("digest")] for n in walk(graph.roots) if n.op == "Constant"}
    (expected,) = evaluate(graph.roots, leaves)
    with Session(folder, threads=threads) as session:
        for _ in range(2):
            (found,) = session.run(None, {"x": x})
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6 * np.abs(expected).max())


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sampled_from([(1,), (2,), (3,), (5,), (2, 3), (11,)]), size=st.integers(1, 200), columns=st.sampled_from([1, 2, 3, 8, 17]),
    bits=st.sampled_from([4, 8]), width=st.sampled_from([4, 8, 16, 20, 24, 32, 64]), bias=st.booleans(), threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_products_agree_with_the_reference(
    tmp_path: Path, rows: tuple[int, ...], size: int, columns: int, bits: int, width: int, bias: bool, threads: int
) -> None:
    compare(product(rows, size, columns, bits, width, bias=bias), tmp_path, threads)


@pytest.mark.parametrize("bits", [4, 8])
def test_large_products_are_shared_by_threads(tmp_path: Path, bits: int) -> None:
    compare(product((2,), 1000, 301, bits, 16, bias=True), tmp_path, 2)


def test_what_the_kernel_does_not_compute_is_refused() -> None:
    def weights(width: int, bits: int = 4) -> Node:
        types = TensorType("uint8", (6, 2, width)), TensorType("float32", (6, 2)), TensorType("uint8", (6, -(-2 * bits // 8)))
        operands = [placeholder(i, type, constant=True) for i, type in enumerate(types, 1)]
        return apply("DequantizeBlocks", *operands, bits=bits, size=2 * width * 8 // bits)

    def transposed(node: Node) -> Node:
        return apply("Transpose", node, perm=(1, 0))

    def by(node: Node, *lead: int) -> Node:
        return apply("MatMul", placeholder(0, TensorType("float32", (*lead, node.type.sizes[0]))), node)

    assert isinstance(match(by(transposed(weights(8)), 3)), BlocksCall)
    for fragment, reason in (
        (by(weights(8), 3), "not dequantised by columns"), (by(transposed(weights(6)), 3), "blocks of 6 bytes"),
        (by(transposed(weights(8, 2)), 3), "2 bits"), (transposed(weights(8)), "no product"),
        (apply("Add", by(transposed(weights(8)), 3), placeholder(4, TensorType("float32", (3, 6)))), "a number for each column"),
    ):  # fmt: skip
        said = match(fragment)
        assert isinstance(said, str)
        assert reason in said
