"""Import: integers of known ranges become numbers, and agree with onnxruntime's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from egraph.onnx.importer import load
from egraph.optimize.estimated import open_session
from tests.egraph.onnx.test_importer import model_of, operators, run

LIMIT = 1 << 24
GREAT = (1 << 62) + 1
ROWS = np.array([[3, -7, 0, 5, 12, 2], [-1, 4, 4, -8, 9, 6]], np.float32)
PLACES = "z = Constant<value_float = -8.0>() t = Constant<value_float = 12.0>() c = Clip(x, z, t)"
"""Integers from -8 to 12, computed from numbers."""


def check(text: str, feeds: dict[str, Any], *, opaque: int = 0, opset: int = 18) -> None:
    """Compare a model with onnxruntime bit for bit, and count the nodes that are left to onnxruntime."""
    model = model_of(text, opset)
    assert operators(load(model).graph)["Opaque"] == opaque
    for expected, actual in zip(run(model, feeds), open_session(model).run(None, feeds), strict=True):
        assert expected.dtype == actual.dtype
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    "body",
    [
        "y = Add(i, i)", "y = Sub(i, k)", "y = Mul(i, i)", "y = Max(i, k)", "y = Min(i, k)", "y = Neg(i)", "y = Abs(i)", "y = Sign(i)",
        "y = Div(i, k)", "y = Mod(i, k)", "y = Where(b, i, k)", "y = Clip(i, n, k)", "y = Clip(i, , k)",
        "y = ReduceMax(i, a)", "y = ReduceMin(i, a)",
        "y = ReduceSum<keepdims = 0>(i, a)", "y = CumSum(i, o)", "y = ArgMax<axis = 1>(i)", "y = Cast<to = 10>(e)", "y = OneHot(i, k, v)",
        "y = OneHot<axis = 0>(m, d, w)", "y = Add(e, i)", "s = Mul(i, i) u = Add(s, k) q = Div(u, k) y = Mod(q, k)",
    ],
)  # fmt: skip
def test_operators_of_integers_compute_numbers(body: str, dtype: str) -> None:
    kind, number = ("int64", 7) if dtype == "int64" else ("int32", 6)
    body = body.replace("y = Cast<to = 10>(e)", f"y = Cast<to = {number}>(i8)")
    last = body.rpartition("y = ")[2]
    result = "int64" if last.startswith("ArgMax") or "w)" in last else "float" if "v)" in last else kind
    check(
        f"(float[2, 6] x) => ({result} y) <{kind} k = {{5}}, {kind} n = {{-2}}, int64[1] a = {{1}}, int64 o = {{1}}, int64 d = {{6}}, "
        f"float[2] v = {{0.5, 2}}, int64[2] w = {{3, 9}}> {{ {PLACES} i = Cast<to = {number}>(c) "
        f"b = Greater(x, z) e = Cast<to = {number}>(b) m = ArgMax<axis = 1, keepdims = 0>(x) i8 = Cast<to = 7>(m) {body} }}",
        {"x": ROWS},
    )


@pytest.mark.parametrize("operator", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
@pytest.mark.parametrize("constant", [0, LIMIT - 1, 1 - LIMIT])
def test_a_comparison_with_a_small_integer_is_exact(operator: str, constant: int) -> None:
    """A comparison with a small integer is exact for any operand.

    Numbers beyond 2^24 are rounded, but never past a smaller integer.
    """
    values = [constant + d for d in (-2, -1, 0, 1, 2)] + [LIMIT + 1, -LIMIT - 1, GREAT, -GREAT]
    text = f"(int64[9] x) => (bool[9] y, bool[9] z) <int64 c = {{{constant}}}> {{ y = {operator}(x, c) z = {operator}(c, x) }}"
    check(text, {"x": np.array(values)})


def test_a_comparison_with_a_great_integer_is_left_to_onnxruntime() -> None:
    text = f"(int64[3] x) => (bool[3] y) <int64 c = {{{LIMIT + 1}}}> {{ y = Equal(x, c) }}"
    check(text, {"x": np.array([LIMIT, LIMIT + 1, 0])}, opaque=1)


@pytest.mark.parametrize(
    "body",
    [
        "y = Add(x, x)",  # the range of an input is unknown
        f"c = Constant<value_int = {LIMIT - 1}>() b = Greater(x, o) i = Cast<to = 7>(b) y = Add(i, c)",
        "b = Greater(x, o) i = Cast<to = 7>(b) y = Div(i, x)",
    ],
)
def test_what_float32_may_not_hold_is_left_to_onnxruntime(body: str) -> None:
    text = f"(int64[4] x) => (int64[4] y) <int64 o = {{0}}> {{ {body} }}"
    check(text, {"x": np.array([LIMIT + 1, -LIMIT - 1, 3, 7])}, opaque=1)


def test_bytes_that_wrap_around_are_left_to_onnxruntime() -> None:
    check("(uint8[3] x) => (uint8[3] y) { y = Add(x, x) }", {"x": np.array([3, 127, 200], np.uint8)}, opaque=1)


@pytest.mark.parametrize("body", ["y = Xor(a, b)", "y = Equal(a, b)", "r = ReduceMax<keepdims = 0>(b, k) y = And(a, r)"])
def test_conditions_are_combined(body: str) -> None:
    conditions = [np.array(list(np.binary_repr(bits, 8))) == "1" for bits in (0b11110000, 0b11001100, 0b10101010)]
    feeds = dict(zip("abc", conditions, strict=True))
    check(f"(bool[8] a, bool[8] b, bool[8] c) => (bool[8] y) <int64[1] k = {{0}}> {{ d = Or(b, c) z = And(d, d) {body} }}", feeds, opset=20)


def test_numbers_of_a_mask_stay_numbers() -> None:
    """Counts and averages over a mask convert nothing to integers and back."""
    text = """(float[2, 6] x) => (float[2] y) <float z = {0}, int64[1] a = {1}, int64 o = {1}> {
        m = Greater(x, z) i = Cast<to = 7>(m) n = ReduceSum<keepdims = 0>(i, a) p = Max(n, o) c = Cast<to = 1>(p)
        r = Relu(x) s = ReduceSum<keepdims = 0>(r, a) y = Div(s, c) }"""
    check(text, {"x": ROWS})
    assert not {"Truncate", "Cast"} & set(operators(load(model_of(text)).graph))
