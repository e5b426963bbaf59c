"""NaN and infinities whose results ONNX leaves open or onnxruntime computes otherwise, as docs/core-operators.md states them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import parser

from egraph.onnx import importer
from egraph.optimize.estimated import estimated_program, open_program

HEADER = '<ir_version: 10, opset_import: ["": 20]> special '
NAN, INF = math.nan, math.inf
Feeds = Mapping[str, Any]


def results(text: str, feeds: Feeds, device: str) -> list[np.ndarray]:
    """Return a model's outputs, computed by its operators' meanings or by kernels on the processor."""
    graph = importer.load(parser.parse_model(HEADER + text)).graph
    assert not any(kernel.implementation.is_opaque for kernel in estimated_program(graph, ()).kernels)
    session = open_program(estimated_program(graph, (), device=device), device=device)
    return list(session.run(None, {name: np.asarray(value, np.float32) for name, value in feeds.items()}))


X: list[float] = [1.0, NAN, -2.0, INF, 3.0, -INF]
IMAGE = [[[[1.0, 2.0, NAN], [3.0, 4.0, 5.0]]]]
GRID = [[[[-1.0, -1.0], [NAN, -1.0], [INF, 1.0], [-INF, 1.0], [1.0, 1.0]]]]
SAMPLED = "(float[1,1,2,3] x, float[1,1,5,2] g) => (float[1,1,1,5] y) {{ y = GridSample<align_corners=1, padding_mode=\"{}\">(x, g) }}"
RECTIFIED = """(float[3,1,1] x) => (float[3,1,1,1] y) <float[1,1,1] w = {1}, float[1,1,1] r = {1}>
{ y = RNN<hidden_size=1, activations=["Relu"]>(x, w, r) }"""
NORMALISED = """(float[1,2] x) => (float[1,2] y) <float[2] s = {1, 1}, float[2] m = {0, 0}, float[2] v = {-2, 1}>
{ y = BatchNormalization<epsilon=0.0>(x, s, m, m, v) }"""
CHANNELS = [[[NAN], [1.0], [1.0], [1.0], [1.0]]]
LOCAL = 1 / math.sqrt(3.0)
HELD: dict[str, tuple[str, Feeds, list[Any]]] = {
    "largest": ("(float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceMax<keepdims=1>(x, a) }",
                {"x": [[1, NAN, 2], [INF, -INF, 0]]}, [[NAN], [INF]]),
    "least": ("(float[2,3] x) => (float[2,1] y) <int64[1] a = {1}> { y = ReduceMin<keepdims=1>(x, a) }",
              {"x": [[1, NAN, 2], [INF, -INF, 0]]}, [[NAN], [-INF]]),
    "global pool": ("(float[1,2,3] x) => (float[1,2,1] y) { y = GlobalMaxPool(x) }", {"x": [[[1, NAN, 2], [-INF, 0, 1]]]}, [[[NAN], [1]]]),
    "larger": ("(float[4] x, float[4] z) => (float[4] y) { y = Max(x, z) }",
               {"x": [NAN, 1, -INF, 2], "z": [1, NAN, INF, 3]}, [NAN, NAN, INF, 3]),
    "without lower bound": ("(float[6] x) => (float[6] y) <float b = {2.5}> { y = Clip(x, , b) }", {"x": X}, [1, NAN, -2, 2.5, 2.5, -INF]),
    "without upper bound": ("(float[6] x) => (float[6] y) <float a = {0}> { y = Clip(x, a) }", {"x": X}, [1, NAN, 0, INF, 3, 0]),
    "local response": ("(float[1,5,1] x) => (float[1,5,1] y) { y = LRN<size=3, alpha=3.0, beta=0.5, bias=0.0>(x) }",
                       {"x": CHANNELS}, [[[NAN], [NAN], [LOCAL], [LOCAL], [1 / math.sqrt(2.0)]]]),
    "sampled beside zeros": (SAMPLED.format("zeros"), {"x": IMAGE, "g": GRID}, [[[[1.0, NAN, NAN, NAN, 5.0]]]]),
    "negative variance": (NORMALISED, {"x": [[1, 3]]}, [[NAN, 3]]),
    "rectified recurrence": (RECTIFIED, {"x": [[[1]], [[NAN]], [[1]]]}, [[[[1]]], [[[NAN]]], [[[NAN]]]]),
}  # fmt: skip


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("case", HELD)
def test_what_is_no_number_is_kept(case: str, device: str) -> None:
    text, feeds, expected = HELD[case]
    np.testing.assert_allclose(results(text, feeds, device)[0], np.array(expected, np.float32), rtol=1e-6)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(("operator", "gates", "results_of"), [("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 2)])
def test_recurrences_never_come_back_from_nan(operator: str, gates: int, results_of: int, device: str) -> None:
    """After a NaN, all later states of a recurrent operator's sequence are NaN.

    One of two sequences has NaN in its second step of four, and the states of the other stay numbers.
    """
    units, random = 5, np.random.default_rng(0)
    w, r = ([", ".join(f"{v:.3f}" for v in random.uniform(-1, 1, gates * units * n))] for n in (3, units))
    names = ["y", "h", "c"][:results_of]
    outputs = ", ".join(["float[4,1,2,5] y", *(f"float[1,2,5] {name}" for name in names[1:])])
    text = (f"(float[4,2,3] x) => ({outputs}) <float[1,{gates * units},3] w = {{{w[0]}}}, float[1,{gates * units},5] r = {{{r[0]}}}> "
            f"{{ {', '.join(names)} = {operator}<hidden_size=5>(x, w, r) }}")  # fmt: skip
    x = random.standard_normal((4, 2, 3)).astype(np.float32)
    x[1, 0, 2] = NAN
    states, *last = results(text, {"x": x}, device)
    assert np.isnan(states[1:, 0, 0]).all() and np.isfinite(states[0]).all() and np.isfinite(states[:, 0, 1]).all()
    for each in last:
        assert np.isnan(each[0, 0]).all() and np.isfinite(each[0, 1]).all()


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_infinite_places_are_on_the_border(device: str) -> None:
    (sampled,) = results(SAMPLED.format("border"), {"x": np.nan_to_num(np.array(IMAGE), nan=9), "g": GRID}, device)
    np.testing.assert_array_equal(sampled, np.array([[[[1.0, NAN, 5.0, 3.0, 5.0]]]], np.float32))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_choice_keeps_the_sign_of_zero(device: str) -> None:
    feeds = {"x": [-0.0, 0.0, -0.0], "z": [1.0, 1.0, -0.0], "k": [-1.0, -1.0, 1.0]}
    text = "(float[3] x, float[3] z, float[3] k) => (float[3] y) <float o = {0}> { c = Less(k, o) y = Where(c, x, z) }"
    (chosen,) = results(text, feeds, device)
    np.testing.assert_array_equal(np.signbit(chosen), [True, False, True])


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_a_place_beside_nan_is_one_that_exists(operator: str, device: str) -> None:
    text = f"(float[3,4] x) => (int64[3,1] y) {{ y = {operator}<axis=1>(x) }}"
    (places,) = results(text, {"x": [[1, NAN, 3, 0], [NAN, NAN, NAN, NAN], [INF, 1, -INF, 2]]}, device)
    assert ((places >= 0) & (places < 4)).all()
    assert places[2, 0] == (0 if operator == "ArgMax" else 2)
