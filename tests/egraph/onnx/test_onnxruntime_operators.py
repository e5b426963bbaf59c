"""Models that onnxruntime has written, with operators of its own, whose types only onnxruntime knows."""

from __future__ import annotations

import pytest
from onnx import parser

from egraph.onnx.importer import load
from egraph.tensor import walk
from tests.egraph.onnx.test_importer import agrees, operators


@pytest.mark.parametrize(
    ("inner", "sizes"),
    [
        ("t = com.microsoft.SampleOp(x)", (4, 6)),
        ("t = com.microsoft.TransposeMatMul<transB: int = 1>(x, x)", (4, 4)),
        ("t = com.microsoft.Trilu(x)", (4, 6)),
    ],
)
def test_what_follows_an_operator_of_onnxruntime_is_typed(inner: str, sizes: tuple[int, ...]) -> None:
    """Operators that follow an operator of onnxruntime get types.

    Regression: ONNX's shape inference does not know these types, so the operators were refused or left to onnxruntime.
    """
    graph = load(parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[4,6] x) => (float[4,1] y) '
        f"{{ a = Constant<value_ints = [1]>() k = Constant<value_ints = [1]>() {inner} u = Add(t, t) y, i = TopK(u, k) }}"
    )).graph  # fmt: skip
    assert [node.type.sizes for node in walk(graph.roots) if node.op == "Add"] == [sizes]
    assert operators(graph)["Opaque"] == 2, "the operator itself, and TopK"


@pytest.mark.parametrize(
    "body",
    [
        "(float[2,6] x) => (float[2,6] y) { y = com.microsoft.Gelu(x) }",
        "(float[2,6] x, float[6] b) => (float[2,6] y) { y = com.microsoft.BiasGelu(x, b) }",
        "(float[2,6] x, float[6] b) => (float[2,6] y) { y = com.microsoft.FastGelu(x, b) }",
        "(float[2,6] x) => (float[2,6] y) { y = com.microsoft.QuickGelu<alpha = 1.5>(x) }",
        "(float[2,3,4] x, float[2,5,4] z) => (float[2,3,5] y) { y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(x, z) }",
        '(float[1,2,6,6] x, float[3,2,3,3] w) => (float[1,3,4,4] y) { y = com.microsoft.FusedConv<activation = "Relu">(x, w) }',
        '(float[2,3] x, float[3,4] w, float[4] b) => (float[2,4] y) { y = com.microsoft.FusedGemm<activation = "Tanh">(x, w, b) }',
        ("(float[2,4,8] x, float[2,4,8] z, float[8] g, float[8] b, float[8] c) => (float[2,4,8] y, float[2,4,8] s) "
        "{ y, m, d, s = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, z, g, b, c) }"),
        "(float[2,4,8] x, float[2,4,8] z, float[8] g) => (float[2,4,8] y) { y = com.microsoft.SkipSimplifiedLayerNormalization(x, z, g) }",
        "(float[2,4,8] x, float[8] g) => (float[2,4,8] y) { y = SimplifiedLayerNormalization<axis = -1>(x, g) }",
        ("(int32[2,3] i, int32[2,3] j, float[2,8] w, float[4,8] p, float[2,8] s, float[8] g, float[8] b) => (float[2,3,8] y) "
        "{ y, m = com.microsoft.EmbedLayerNormalization(i, j, w, p, s, g, b) }"),
        ("(float[2,5,8] x, float[8,24] w, float[24] b, int32[2,5] m) => (float[2,5,8] y) "
        "{ y = com.microsoft.Attention<num_heads = 2>(x, w, b, m) }"),
        ("(float[2,5,8] x, float[8,24] w, float[24] b, int32[2] n) => (float[2,5,8] y) "
        "{ o = Cast<to = 6>(n) k = Add(o, o) y = com.microsoft.Attention<num_heads = 2, scale = 0.2>(x, w, b, k) }"),
        ("(float[2,5,8] q, float[2,6,8] k, float[2,6,8] v, float[24] b, int32[2,6] m, float[1,2,5,6] r) => (float[2,5,8] y) "
        "{ y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v, b, m, r) }"),
    ],
)  # fmt: skip
def test_what_onnxruntime_fuses_is_taken_apart(body: str) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g {body}')
    assert not operators(agrees(model))["Opaque"]


def test_what_reads_the_past_is_left_to_onnxruntime() -> None:
    graph = load(parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[2,5,8] x, float[8,24] w, float[24] b) => (float[2,5,8] y) '
        "{ y = com.microsoft.Attention<num_heads = 2, unidirectional = 1>(x, w, b) }"
    )).graph  # fmt: skip
    assert operators(graph)["Opaque"] == 1
