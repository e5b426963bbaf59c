"""Steps after a product of bytes whose constants change nothing are omitted from the library's call, and no bit changes."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from egraph.onnx.types import array_type, tensor_digest
from egraph.tensor import Graph, Kernel, Node, Program, TensorType, attributes, make, placeholder
from egraph.tensor.ops import apply
from lower.calls.call import LibraryCall
from lower.compile import CompileOptions, compile_program, plan_program
from lower.targets import lowering
from lower.targets.cpu.onednn.match import match
from runtime import Session
from tests.support.processor import needs_bytes

ROWS, INNER, COLUMNS = 5, 37, 9
WEIGHTS = np.random.default_rng(3).integers(-127, 128, (INNER, COLUMNS)).astype(np.int8)
SCALES = np.linspace(0.0001, 0.002, COLUMNS, dtype=np.float32)
BIASES = np.linspace(-3, 3, COLUMNS, dtype=np.float32)
CASES = tuple(product((0, 700), (1.0, 0.37), (False, True), (0, 7)))
pytestmark = needs_bytes


def constants(zero: int, scale: float, biased: bool, zero_point: int) -> tuple[np.ndarray, ...]:
    biases = BIASES if biased else np.zeros_like(BIASES)
    return WEIGHTS, SCALES, np.full(COLUMNS, zero, np.int32), biases, np.array(scale, np.float32), np.array(zero_point, np.uint8)


def program(*values: np.ndarray) -> Program:
    """Return quantize(dequantize(x w, s, z) + b, u, v) as one call."""
    x = make("Input", (), attributes(name="x"), TensorType("uint8", (ROWS, INNER)))
    digests = [tensor_digest(value) for value in values]
    operands = (x, *(make("Constant", (), attributes(digest=d), array_type(v)) for d, v in zip(digests, values, strict=True)))
    leaves = [placeholder(i, node.type, constant=i > 0) for i, node in enumerate(operands)]

    def applied(x: Node, w: Node, s: Node, z: Node, b: Node, u: Node, v: Node) -> Node:
        return apply("Quantize", apply("Add", apply("Dequantize", apply("MatMul", x, w), s, z), b), u, v)

    root = applied(*operands)
    kernel = Kernel(applied(*leaves), operands, root, lowering("cpu").implementation("onednn.matmul"))
    return Program(Graph("kernel", (x,), (("y", root),), dict(zip(digests, values, strict=True))), (kernel,), 0.0)


@cache
def opened(case: tuple[int, float, bool, int]) -> Session:
    with TemporaryDirectory() as folder:
        compile_program(program(*constants(*case)), Path(folder))
        return Session(folder)


def steps(case: tuple[int, float, bool, int]) -> list[str]:
    plan, _ = plan_program(program(*constants(*case)), CompileOptions())
    return [operation["algorithm"] for operation in plan.steps[0].spec["post_ops"]]


def test_what_changes_nothing_is_left_out() -> None:
    assert steps((700, 0.37, True, 7)) == ["sub", "mul", "add", "div", "round", "add"]
    assert steps((0, 0.37, True, 7)) == ["mul", "add", "div", "round", "add"]
    assert steps((0, 1.0, True, 0)) == ["mul", "add"]
    assert steps((0, 1.0, False, 0)) == ["mul"]


def test_constants_of_whole_numbers_are_read_as_float32() -> None:
    """The library would convert an operand for every vector of results. A constant is converted once, when a session is opened."""
    plan, _ = plan_program(program(*constants(700, 0.37, True, 7)), CompileOptions())
    (step,) = plan.steps
    stored = [plan.buffers[i].dtype for i in step.inputs]
    read = {each["algorithm"]: each.get("dtype", stored[each["argument"]]) for each in step.spec["post_ops"] if "argument" in each}
    assert {"int32", "uint8"} < set(stored) and read == dict.fromkeys(("sub", "mul", "add", "div"), "float32")


def test_a_computed_zero_point_is_read_as_it_lies() -> None:
    x, z = placeholder(0, TensorType("uint8", (ROWS, INNER))), placeholder(3, TensorType("uint8", ()))
    w = placeholder(1, TensorType("int8", (INNER, COLUMNS)), constant=True)
    s = placeholder(2, TensorType("float32", ()), constant=True)
    for zero, expected in ((z, [None, None]), (placeholder(3, z.type, constant=True), [None, "float32"])):
        call = match(apply("Quantize", apply("Cast", apply("MatMul", x, w), to="float32"), s, zero), "onednn.matmul")
        assert isinstance(call, LibraryCall)
        assert [each.get("dtype") for each in call.post_operations if "argument" in each] == expected


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@pytest.mark.parametrize("case", CASES)
@given(x=arrays(np.uint8, (ROWS, INNER), elements=st.one_of(st.integers(0, 255), st.sampled_from((0, 255)))))
def test_no_bit_changes(case: tuple[int, float, bool, int], x: np.ndarray) -> None:
    w, s, z, b, u, v = constants(*case)
    total = x.astype(np.int32) @ w.astype(np.int32) - z
    expected = np.clip(np.rint((total.astype(np.float32) * s + b) / u) + v.astype(np.float32), 0, 255).astype(np.uint8)
    np.testing.assert_array_equal(opened(case).run(None, {"x": x})[0], expected)
