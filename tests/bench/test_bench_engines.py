"""Translators get a model without computed shapes, and torch functions for its nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from bench.engines import folded, onnxruntime_engine, torch_autocast_engine, torch_compile_engine

TEXT = """
<ir_version: 8, opset_import: ["" : 13]>
g (float[n,6,4] x) => (float[n,2,4] first, float[n,24] second, float[n,1,4] third)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] five = {5}, int64[1] all = {-1}, int64[2] sizes = {2, 4},
 int64[2] kept = {0, -1}, float[1] scale = {0.5}>
{
    shape = Shape(x)
    batch = Slice(shape, zero, one)
    whole = Concat <axis: int = 0> (batch, all)
    first, rest = Split <axis: int = 1> (x, sizes)
    scaled = Mul(x, scale)
    flat = Reshape(scaled, whole)
    second = Reshape(flat, kept)
    part = Slice(x, one, five, one, two)
    third = ReduceMean <axes: ints = [1]> (part)
}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


FEEDS = {"x": np.random.default_rng(0).standard_normal((3, 6, 4)).astype(np.float32)}


def test_constants_and_sizes_are_folded(model: Path) -> None:
    given = folded(model, FEEDS)
    assert not {"Shape", "Concat"} & {node.op_type for node in given.graph.node}
    assert [dim.dim_value for dim in given.graph.input[0].type.tensor_type.shape.dim] == [3, 6, 4]


def test_torch_computes_what_onnxruntime_computes(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda module: module)
    found = torch_compile_engine(model, FEEDS, 1)()
    wanted = onnxruntime.InferenceSession(str(model)).run(None, FEEDS)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_torch_rounds_products_under_autocast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are float32 with bf16's rounding error: 2^-9 per operand, less in sums of many terms."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", lambda module: module)
    text = '<ir_version: 8, opset_import: ["" : 13]> g (float[8,64] x, float[64,8] w) => (float[8,8] y) { y = MatMul(x, w) }'
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((8, 64)).astype(np.float32), "w": random.standard_normal((64, 8)).astype(np.float32)}
    (plain,), (rounded,) = (engine(tmp_path / "m.onnx", feeds, 1)() for engine in (torch_compile_engine, torch_autocast_engine))
    assert plain.dtype == rounded.dtype == np.float32
    error = abs(rounded - feeds["x"] @ feeds["w"]).max() / abs(rounded).max()
    assert 1e-4 < error < 2e-2 and np.allclose(plain, feeds["x"] @ feeds["w"], atol=1e-4)


def test_onnxruntime_sums_products_of_bytes_exactly(tmp_path: Path) -> None:
    """By default, onnxruntime saturates pairs of products to 16 bits if the processor has no instructions for bytes."""
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, (4, 64))
    y = helper.make_tensor_value_info("y", TensorProto.INT32, (4, 16))
    weights = numpy_helper.from_array(np.full((64, 16), 127, np.int8), "w")
    graph = helper.make_graph([helper.make_node("MatMulInteger", ["x", "w"], ["y"])], "bytes", [x], [y], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    (got,) = onnxruntime_engine(tmp_path / "m.onnx", {"x": np.full((4, 64), 255, np.uint8)}, 1)()
    np.testing.assert_array_equal(got, np.full((4, 16), 64 * 255 * 127))
