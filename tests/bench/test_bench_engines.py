"""What translators are given: a model without computed shapes, and torch functions for its nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from bench.engines import folded, torch_compile_engine

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
