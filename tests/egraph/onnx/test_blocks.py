"""Weights of four or eight bits with scales for blocks: their meaning, and programs that agree with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from egraph.onnx import exporter, importer
from egraph.onnx.importer.blocks import packed
from egraph.optimize.estimated import estimated_program, open_program
from egraph.tensor import Graph, walk
from egraph.tensor.ops.reference import evaluate

drawn = settings(max_examples=30, deadline=None, derandomize=True)


def theirs(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return onnxruntime's result without its optimisations, which round activations to bytes if weights have four bits."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(feeds))[0])


def product(
    rows: tuple[int, ...], size: int, columns: int, bits: int, block: int, *, zeros: bool = True, bias: bool = False, seed: int = 0,
    **attributes: int,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model of one MatMulNBits."""
    random, blocks = np.random.default_rng(seed), -(-size // block)
    tensors = {
        "b": random.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8),
        "s": random.standard_normal(columns * blocks).astype(np.float32),
    }
    names = ["x", "b", "s"]
    if zeros or bias:
        names.append("z" if zeros else "")
    if zeros:
        tensors["z"] = random.integers(0, 256, columns * -(-blocks * bits // 8)).astype(np.uint8)
    if bias:
        names += ["", "c"]
        tensors["c"] = random.standard_normal(columns).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain="com.microsoft", K=size, N=columns, bits=bits, block_size=block, **attributes
    )
    return model([node], {"x": (TensorProto.FLOAT, (*rows, size))}, tensors, (*rows, columns))


def model(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, tuple[int, tuple[int, ...]]], tensors: Mapping[str, Any], shape: tuple[int, ...]
) -> onnx.ModelProto:
    constants = [array if isinstance(array, TensorProto) else numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(
        nodes, "blocks", [helper.make_tensor_value_info(name, *type) for name, type in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)


def feed(rows: tuple[int, ...], size: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(5).standard_normal((*rows, size)).astype(np.float32)}


def reference(graph: Graph, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    leaves = {node: feeds[node.string("name")] for node in graph.inputs}
    leaves |= {node: graph.tensors[node.string("digest")] for node in walk(graph.roots) if node.op == "Constant"}
    return np.asarray(evaluate(graph.roots, leaves)[0])


def near(one: np.ndarray, other: np.ndarray) -> None:
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-6 * float(np.abs(other).max()))


def agree(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Graph:
    """Compare meaning, program and export with onnxruntime, and check that no node is left to it."""
    graph, expected = importer.load(proto).graph, theirs(proto, feeds)
    near(reference(graph, feeds), expected)
    program = estimated_program(graph)
    assert not any(kernel.implementation.is_opaque for kernel in program.kernels)
    near(np.asarray(open_program(program).run(None, dict(feeds))[0]), expected)
    near(theirs(exporter.export(graph), feeds), expected)
    return graph


@drawn
@given(
    rows=st.sampled_from([(1,), (3,), (2, 5)]), size=st.sampled_from([16, 40, 64, 144, 300]), columns=st.sampled_from([1, 2, 7, 33]),
    bits=st.sampled_from([4, 8]), block=st.sampled_from([16, 32, 64, 128, 256]), zeros=st.booleans(), bias=st.booleans(),
)  # fmt: skip
def test_products(rows: tuple[int, ...], size: int, columns: int, bits: int, block: int, zeros: bool, bias: bool) -> None:
    agree(product(rows, size, columns, bits, block, zeros=zeros, bias=bias), feed(rows, size))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_dequantised_blocks(dtype: str, axis: int, has_zeros: bool) -> None:
    random, shape, block = np.random.default_rng(3), (72, 40), 16
    kind = getattr(TensorProto, dtype.upper())
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[dtype]
    counted = tuple(-(-n // block) if k == axis else n for k, n in enumerate(shape))
    tensors: dict[str, Any] = {
        "q": helper.make_tensor("q", kind, shape, random.integers(low, high, shape).reshape(-1)),
        "s": random.standard_normal(counted).astype(np.float32),
    }
    if has_zeros:
        tensors["z"] = helper.make_tensor("z", kind, counted, random.integers(low, high, counted).reshape(-1))
    nodes = [
        helper.make_node("DequantizeLinear", [*tensors], ["w"], axis=axis, block_size=block),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    agree(model(nodes, {"x": (TensorProto.FLOAT, (5, 72))}, tensors, (5, 40)), feed((5,), 72))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_weights_of_four_bits_with_a_scale_for_each_column(dtype: str) -> None:
    random, kind = np.random.default_rng(3), getattr(TensorProto, dtype.upper())
    low, high = (-8, 8) if dtype == "int4" else (0, 16)
    tensors = {
        "q": helper.make_tensor("q", kind, (24, 10), random.integers(low, high, 240)), "s": random.random(10).astype(np.float32),
        "z": helper.make_tensor("z", kind, (10,), random.integers(low, high, 10)),
    }  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", [*tensors], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    agree(model(nodes, {"x": (TensorProto.FLOAT, (5, 24))}, tensors, (5, 10)), feed((5,), 24))


@pytest.mark.parametrize(
    "change",
    [{"accuracy_level": 4}, {"order": True}, {"numbers": True}],
    ids=["rounded activations", "an order of rows", "real zero points"],
)
def test_what_has_another_meaning_stays_with_onnxruntime(change: dict[str, Any]) -> None:
    proto = product((3,), 64, 8, 4, 32, zeros="numbers" not in change, accuracy_level=change.get("accuracy_level", 0))
    node = proto.graph.node[0]
    if "order" in change:
        node.input.append("g")
        proto.graph.initializer.append(numpy_helper.from_array(np.arange(64, dtype=np.int32) // 32, "g"))
    if "numbers" in change:
        node.input.append("z")
        proto.graph.initializer.append(numpy_helper.from_array(np.full((8, 2), 7.5, np.float32), "z"))
    graph = importer.load(proto).graph
    assert [node.op for node in walk(graph.roots) if node.op == "Opaque"] == ["Opaque"]
    feeds = feed((3,), 64)
    near(np.asarray(open_program(estimated_program(graph)).run(None, feeds)[0]), theirs(proto, feeds))


def test_numbers_are_packed_from_the_lowest_bits() -> None:
    np.testing.assert_array_equal(packed(np.array([[1, 2, 3]]), 4), [[0x21, 0x03]])
    np.testing.assert_array_equal(packed(np.array([[1, 2, 3]]), 8), [[1, 2, 3]])


def test_an_export_reads_again_as_the_same_weights(tmp_path: Path) -> None:
    proto, feeds = product((3,), 96, 8, 4, 32), feed((3,), 96)
    path = tmp_path / "saved.onnx"
    exporter.save(importer.load(proto).graph, path)
    near(theirs(onnx.load(path), feeds), theirs(proto, feeds))
    near(reference(importer.load(path).graph, feeds), theirs(proto, feeds))
