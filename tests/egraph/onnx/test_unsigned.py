"""Signed bytes between Quantize and Dequantize become unsigned ones, and no bit of the results changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import parser

from egraph.onnx import exporter, importer
from egraph.tensor import Graph, walk
from verify.model.sides import Side

HEADER = '<ir_version: 9, opset_import: ["": 21]> moved '
drawn = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MOVED = """(float[1,2,4,6] x) => (float[9,1,12] y, float[1,2,4,6] e)
<float s = {{0.37}}, int8 z = {{{z}}}, int8[1,2,1,6] more = {{{more}}}, int64[4] shape = {{3, 4, 3, 3}},
int64[8] pads = {{0, 0, 1, 0, 0, 0, 1, 3}}, int8 border = {{{border}}}, int64[3] flat = {{9, 1, 12}}> {{
q = QuantizeLinear(x, s, z)
e = DequantizeLinear(q, s, z)
c = Concat <axis = 2> (q, more)
p = Pad(c, pads, border)
m = MaxPool <kernel_shape = [2, 2], pads = [0, 1, 0, 1], strides = [1, 1]> (p)
h = Slice(m, starts, ends, axes)
t = Transpose <perm = [0, 2, 1, 3]> (h)
r = Reshape(t, flat)
y = DequantizeLinear(r, s, z) }}"""
MOVED = MOVED.replace("int64[4] shape = {{3, 4, 3, 3}},", "int64[2] starts = {{0, 0}}, int64[2] ends = {{6, 9}}, int64[2] axes = {{2, 3}},")


def graph_of(text: str) -> Graph:
    return importer.load(parser.parse_model(HEADER + text)).graph


def signed(graph: Graph) -> list[str]:
    """Return the operators whose results are signed bytes."""
    return [node.op for node in walk(graph.roots) if node.type.dtype == "int8"]


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    """Return what onnxruntime computes, without its optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


@drawn
@given(
    x=arrays(np.float32, (1, 2, 4, 6), elements=st.floats(-60, 60, width=32)),
    z=st.sampled_from((-128, -127, 0, 5, 127)),
    border=st.sampled_from((-128, -3, 0, 127)),
    more=arrays(np.int8, 12),
)
def test_bytes_that_are_moved_are_unsigned(x: np.ndarray, z: int, border: int, more: np.ndarray) -> None:
    text = MOVED.format(z=z, border=border, more=", ".join(map(str, more)))
    graph = graph_of(text)
    assert not signed(graph)
    assert {"Concat", "Pad", "MaxPool", "Slice", "Transpose", "Reshape"} <= {node.op for node in walk(graph.roots)}
    for ours, theirs in zip(run(exporter.export(graph), x), run(parser.parse_model(HEADER + text), x), strict=True):
        np.testing.assert_array_equal(ours, theirs)


STAYING = {
    "an output": "(float[4,4] x) => (int8[4,4] q, float[4,4] y) <float s = {0.5}, int8 z = {3}> {"
    " q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
    "moved to an output": "(float[4,4] x) => (int8[4,4] t, float[4,4] y) <float s = {0.5}, int8 z = {3}> {"
    " q = QuantizeLinear(x, s, z) t = Transpose(q) y = DequantizeLinear(q, s, z) }",
    "an input": "(int8[4,4] x) => (float[4,4] y) <float s = {0.5}, int8 z = {3}> { y = DequantizeLinear(x, s, z) }",
    "beside an input": "(float[4,4] x, int8[4,4] i) => (float[8,4] y) <float s = {0.5}, int8 z = {3}> {"
    " q = QuantizeLinear(x, s, z) c = Concat <axis = 0> (q, i) y = DequantizeLinear(c, s, z) }",
    "a zero point that is computed": "(float[4,4] x, int8 z) => (float[4,4] y) <float s = {0.5}> {"
    " q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
    "computed with": "(float[4,4] x) => (int32[4,4] y) <float s = {0.5}, int8 z = {3}> {"
    " q = QuantizeLinear(x, s, z) y = MatMulInteger(q, q, z, z) }",
    "multiplied by": "(float[4,4] x) => (float[4,4] y) <float s = {0.5}, int8 z = {3}> {"
    " q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) t = Transpose(d) y = MatMul(x, t) }",
}


@pytest.mark.parametrize("case", STAYING)
def test_bytes_stay_signed_that_are(case: str) -> None:
    assert signed(graph_of(STAYING[case]))


def test_weights_stay_signed() -> None:
    """Weights stay signed because libraries multiply unsigned activations by signed weights.

    Weights that are concatenated to activations become unsigned.
    """
    graph = graph_of("""(float[4,4] x) => (float[4,4] y, float[8,4] c) <float s = {0.5}, int8 z = {3}, int8 o = {0},
    int8[4,4] w = {1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12, 13, -14, 15, -16}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) f = DequantizeLinear(w, s, o) y = MatMul(d, f)
    b = Concat <axis = 0> (q, w) c = DequantizeLinear(b, s, z) }""")
    product = next(node for node in walk(graph.roots) if node.op == "MatMul")
    assert [operand.inputs[0].type.dtype for operand in product.inputs] == ["uint8", "int8"]
    (joined,) = [node for node in walk(graph.roots) if node.op == "Concat"]
    assert {operand.type.dtype for operand in joined.inputs} == {"uint8"}


def test_named_bytes_of_the_input_model_are_read_as_unsigned_ones() -> None:
    """Named signed bytes of the input model are compared as unsigned bytes.

    The values that onnxruntime computes under a name are compared with the importer's value of this name.
    """
    model = parser.parse_model(HEADER + STAYING["an output"].replace("int8[4,4] q, ", ""))
    x, graph = np.linspace(-70, 70, 16, dtype=np.float32).reshape(4, 4), importer.load(model).graph
    values = Side(Path("model.onnx"), model, graph).values({"x": x}, ["q", "y"], 1)
    assert values["q"].dtype == np.uint8
    np.testing.assert_array_equal(values["q"], np.clip(np.rint(x / 0.5) + 3 + 128, 0, 255))
    np.testing.assert_array_equal(values["y"], run(model, x)[0])
