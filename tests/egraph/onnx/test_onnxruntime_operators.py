"""Models that onnxruntime has written: operators of its own, whose types nothing but onnxruntime knows."""

from __future__ import annotations

import pytest
from onnx import parser

from egraph.onnx.importer import load
from egraph.tensor import walk
from tests.egraph.onnx.test_importer import operators


@pytest.mark.parametrize(
    ("inner", "sizes"),
    [
        ("t = com.microsoft.QuickGelu(x)", (4, 6)),
        ("s = Constant<value: tensor = float[6] {1, 2, 3, 4, 5, 6}>() t = SimplifiedLayerNormalization<axis: int = -1>(x, s)", (4, 6)),
        ("t = com.microsoft.FusedMatMul<transB: int = 1>(x, x)", (4, 4)),
    ],
)
def test_what_follows_an_operator_of_onnxruntime_is_typed(inner: str, sizes: tuple[int, ...]) -> None:
    """Shape inference knows no type of these; the operators that follow were refused or left to onnxruntime."""
    graph = load(parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "com.microsoft": 1]> g (float[4,6] x) => (float[4,1] y) '
        f"{{ a = Constant<value_ints = [1]>() k = Constant<value_ints = [1]>() {inner} u = Add(t, t) y, i = TopK(u, k) }}"
    )).graph  # fmt: skip
    assert [node.type.sizes for node in walk(graph.roots) if node.op == "Add"] == [sizes]
    assert operators(graph)["Opaque"] == 2, "the operator itself, and TopK"
