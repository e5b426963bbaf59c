"""Models of float16 and bfloat16 become models of float32 between their inputs and outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from egraph.errors import CheckFailed
from egraph.onnx.exporter import export
from egraph.onnx.importer import load
from egraph.onnx.importer.halves import UNIT_ROUNDOFF, half_types
from egraph.onnx.types import opaque_proto
from egraph.optimize.check import TooFar, compare
from egraph.optimize.estimated import open_session
from egraph.optimize.reference import Accepted, Given, compared_in_float32
from egraph.tensor import walk
from egraph.tolerance import Tolerance
from runtime.feeds import FeedSpec
from tests.support.commands import command

RANDOM = np.random.default_rng(7)
LAST_PLACE = 2 * UNIT_ROUNDOFF["float16"]


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "other": 1]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model


def half(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float16)


def opaque_operators(model: onnx.ModelProto) -> list[str]:
    graph = load(model).graph
    return sorted(opaque_proto(node).op_type for node in walk(graph.roots) if node.op == "Opaque")


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feeds)]


def agrees(model: onnx.ModelProto, **feeds: np.ndarray) -> None:
    """Compare the exported graph and the running program with onnxruntime, up to the last place."""
    expected = run(model, **feeds)
    with open_session(model) as session:
        programs = {"exported": run(export(load(model).graph), **feeds), "program": session.run(None, feeds)}
    for name, results in programs.items():
        for before, after in zip(expected, results, strict=True):
            assert before.dtype == after.dtype
            compare(before, after, Tolerance(LAST_PLACE, 1e-6), where=name)


MODELS = {
    "product": (model_of("(float16[3,8] x) => (float16[3,4] y) { m = MatMul(x, w) y = Relu(m) }", w=half(8, 4)), (3, 8)),
    "convolution": (
        model_of("(float16[1,3,8,8] x) => (float16[1,4,8,8] y) { c = Conv<pads = [1,1,1,1]>(x, w, b) y = Sigmoid(c) }",
                 w=half(4, 3, 3, 3), b=half(4)),
        (1, 3, 8, 8),
    ),
    "normalisation in float32": (
        model_of(
            "(float16[4,16] x) => (float16[4,16] y) "
            "{ f = Cast<to = 1>(x) n = LayerNormalization(f, s) h = Cast<to = 10>(n) y = MatMul(h, w) }",
            s=np.ones(16, np.float32), w=half(16, 16),
        ),
        (4, 16),
    ),
    "branches": (
        model_of(
            "(float16[4] x) => (float16[4] y) { s = ReduceSum<keepdims = 0>(x) c = Greater(s, zero) "
            "y = If(c) <then_branch = t () => (float16[4] a) { a = Add(x, w) }, else_branch = e () => (float16[4] b) { b = Mul(x, w) }> }",
            zero=np.zeros((), np.float16), w=half(4),
        ),
        (4,),
    ),
    "its input, and a weight, as outputs": (
        model_of("(float16[4] x) => (float16[4] x, float16[4] y, float16[4] w) { y = Add(x, w) }", w=half(4)), (4,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_in_float16_are_core_operators_between_casts(name: str) -> None:
    model, shape = MODELS[name]
    agrees(model, x=half(*shape))
    if name != "branches":
        assert set(opaque_operators(model)) <= {"Cast"}


def test_casts_between_the_types_leave_nothing_behind() -> None:
    assert opaque_operators(MODELS["normalisation in float32"][0]) == ["Cast", "Cast"]


def test_bfloat16_inside_a_model_is_computed_in_float32() -> None:
    model = model_of("(float[4,8] x) => (float[4,8] y) { h = Cast<to = 16>(x) s = Add(h, h) r = Relu(s) y = Cast<to = 1>(r) }")
    assert half_types(model) == ("bfloat16",)
    assert opaque_operators(model) == []


def test_infinities_subnormals_and_nan_of_float16_are_kept() -> None:
    model = model_of("(float16[6] x) => (float16[6] y) { y = Add(x, x) }")
    special = np.array([60000, -60000, np.nan, 6e-8, np.inf, -0.0], np.float16)
    with open_session(model) as session:
        (actual,) = session.run(None, {"x": special})
    with np.errstate(over="ignore"):
        expected = (special.astype(np.float32) * 2).astype(np.float16)
    assert np.isinf(expected[:2]).all() and expected[3] > 0
    np.testing.assert_array_equal(actual, expected)


def test_operators_of_unknown_meaning_keep_a_model_in_its_type() -> None:
    model = model_of("(float16[4] x) => (float16[4] y) { z = Neg(x) y = other.Secret(z) }")
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT16, [4]))
    result = load(model)
    assert any("other.Secret" in note for note in result.notes)
    assert not any(node.type.dtype == "float32" for node in walk(result.graph.roots))


def test_an_output_may_differ_by_its_last_place_and_by_no_more() -> None:
    expected = np.array([1.0, 0.5], np.float16)
    compare(expected, np.nextafter(expected, np.float16(2)), Tolerance(1e-6, 0.0), where="y")
    with pytest.raises(TooFar):
        compare(expected, expected + np.float16(4 * LAST_PLACE), Tolerance(1e-6, 0.0), where="y")


@pytest.mark.parametrize(("factor", "is_near"), [(1.0, True), (1.001, True), (1.1, False), (np.inf, False)])
def test_float32_is_compared_with_where_rounding_explains_the_difference(factor: float, is_near: bool) -> None:
    class Scaled:
        def __init__(self, by: float) -> None:
            self.by = by

        def run(self, _: object, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.asarray(feeds["x"] * np.float32(self.by), np.float32)]

        def get_outputs(self) -> list[object]:
            return [type("Output", (), {"name": "y"})]

    runs = Accepted((FeedSpec("x", "float32", (16,), 1),), 0.0)
    found, text = compared_in_float32(Scaled(factor), Scaled(1.0), ["float16"], runs, Given(), 0)
    assert found is is_near
    assert "float32" in text


def test_what_overflows_in_float16_alone_is_no_rounding() -> None:
    with pytest.raises(CheckFailed):
        compare(np.array([131008.0], np.float32), np.array([np.inf], np.float32), Tolerance(1.0), where="y")


def test_an_output_of_a_type_that_the_file_does_not_say_keeps_it() -> None:
    """An output whose type the file does not declare keeps its type.

    Regression: it became float32 because nothing requested the conversion back.
    """
    model = model_of("(float16[4] x) => (float16[4] y) { y = Relu(x) }")
    model.graph.output[0].ClearField("type")
    assert "does not say of which type 'y' is" in " ".join(load(model).notes)
    (y,) = open_session(model).run(None, {"x": half(4)})
    assert y.dtype == np.float16


def test_a_program_is_compared_in_float32_and_a_model_that_is_kept_with_itself(tmp_path: Path) -> None:
    """A program is compared with the model in float32, and an unchanged model with itself.

    Without time for a race the model is kept; if nothing is timed, a program is written. The references differ by more than programs may.
    """
    text = """(float[8, 64] x) => (float[8, 16] y) {
        rounded = Cast<to = 16>(x)
        again = Cast<to = 1>(rounded)
        y = MatMul(again, w)
    }"""
    onnx.save(model_of(text, w=RANDOM.standard_normal((64, 16)).astype(np.float32)), tmp_path / "m.onnx")

    def optimised(*arguments: str) -> tuple[str, float]:
        done = command(tmp_path / "m.onnx", *arguments, "--threads", 1, "--database", tmp_path / "p.sqlite", "--json")
        assert done.returncode == 0, done.stderr
        assert "results are compared with the model in float32" in done.stderr
        printed = json.loads(done.stdout)
        return printed["status"], printed["max_rel_err"]

    assert optimised("--budget", "0.1s") == ("unchanged", 0.0)
    status, error = optimised("--device", "reference")
    assert status == "estimated" and error < 1e-5
