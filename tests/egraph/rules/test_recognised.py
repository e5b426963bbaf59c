"""Activations and attention as exporters write them are recognised through the gate, at models' ranks and with models' constants."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest

from egraph.onnx import importer
from egraph.optimize.estimated import estimated_program, open_session
from egraph.tensor import Program, walk

GELU = {
    "erf, half first": "q = Div(x, r) e = Erf(q) p = Add(e, one) h = Mul(x, half) y = Mul(h, p)",
    "erf, half last": "q = Div(x, r) e = Erf(q) p = Add(e, one) h = Mul(x, p) y = Mul(h, half)",
    "erf, scaled": "q = Mul(x, s) e = Erf(q) p = Add(one, e) h = Mul(x, p) y = Mul(half, h)",
    "tanh": "c = Pow(x, three) m = Mul(k, c) a = Add(x, m) b = Mul(w, a) t = Tanh(b) p = Add(one, t) h = Mul(half, x) y = Mul(h, p)",
}
"""Activations as torch writes them for opset 18, by erf and by tanh, and as older exporters did."""
VALUES = {"r": 1.4142135, "s": 0.70710677, "one": 1, "half": 0.5, "three": 3, "k": 0.044715, "w": 0.7978846}
NUMBERS = ", ".join(f"float {name} = {{{value}}}" for name, value in VALUES.items())


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')


def operators(program: Program) -> Counter[str]:
    return Counter(node.op for kernel in program.kernels for node in walk((kernel.fragment,)))


@pytest.mark.parametrize("form", GELU)
@pytest.mark.parametrize("shape", ["7", "3,5", "2,3,5", "1,2,3,5"])
def test_gelu_is_recognised_at_every_rank(form: str, shape: str) -> None:
    found = importer.load(model(f"(float[{shape}] x) => (float[{shape}] y) <{NUMBERS}> {{ {GELU[form]} }}"))
    used = operators(estimated_program(found.graph))
    assert used["Gelu"] == 1 and not used["Erf"] + used["Tanh"]


def test_guarded_attention_is_generated_and_keeps_what_a_masked_row_is() -> None:
    """Guarded attention is generated, and a fully masked row stays 0.

    torch writes Where(IsNaN(softmax), 0, softmax) because a fully masked row has no softmax.
    """
    attention = model(
        "(float[2,4,8] x, float[2,4,4] m, float[2,8,4] k) => (float[2,4,4] y) <float zero = {0}> "
        "{ q = MatMul(x, k) a = Add(q, m) s = Softmax<axis = -1>(a) n = IsNaN(s) y = Where(n, zero, s) }"
    )
    program = estimated_program(importer.load(attention).graph)
    assert {kernel.implementation.name for kernel in program.kernels} <= {"tvm", "view", "onednn.matmul"}
    random = np.random.default_rng(0)
    shapes = {"x": (2, 4, 8), "m": (2, 4, 4), "k": (2, 8, 4)}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds["m"][0, 1], feeds["m"][1, :, 2] = -np.inf, -np.inf
    expected = onnxruntime.InferenceSession(attention.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    assert (expected[0, 1] == 0).all()
    np.testing.assert_allclose(open_session(attention).run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)
