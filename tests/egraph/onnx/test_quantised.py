"""Quantised operators agree with onnxruntime bit for bit, with and without rules, and no step is left to onnxruntime."""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import numpy_helper, parser

from egraph.onnx import importer
from egraph.onnx.exact_bytes import with_exact_bytes
from egraph.optimize.estimated import estimated_program, open_program
from egraph.rules import RULES
from egraph.tensor import Graph, Program, TensorType, placeholder, walk
from egraph.tensor.ops import apply
from lower.targets.cpu.onednn.match import match
from runtime import Session

HEADER = '<ir_version: 9, opset_import: ["": 21, "com.microsoft": 1]> quantised '
MATRIX, WEIGHT = (5, 37), (37, 9)
IMAGE, KERNEL = (1, 3, 9, 8), (4, 3, 3, 3)
drawn = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(HEADER + text)


@cache
def opened(text: str, *, by_rules: bool) -> tuple[Session, onnxruntime.InferenceSession, Program]:
    """Return our session, onnxruntime's session and our program for a model."""
    proto = model(text)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC  # a higher level would fuse sums that saturate
    exact = with_exact_bytes(proto).SerializeToString()
    theirs = onnxruntime.InferenceSession(exact, options, providers=["CPUExecutionProvider"])
    program = estimated_program(importer.load(proto).graph, rules=RULES if by_rules else ())
    return open_program(program), theirs, program


def agree(text: str, feeds: dict[str, Any], *, by_rules: bool = False) -> None:
    """Compare every output bit for bit."""
    ours, theirs, _ = opened(text, by_rules=by_rules)
    given_feeds = {name: np.asarray(value) for name, value in feeds.items()}
    for one, other in zip(ours.run(None, given_feeds), theirs.run(None, given_feeds), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def has_no_opaque_step(text: str, *, by_rules: bool = False) -> bool:
    return not any(kernel.implementation.is_opaque for kernel in opened(text, by_rules=by_rules)[2].kernels)


def of_bytes(shape: tuple[int, ...], dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Draw arrays of bytes in which the extremes are frequent."""
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    return arrays(dtype, shape, elements=st.one_of(st.integers(low, high), st.sampled_from((low, high, 0))))


ONEDNN_MATCH = import_module("lower.targets.cpu.onednn.match")
SCALES = st.sampled_from((0.25, 1.0, 0.0078125, 0.013, 0.37, 3.0)).map(np.float32)
"""Scales: powers of two, which cause ties between integers, and others."""
HALVES = st.integers(-600, 600).map(lambda n: n / 2)
FAR = st.sampled_from((3.4e38, -3.4e38, 1e9, -1e9, 0.0, -0.0, 2.0**31, -(2.0**31), 127.5, 128.5, -128.5, 254.5, 255.5))


def numbers(shape: tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Draw arrays of ties, values that saturate, and anything between."""
    return arrays(np.float32, shape, elements=st.one_of(HALVES, FAR, st.floats(-300, 300, width=32)))


@drawn
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@given(x=numbers(MATRIX), s=SCALES, data=st.data())
def test_quantize_linear(dtype: str, x: np.ndarray, s: np.float32, data: st.DataObject) -> None:
    z = data.draw(of_bytes((), dtype))
    text = f"(float[5,37] x, float s, {dtype} z) => ({dtype}[5,37] y) {{ y = QuantizeLinear(x, s, z) }}"
    with np.errstate(over="ignore"):
        scaled = x * s
    agree(text, {"x": scaled if data.draw(st.booleans()) and np.isfinite(scaled).all() else x, "s": s, "z": z})
    assert has_no_opaque_step(text)


@drawn
@given(x=numbers(MATRIX), s=arrays(np.float32, 37, elements=SCALES), z=of_bytes((37,), "int8"))
def test_quantize_linear_along_an_axis(x: np.ndarray, s: np.ndarray, z: np.ndarray) -> None:
    text = "(float[5,37] x, float[37] s, int8[37] z) => (int8[5,37] y) { y = QuantizeLinear(x, s, z) }"
    agree(text, {"x": x, "s": s, "z": z})
    assert has_no_opaque_step(text)


@drawn
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@given(s=SCALES, data=st.data())
def test_dequantize_linear(dtype: str, s: np.float32, data: st.DataObject) -> None:
    text = f"({dtype}[5,37] x, float s, {dtype} z) => (float[5,37] y) {{ y = DequantizeLinear(x, s, z) }}"
    agree(text, {"x": data.draw(of_bytes(MATRIX, dtype)), "s": s, "z": data.draw(of_bytes((), dtype))})
    assert has_no_opaque_step(text)


@drawn
@given(x=arrays(np.int32, (5, 37)), s=arrays(np.float32, 5, elements=SCALES))
def test_dequantize_linear_of_int32_without_zero_point(x: np.ndarray, s: np.ndarray) -> None:
    text = "(int32[5,37] x, float[5] s) => (float[5,37] y) { y = DequantizeLinear <axis = 0> (x, s) }"
    agree(text, {"x": x, "s": s})
    assert has_no_opaque_step(text)


@drawn
@given(x=arrays(np.float32, MATRIX, elements=st.one_of(HALVES, st.floats(-1e6, 1e6, width=32, allow_subnormal=False))))
def test_dynamic_quantize_linear(x: np.ndarray) -> None:
    text = "(float[5,37] x) => (uint8[5,37] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear(x) }"
    agree(text, {"x": x})
    assert has_no_opaque_step(text)


@drawn
@given(a=of_bytes(MATRIX, "uint8"), b=of_bytes(WEIGHT, "int8"), z=of_bytes((), "uint8"), y=of_bytes((9,), "int8"))
def test_matmul_integer(a: np.ndarray, b: np.ndarray, z: np.ndarray, y: np.ndarray) -> None:
    text = "(uint8[5,37] a, int8[37,9] b, uint8 z, int8[9] y) => (int32[5,9] c) { c = MatMulInteger(a, b, z, y) }"
    agree(text, {"a": a, "b": b, "z": z, "y": y})
    agree(text, {"a": a, "b": b, "z": z, "y": y}, by_rules=True)
    assert has_no_opaque_step(text)


@drawn
@given(a=of_bytes(MATRIX, "int8"), b=of_bytes(WEIGHT, "uint8"))
def test_matmul_integer_without_zero_points(a: np.ndarray, b: np.ndarray) -> None:
    agree("(int8[5,37] a, uint8[37,9] b) => (int32[5,9] c) { c = MatMulInteger(a, b) }", {"a": a, "b": b})


def _listed(values: np.ndarray) -> str:
    return ", ".join(map(str, values.reshape(-1)))


UNSIGNED = np.random.default_rng(6).integers(0, 256, WEIGHT).astype(np.uint8)


@drawn
@pytest.mark.parametrize("y", [0, 128, 77])
@given(a=of_bytes(MATRIX, "uint8"), z=of_bytes((), "uint8"), by_rules=st.booleans())
def test_unsigned_weights_are_multiplied_as_signed_ones(y: int, a: np.ndarray, z: np.ndarray, by_rules: bool) -> None:
    """Unsigned weights become signed ones because no library kernel takes unsigned weights.

    Both the weights and their zero point are reduced by 128, which keeps their differences.
    """
    text = (f"(uint8[5,37] a, uint8 z) => (int32[5,9] c) <uint8[37,9] b = {{{_listed(UNSIGNED)}}}, uint8 y = {{{y}}}> "
            "{ c = MatMulInteger(a, b, z, y) }")  # fmt: skip
    agree(text, {"a": a, "z": z}, by_rules=by_rules)
    assert {node.type.dtype for node in walk(graph_of(text).roots) if node.op == "Constant" and node.type.rank == 2} >= {"int8"}
    assert has_no_opaque_step(text, by_rules=by_rules)


@drawn
@pytest.mark.parametrize(("group", "y"), [(1, 77), (3, 0), (3, 128)])
@given(x=of_bytes((1, 3, 6, 5), "uint8"), z=st.sampled_from((0, 5)))
def test_convolutions_of_unsigned_weights(group: int, y: int, x: np.ndarray, z: int) -> None:
    weights = UNSIGNED.reshape(-1)[: 6 * 3 // group * 9].reshape(6, 3 // group, 3, 3)
    text = (f"(uint8[1,3,6,5] x) => (int32[1,6,6,5] c) <uint8{list(weights.shape)} w = {{{_listed(weights)}}}, uint8 z = {{{z}}}, "
            f"uint8 y = {{{y}}}> {{ c = ConvInteger<pads=[1,1,1,1], group={group}>(x, w, z, y) }}")  # fmt: skip
    agree(text, {"x": x})


def test_constants_that_are_dequantised_are_signed() -> None:
    text = (f"(float[37,9] x) => (float[37,9] c) <uint8[37,9] w = {{{_listed(UNSIGNED)}}}, float t = {{0.25}}, uint8 y = {{131}}> "
            "{ d = DequantizeLinear(w, t, y) c = Mul(x, d) }")  # fmt: skip
    agree(text, {"x": np.linspace(-8, 8, 37 * 9, dtype=np.float32).reshape(WEIGHT)})
    assert {node.type.dtype for node in walk(graph_of(text).roots) if node.op == "Constant" and node.type.rank == 2} == {"int8"}


@drawn
@given(x=of_bytes(IMAGE, "uint8"), w=of_bytes(KERNEL, "int8"), z=of_bytes((), "uint8"), by_rules=st.booleans())
def test_conv_integer_pads_with_the_zero_point(x: np.ndarray, w: np.ndarray, z: np.ndarray, by_rules: bool) -> None:
    text = "(uint8[1,3,9,8] x, int8[4,3,3,3] w, uint8 z) => (int32[1,4,5,8] y) { y = ConvInteger<pads=[1,1,1,1], strides=[2,1]>(x, w, z) }"
    agree(text, {"x": x, "w": w, "z": z}, by_rules=by_rules)


@drawn
@given(a=of_bytes(MATRIX, "uint8"), b=of_bytes(WEIGHT, "int8"), s=SCALES, t=arrays(np.float32, 9, elements=SCALES),
       z=of_bytes((), "uint8"), u=st.sampled_from((1.0, 64.0, 500.0)).map(np.float32), v=of_bytes((), "uint8"))  # fmt: skip
def test_qlinear_matmul(a: Any, b: Any, s: Any, t: Any, z: Any, u: Any, v: Any) -> None:
    text = ("(uint8[5,37] a, float s, uint8 z, int8[37,9] b, float[9] t, int8[9] y, float u, uint8 v) => (uint8[5,9] c) "
            "{ c = QLinearMatMul(a, s, z, b, t, y, u, v) }")  # fmt: skip
    agree(text, {"a": a, "s": s, "z": z, "b": b, "t": t, "y": np.zeros(9, np.int8), "u": u, "v": v})
    assert has_no_opaque_step(text)


def _qlinear_conv(z: int, dtype: str) -> str:
    """Return a convolution with constant scales and zero points, as onnxruntime's quantiser writes it."""
    return (f"({dtype}[1,3,9,8] x, int8[4,3,3,3] w, int32[4] b) => ({dtype}[1,4,9,8] y) "
            f"<float s = {{0.013}}, {dtype} z = {{{z}}}, float[4] t = {{0.25, 0.37, 0.0078125, 0.5}}, int8[4] o = {{0, 0, 0, 0}}, "
            f"float u = {{1.5}}, {dtype} v = {{7}}> {{ y = QLinearConv<pads=[1,1,1,1]>(x, s, z, w, t, o, u, v, b) }}")  # fmt: skip


@drawn
@pytest.mark.parametrize(("dtype", "z"), [("uint8", 0), ("uint8", 113), ("int8", -5)])
@given(data=st.data(), b=arrays(np.int32, 4, elements=st.integers(-(2**20), 2**20)), by_rules=st.booleans())
def test_qlinear_conv(dtype: str, z: int, data: st.DataObject, b: np.ndarray, by_rules: bool) -> None:
    text = _qlinear_conv(z, dtype)
    agree(text, {"x": data.draw(of_bytes(IMAGE, dtype)), "w": data.draw(of_bytes(KERNEL, "int8")), "b": b}, by_rules=by_rules)


UNARY = [("QLinearSigmoid", MATRIX, MATRIX), ("QLinearAveragePool<kernel_shape=[3,2], strides=[2,1], pads=[1,0,1,1]>", IMAGE, (1, 3, 5, 8))]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("operator", "shape", "result"), UNARY, ids=["sigmoid", "average pool"])
@drawn
@given(data=st.data())
def test_sigmoids_and_averages_are_at_most_one_step_off(operator: str, shape: Any, result: Any, dtype: str, data: st.DataObject) -> None:
    """The result may differ by one step, because a number at a tie may be rounded the other way.

    A sigmoid reads computed scales, and an average sums rounded numbers in another order.
    """
    text = (f"({dtype}{list(shape)} a, float s, {dtype} z, float u, {dtype} v) => ({dtype}{list(result)} c) "
            f"{{ c = com.microsoft.{operator}(a, s, z, u, v) }}")  # fmt: skip
    feeds: dict[str, Any] = {"a": data.draw(of_bytes(shape, dtype))}
    feeds |= {name: data.draw(SCALES) for name in "su"} | {name: data.draw(of_bytes((), dtype)) for name in "zv"}
    ours, theirs, _ = opened(text, by_rules=False)
    feeds = {name: np.asarray(value) for name, value in feeds.items()}
    (one,), (other,) = ours.run(None, feeds), theirs.run(None, feeds)
    assert np.abs(one.astype(int) - other.astype(int)).max() <= 1
    assert has_no_opaque_step(text)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("operator", ["QLinearLeakyRelu<alpha=0.1>", "QLinearLeakyRelu<alpha=-1.5>", "QLinearGlobalAveragePool"])
@drawn
@given(data=st.data())
def test_unary_operators_that_the_quantiser_adds(operator: str, dtype: str, data: st.DataObject) -> None:
    result = [1, 3, 1, 1] if "Pool" in operator else list(IMAGE)
    text = (f"({dtype}{list(IMAGE)} a, float s, {dtype} z, float u, {dtype} v) => ({dtype}{result} c) "
            f"{{ c = com.microsoft.{operator}(a, s, z, u, v) }}")  # fmt: skip
    feeds: dict[str, Any] = {"a": data.draw(of_bytes(IMAGE, dtype))}
    agree(text, feeds | {name: data.draw(SCALES) for name in "su"} | {name: data.draw(of_bytes((), dtype)) for name in "zv"})
    assert has_no_opaque_step(text)


@drawn
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@given(s=SCALES, u=SCALES, data=st.data(), by_rules=st.booleans())
def test_a_sigmoid_of_known_scales_is_a_table(dtype: str, s: np.float32, u: np.float32, data: st.DataObject, by_rules: bool) -> None:
    z, v = (int(data.draw(of_bytes((), dtype))) for _ in "zv")
    text = (f"({dtype}[16,16] x) => ({dtype}[16,16] y) <float s = {{{s}}}, {dtype} z = {{{z}}}, float u = {{{u}}}, {dtype} v = {{{v}}}> "
            f"{{ y = com.microsoft.QLinearSigmoid(x, s, z, u, v) }}")  # fmt: skip
    limits = np.iinfo(dtype)
    agree(text, {"x": np.arange(limits.min, limits.max + 1, dtype=dtype).reshape(16, 16)}, by_rules=by_rules)
    assert has_no_opaque_step(text, by_rules=by_rules)


SHAPES = [([4, 5, 37], [4, 5, 37]), ([4, 5, 37], [1]), ([5, 1], [4, 5, 37]), ([4, 5, 1], [1, 5, 1]), ([1, 1], [1]), ([4, 1], [4, 5])]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("operator", ["QLinearAdd", "QLinearMul", "QLinearConcat"])
def test_binary_operators_that_the_quantiser_adds(operator: str, dtype: str) -> None:
    """Binary quantised operators agree with onnxruntime bit for bit.

    The test draws many samples because ties are rare. The order in which onnxruntime adds the operands depends on which one is broadcast.
    """
    random, limits = np.random.default_rng(1), np.iinfo(dtype)
    joins = operator == "QLinearConcat"
    for draw in range(400):
        left, right = SHAPES[draw % 3 if draw % 4 else draw % len(SHAPES)]
        right = left if joins else right
        result = [2 * left[0], *left[1:]] if joins else list(np.broadcast_shapes(tuple(left), tuple(right)))
        listed = "<axis=0>(u, v, a, s, z, b, t, y)" if joins else "(a, s, z, b, t, y, u, v)"
        text = (f"({dtype}{left} a, float s, {dtype} z, {dtype}{right} b, float t, {dtype} y, float u, {dtype} v) => ({dtype}{result} c) "
                f"{{ c = com.microsoft.{operator}{listed} }}")  # fmt: skip
        feeds: dict[str, Any] = {"a": random.integers(limits.min, limits.max + 1, left).astype(dtype)}
        feeds["b"] = random.integers(limits.min, limits.max + 1, right).astype(dtype)
        feeds |= {name: np.float32(random.choice((0.25, 1.0, 0.0078125, 0.013, 0.37, 3.0, random.random()))) for name in "stu"}
        feeds |= {name: np.array(random.integers(limits.min, limits.max + 1)).astype(dtype) for name in "zyv"}
        agree(text, feeds | {"u": np.float32(feeds["s"] * random.choice((0.5, 1.0, 2.0)))} if draw % 3 == 0 else feeds)
        assert has_no_opaque_step(text)


SOFTMAXES = [
    ("uint8", (3, 17), "axis=-1, opset=13", 0.02, 0.00390625, 0),
    ("int8", (3, 17), "axis=-1, opset=13", 0.13, 0.00390625, -128),
    ("uint8", (2, 5, 4), "axis=1, opset=13", 0.5, 0.00738, 5),
    ("uint8", (2, 5, 4), "axis=1, opset=12", 0.013, 0.00392156862, 7),
    ("int8", (2, 5, 4), "opset=12", 1.0, 0.001, 0),
    ("uint8", (2, 512), "axis=1, opset=13", 0.0001, 0.00390625, 0),
    ("int8", (4, 1), "axis=-1, opset=13", 3.0, 0.5, -128),
]
"""Type, shape, attributes, both scales and the result's zero point."""


def _softmax(dtype: str, shape: tuple[int, ...], attributes: str, s: str, u: str, v: int) -> str:
    return (f"({dtype}{list(shape)} x) => ({dtype}{list(shape)} y) "
            f"<float s = {{{s}}}, {dtype} z = {{3}}, float u = {{{u}}}, {dtype} v = {{{v}}}> "
            f"{{ y = com.microsoft.QLinearSoftmax<{attributes}>(x, s, z, u, v) }}")  # fmt: skip


@drawn
@pytest.mark.parametrize(("dtype", "shape", "attributes", "s", "u", "v"), SOFTMAXES)
@given(data=st.data(), by_rules=st.booleans())
def test_softmax_of_bytes(dtype: str, shape: Any, attributes: str, s: float, u: float, v: int, data: st.DataObject, by_rules: bool) -> None:
    """A result may be one step off only at a tie, within the rounding error of n additions.

    Equal bytes cause ties: of 512 equal bytes, each result is half a step.
    """
    text = _softmax(dtype, shape, attributes, str(s), str(u), v)
    x = data.draw(of_bytes(shape, dtype))
    if data.draw(st.booleans()):
        x = np.full(shape, x.reshape(-1)[0])
    ours, theirs, _ = opened(text, by_rules=by_rules)
    (result,), (expected,) = (session.run(None, {"x": x}) for session in (ours, theirs))
    axes = (1, 2) if "axis=1, opset=12" in attributes else (1,) if "axis=1" in attributes else (-1,)
    most, count = np.floor(1 / np.float32(u)), math.prod(shape[axis] for axis in axes)
    powers = np.exp(s * x.astype(float))
    steps = most * powers / powers.sum(axis=axes, keepdims=True)
    is_a_tie = np.abs(steps - np.floor(steps) - 0.5) <= count * (steps * 2.0**-22 + most * 2.0**-27)  # additions, integers
    differences = np.abs(result.astype(int) - expected)
    assert differences.max() <= 1 and not (differences > 0)[~is_a_tie].any()
    assert has_no_opaque_step(text, by_rules=by_rules)


@pytest.mark.parametrize(("s", "u"), [("inf", "0.1"), ("0", "0.1"), ("-1", "0.1"), ("0.1", "-1"), ("0.1", "1e-9")])
def test_softmaxes_of_scales_that_leave_no_numbers_stay_opaque(s: str, u: str) -> None:
    """A softmax stays opaque if onnxruntime's table would hold values that no integer holds, or its result would wrap around."""
    proto = model(_softmax("uint8", (3, 17), "axis=-1, opset=13", "1", u, 0))
    (scale,) = (each for each in proto.graph.initializer if each.name == "s")
    scale.CopyFrom(numpy_helper.from_array(np.array(s, np.float32), "s"))  # the text format has no infinity
    assert "Opaque" in {node.op for node in walk(importer.load(proto).graph.roots)}


ADDED = """(uint8[5,37] a, uint8[5,37] b) => (uint8[5,37] c)
<float s = {0.013}, uint8 z = {113}, float t = {0.0371}, uint8 y = {7}, float u = {0.029}, uint8 v = {100}>
{ c = com.microsoft.QLinearAdd(a, s, z, b, t, y, u, v) }"""
AVERAGED = """(int8[2,3,7,5] a) => (int8[2,3,1,1] c) <float s = {0.013}, int8 z = {-13}, float u = {0.0029}, int8 v = {10}>
{ c = com.microsoft.QLinearGlobalAveragePool(a, s, z, u, v) }"""


@drawn
@given(a=of_bytes(MATRIX, "uint8"), b=of_bytes(MATRIX, "uint8"), c=of_bytes((2, 3, 7, 5), "int8"))
def test_sums_and_averages_of_bytes(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    agree(ADDED, {"a": a, "b": b})
    agree(AVERAGED, {"a": c})
    assert has_no_opaque_step(ADDED) and has_no_opaque_step(AVERAGED)


def test_sums_that_may_not_fit_stay_opaque() -> None:
    count = 33026
    text = f"(uint8[1,{count}] a, uint8[{count},1] b) => (int32[1,1] c) {{ c = MatMulInteger(a, b) }}"
    assert "Opaque" in {node.op for node in walk(importer.load(model(text)).graph.roots)}
    shorter = text.replace(str(count), str(count - 1))
    assert "Opaque" not in {node.op for node in walk(importer.load(model(shorter)).graph.roots)}


def graph_of(text: str) -> Graph:
    return importer.load(model(text)).graph


def test_other_element_types_stay_opaque() -> None:
    for dtype in ("int16", "float8e4m3fn"):
        text = f"(float[5,37] x, float s, {dtype} z) => ({dtype}[5,37] y) {{ y = QuantizeLinear(x, s, z) }}"
        assert "Opaque" in {node.op for node in walk(graph_of(text).roots)}


PAIRS = """(float[1,3,9,8] x, int8[4,3,3,3] w) => (float[1,4,9,8] y)
<float s = {0.013}, uint8 z = {0}, float t = {0.25}, int8 o = {0}, float u = {1.5}, uint8 v = {3}> {
q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, t, o) c = Conv<pads=[1,1,1,1]>(d, e)
r = Relu(c) p = QuantizeLinear(r, u, v) y = DequantizeLinear(p, u, v) }"""


@drawn
@given(x=arrays(np.float32, IMAGE, elements=st.floats(-4, 4, width=32)), data=st.data())
def test_pairs_around_a_convolution_become_one_product_of_bytes(x: np.ndarray, data: st.DataObject) -> None:
    """Dequantize and quantize around a convolution become one product of bytes.

    The equation holds over the reals, so a number may be rounded to the neighbouring byte but not further.
    """
    weight = data.draw(of_bytes(KERNEL, "int8"))
    text = PAIRS.replace("int8[4,3,3,3] w)", "int8[4,3,3,3] unused)").replace(
        "<float s", f"<int8[4,3,3,3] w = {{{', '.join(map(str, WEIGHTS.reshape(-1)))}}}, float s")
    ours, theirs, program = opened(text, by_rules=True)
    feeds = {"x": x, "unused": weight}
    (one,), (other,) = ours.run(None, feeds), theirs.run(None, feeds)
    assert np.abs(one - other).max() <= 1.5 + 1e-5
    products = [node for kernel in program.kernels for node in walk((kernel.fragment,)) if node.op == "Conv"]
    assert [node.type.dtype for node in products] == ["int32"]
    assert has_no_opaque_step(text, by_rules=True)


TIES = """(uint8[5,37] q) => (uint8[5,9] p)
<float s = {{1}}, uint8 z = {{128}}, int8[37,9] w = {{{weights}}}, float t = {{0.5}}, int8 o = {{0}}, float u = {{1}}, uint8 v = {{121}}> {{
d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, t, o) c = MatMul(d, e) p = QuantizeLinear(c, u, v) }}"""


@drawn
@given(q=arrays(np.uint8, MATRIX, elements=st.integers(126, 130)))
def test_a_product_that_is_quantised_at_once_rounds_ties_before_the_zero_point(q: np.ndarray) -> None:
    """A fused Quantize rounds ties before it adds the zero point.

    Halves are exact in float32 and the zero point is odd, so the result depends only on the order of rounding and adding.
    """
    weights = ", ".join(str(value % 3 - 1) for value in range(37 * 9))
    text = TIES.format(weights=weights)
    agree(text, {"q": q}, by_rules=True)
    _, _, program = opened(text, by_rules=True)
    fused = [{"MatMul", "Quantize"} <= {node.op for node in walk((kernel.fragment,))} for kernel in program.kernels]
    assert any(fused)


TWICE = """(uint8[5,37] q) => (int8[5,9] p)
<float s = {{1}}, uint8 z = {{128}}, int8[37,9] w = {{{weights}}}, float t = {{0.5}}, int8 o = {{0}}, float u = {{0.5}}, uint8 v = {{121}},
float[9] m = {{1, -2, 0.5, 4, 0.25, 1, 2, -0.5, 8}}, float[9] b = {{0, 1, -3.5, 7, 0.25, -64, 9, 2, 5}},
float r = {{2}}, int8 y = {{-128}}> {{
d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, t, o) c = MatMul(d, e) f = QuantizeLinear(c, u, v) g = DequantizeLinear(f, u, v)
h = Mul(g, m) i = Add(h, b) j = Relu(i) p = QuantizeLinear(j, r, y) }}"""


@drawn
@given(q=of_bytes(MATRIX, "uint8"))
def test_bytes_on_the_way_to_bytes_are_computed_in_the_same_call(q: np.ndarray) -> None:
    """A product followed by two quantisations, with a normalisation between them, is one call.

    The first quantisation must still saturate. All numbers are exact in float32, so the results are compared bit for bit.
    """
    text = TWICE.format(weights=", ".join(str(value % 3 - 1) for value in range(37 * 9)))
    agree(text, {"q": q}, by_rules=True)
    _, _, program = opened(text, by_rules=True)
    called = [[node.op for node in walk((kernel.fragment,))] for kernel in program.kernels]
    is_one_call = any("MatMul" in ops and "Relu" not in ops and ops.count("Quantize") == 2 for ops in called)
    assert is_one_call


SCALED = """(uint8[5,37] q) => (uint8[5,9] p)
<float s = {{0.013}}, uint8 z = {{{z}}}, int8[37,9] w = {{{weights}}}, float[9] t = {{{scales}}}, int8[9] o = {{0, 0, 0, 0, 0, 0, 0, 0, 0}},
float[9] b = {{0, 1, -3.5, 7, 0.25, -64, 9, 2, 5}}, float u = {{0.37}}, uint8 v = {{{v}}}> {{
d = DequantizeLinear(q, s, z) e = DequantizeLinear <axis = 1> (w, t, o) c = MatMul(d, e) f = Add(c, b) p = QuantizeLinear(f, u, v) }}"""


@drawn
@pytest.mark.parametrize(("z", "v"), [(0, 0), (0, 119), (128, 0), (128, 119)])
@given(q=of_bytes(MATRIX, "uint8"))
def test_a_sum_that_becomes_a_byte_is_scaled_once(z: int, v: int, q: np.ndarray) -> None:
    """A sum that is quantised is scaled once, and no division is left in the call.

    The two forms are equal over the reals, so only a number between two bytes may become the other byte.
    """
    random = np.random.default_rng(z + v)
    weights, scales = random.integers(-127, 128, WEIGHT), random.uniform(0.001, 0.1, 9).astype(np.float32)
    text = SCALED.format(z=z, v=v, weights=_listed(weights), scales=_listed(scales))
    ours, _, program = opened(text, by_rules=True)
    numbers = (q.astype(np.float64) - z) * float(np.float32(0.013)) @ (weights * scales.astype(np.float64))
    exact = (numbers + np.array([0, 1, -3.5, 7, 0.25, -64, 9, 2, 5])) / float(np.float32(0.37))
    (bytes_,) = ours.run(None, {"q": q})
    distance = np.abs(np.clip(exact + v, 0, 255) - bytes_.astype(np.float64))
    assert distance.max() <= 0.5 + 1e-4
    (product,) = [kernel for kernel in program.kernels if any(node.op == "MatMul" for node in walk((kernel.fragment,)))]
    assert "Dequantize" not in {node.op for node in walk((product.fragment,))}


LAYER = """(uint8[5,37] q) => (uint8[5,9] p)
<float s = {{0.013}}, uint8 z = {{119}}, int8[9,37] w = {{{weights}}}, float[9] t = {{{scales}}}, int8[9] o = {{0, 0, 0, 0, 0, 0, 0, 0, 0}},
float[9] b = {{0, 1, -3.5, 7, 0.25, -64, 9, 2, 5}}, float u = {{0.37}}, uint8 v = {{3}}> {{
d = DequantizeLinear(q, s, z) e = DequantizeLinear <axis = 0> (w, t, o) f = Gemm <transB = 1> (d, e, b) p = QuantizeLinear(f, u, v) }}"""


@drawn
@given(q=of_bytes(MATRIX, "uint8"))
def test_weights_that_are_transposed_are_multiplied_in_bytes(q: np.ndarray) -> None:
    """Transposed weights are multiplied as bytes.

    Classifiers are exported in this form: each output has a row of weights with its own scale.
    """
    random = np.random.default_rng(5)
    weights, scales = random.integers(-127, 128, WEIGHT[::-1]), random.uniform(0.001, 0.1, 9).astype(np.float32)
    ours, _, program = opened(LAYER.format(weights=_listed(weights), scales=_listed(scales)), by_rules=True)
    numbers = (q.astype(np.float64) - 119) * float(np.float32(0.013)) @ (weights * scales.astype(np.float64)[:, None]).T
    exact = (numbers + np.array([0, 1, -3.5, 7, 0.25, -64, 9, 2, 5])) / float(np.float32(0.37)) + 3
    assert np.abs(np.clip(exact, 0, 255) - ours.run(None, {"q": q})[0].astype(np.float64)).max() <= 0.5 + 1e-4
    products = [node for kernel in program.kernels for node in walk((kernel.fragment,)) if node.op == "MatMul"]
    assert [node.type.dtype for node in products] == ["int32"]


ACTIVATIONS = """(uint8[2,64,96] a, int8[2,96,80] b) => (float[2,64,80] c)
<float s = {{0.25}}, uint8 z = {{{z}}}, float t = {{0.5}}, int8 y = {{{y}}}> {{
d = DequantizeLinear(a, s, z) e = DequantizeLinear(b, t, y) c = MatMul(d, e) }}"""


@pytest.mark.parametrize(("z", "y"), [(0, 0), (113, 0), (7, -5)])
def test_a_product_of_two_activations_is_one_of_bytes(z: int, y: int) -> None:
    text, random = ACTIVATIONS.format(z=z, y=y), np.random.default_rng(z)
    a, b = random.integers(0, 256, (2, 64, 96)).astype(np.uint8), random.integers(-128, 128, (2, 96, 80)).astype(np.int8)
    agree(text, {"a": a, "b": b}, by_rules=True)
    _, _, program = opened(text, by_rules=True)
    products = [node for kernel in program.kernels for node in walk((kernel.fragment,)) if node.op == "MatMul"]
    assert [node.type.dtype for node in products] == ["int32"] or not ONEDNN_MATCH.multiplies_bytes()


WEIGHTS = np.random.default_rng(5).integers(-127, 128, KERNEL).astype(np.int8)


def _leaf(index: int, dtype: str, *sizes: int, constant: bool = False) -> Any:
    return placeholder(index, TensorType(dtype, sizes), constant=constant)


def test_the_library_multiplies_bytes_only_where_the_processor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    product = apply("MatMul", _leaf(0, "uint8", 4, 8), _leaf(1, "int8", 8, 16, constant=True))
    monkeypatch.setattr(ONEDNN_MATCH, "multiplies_bytes", lambda: True)
    assert not isinstance(match(product, "onednn.matmul"), str)
    assert "signed bytes" in str(match(apply("MatMul", _leaf(0, "uint8", 4, 8), _leaf(1, "uint8", 8, 16)), "onednn.matmul"))
    summed = apply("Add", product, _leaf(2, "int32", 16))
    assert "would compute it in float32" in str(match(summed, "onednn.matmul"))
    monkeypatch.setattr(ONEDNN_MATCH, "multiplies_bytes", lambda: False)
    assert "saturate" in str(match(product, "onednn.matmul"))
