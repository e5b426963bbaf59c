"""Test kernels in bytes: their results, bit by bit in their int32 sums, and the kernels that they expand to."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from egraph.errors import LowerError
from egraph.onnx.exporter import serialized
from egraph.tensor import Graph, Kernel, Node, Program, TensorType, bind, placeholder, walk
from egraph.tensor.ops import apply
from egraph.tensor.text import format_program, parse_program
from lower.calls.call import LibraryCall
from lower.candidates import candidates
from lower.compile import CompileOptions, compile_program, plan_program
from lower.quantised import MOST_ADDED, Quantised, Scale, expanded, quantised, quantised_weights
from lower.targets import lowering
from lower.targets.cpu.onednn.match import match, operand_precisions
from runtime import Session
from tests.support.lowering import Model, choose, float32, freeze
from tests.support.processor import needs_bytes

OPTIONS = CompileOptions(threads=1, export_graph=serialized)
GENERATED = lowering().generated


def in_bytes(graph: Graph, seen: tuple[float, float]) -> Program:
    """Return the graph's program with every library product in bytes, where ``seen`` is the range of its operand."""
    program = choose(graph, "onednn")
    kernels = (
        replace(kernel, implementation=kernel.implementation.in_precision("int8"), source_range=seen)
        if kernel.implementation.name in ("onednn.matmul", "onednn.convolution") else kernel
        for kernel in program.kernels
    )  # fmt: skip
    return replace(program, kernels=tuple(kernels))


def run(program: Program, folder: Path, **feeds: np.ndarray) -> np.ndarray:
    compile_program(program, folder, OPTIONS)
    with Session(folder, threads=1) as session:
        return np.asarray(session.run(None, feeds)[0])


def to_bytes(x: np.ndarray, scale: Scale) -> np.ndarray:
    """Compute QuantizeLinear as ONNX defines it."""
    limits = np.iinfo(scale.dtype)
    return np.asarray(np.clip(np.rint(x / np.float32(scale.step)) + scale.zero, limits.min, limits.max), np.int64)


@needs_bytes
@pytest.mark.parametrize("seen", [(-3.0, 2.0), (0.0, 2.5), (-1.0, 0.0)])
def test_a_product_sums_the_bytes_of_its_definition(tmp_path: Path, seen: tuple[float, float]) -> None:
    """Each int32 sum, recovered from the result, equals numpy's. Numbers beyond the range saturate."""
    b = Model()
    graph = b.graph(apply("MatMul", b.input(3, 7, 96), b.weight(96, 40)))
    x = np.random.default_rng(1).standard_normal((3, 7, 96)).astype(np.float32)
    assert x.min() < seen[0] and x.max() > seen[1]
    scale = Scale.of(seen, has_offsets=True)
    weights, scales = quantised_weights(graph.tensors["w0"], 1)
    sums = to_bytes(x, scale) @ weights.astype(np.int64)
    offsets = scale.zero * weights.astype(np.int64).sum(axis=0)
    found = run(in_bytes(graph, seen), tmp_path / "a", x0=x)
    restored = found.astype(np.float64) / (scales.astype(np.float64) * scale.step) + offsets
    assert np.array_equal(np.rint(restored), sums)
    assert np.max(np.abs(restored - sums)) < 0.1
    exact = np.clip(x, *seen).astype(np.float64) @ graph.tensors["w0"]
    assert np.max(np.abs(found - exact)) < 0.02 * np.max(np.abs(exact))


@needs_bytes
@pytest.mark.parametrize(("seen", "group"), [((-3.0, 2.0), 1), ((0.0, 2.5), 1), ((-3.0, 2.0), 4)])
def test_a_convolution_pads_with_bytes_that_mean_zero(tmp_path: Path, seen: tuple[float, float], group: int) -> None:
    b = Model()
    graph = b.graph(b.conv(b.input(2, 9, 9, 16), 32, 3, layout="NHWC", group=group, bias=False))
    x = np.random.default_rng(1).standard_normal((2, 9, 9, 16)).astype(np.float32)
    scale = Scale.of(seen, has_offsets=False)
    assert (scale.dtype, scale.zero) == ("int8" if seen[0] < 0 else "uint8", 0)
    weights, scales = quantised_weights(graph.tensors["w0"], 0)
    padded = np.pad(to_bytes(x, scale), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2)).reshape(2, 9, 9, group, 16 // group, 3, 3)
    kernels = weights.astype(np.int64).reshape(group, 32 // group, 16 // group, 3, 3)
    sums = np.einsum("nhwgikl,goikl->nhwgo", windows, kernels).reshape(2, 9, 9, 32)
    found = run(in_bytes(graph, seen), tmp_path / "a", x0=x)
    restored = found.astype(np.float64) / (scales.astype(np.float64) * scale.step)
    assert np.array_equal(np.rint(restored), sums)
    assert np.max(np.abs(restored - sums)) < 0.1


@needs_bytes
def test_what_follows_a_product_is_computed_in_float32_in_its_call(tmp_path: Path) -> None:
    """Bias, activation and residual are applied in the same call, with weights read through a transpose.

    The residual is the float32 number, not its byte.
    """
    b = Model()
    x, w, bias = b.input(8, 32), b.weight(32, 32), b.weight(32)
    leaves = [placeholder(0, x.type), placeholder(1, w.type, constant=True), placeholder(2, bias.type, constant=True)]
    product = apply("MatMul", leaves[0], apply("Transpose", leaves[1], perm=(1, 0)))
    fragment = apply("Add", apply("Relu", apply("Add", product, leaves[2])), leaves[0])
    graph = b.graph(bind(fragment, [x, w, bias]))
    how = lowering().implementation("onednn.matmul@int8")
    program = Program(graph, (Kernel(fragment, (x, w, bias), graph.roots[0], how, source_range=(-4.0, 4.0)),), 0.0)
    feeds = np.random.default_rng(2).standard_normal((8, 32)).astype(np.float32)
    found = run(program, tmp_path / "a", x0=feeds)
    scale = Scale.of((-4.0, 4.0), has_offsets=True)
    weights, scales = quantised_weights(np.ascontiguousarray(graph.tensors["w0"].T), 1)
    near = (to_bytes(feeds, scale) - scale.zero) * scale.step @ (weights * scales.astype(np.float64))
    assert np.max(np.abs(found - (np.maximum(near + graph.tensors["w1"], 0) + feeds))) < 1e-5


@needs_bytes
def test_kernels_that_read_the_same_value_share_its_bytes() -> None:
    b = Model()
    x = b.input(16, 64)
    graph = b.graph(*(apply("MatMul", x, b.weight(64, 64)) for _ in range(3)))
    plan, writer = plan_program(in_bytes(graph, (-4.0, 4.0)), OPTIONS)
    assert [step.name for step in plan.steps].count("Quantize") == 1 and len(plan.steps) == 4
    sizes = {buffer.key: (buffer.dtype, buffer.shape) for buffer in plan.buffers if buffer.area == "weight"}
    assert sum(dtype == "int8" for dtype, _ in sizes.values()) == 3
    assert not any(key in graph.tensors for key in sizes), "weights lie in the artefact in bytes alone"
    assert all(writer.program.graph.tensors[key].dtype == dtype for key, (dtype, _) in sizes.items())


@needs_bytes
def test_the_expanded_program_is_one_of_the_language() -> None:
    """The expanded kernels compute the values of the graph, and names and origins are kept."""
    b = Model()
    y = apply("Relu", apply("MatMul", b.input(8, 16), b.weight(16, 16)))
    graph = b.graph(apply("Exp", apply("MatMul", y, b.weight(16, 16))))
    graph = replace(graph, origins={y: ("first",)}, names={y: "hidden"})
    program = in_bytes(graph, (-4.0, 4.0))
    whole = expanded(program, GENERATED, lowering().reads)
    again = parse_program(format_program(whole), whole.graph.tensors)
    assert [kernel.output for kernel in again.kernels] == [kernel.output for kernel in whole.kernels]
    assert list(whole.graph.names.values()) == ["hidden"] and list(whole.graph.origins.values()) == [("first",)]
    assert len(whole.kernels) == 3 and {node.op for node in whole.graph.names} == {"Relu"}, "the name is that of the number"
    assert {node.type.dtype for node in walk(whole.graph.roots)} == {"float32", "uint8", "int8", "int32"}
    assert len(expanded(program, GENERATED).kernels) == 4
    assert expanded(choose(graph, "onednn"), GENERATED).kernels == choose(graph, "onednn").kernels


@needs_bytes
@pytest.mark.parametrize("seen", [(-3.0, 2.0), (0.0, 2.5)])
@pytest.mark.parametrize("kind", ["product", "convolution", "generated", "reshape"])
def test_a_value_that_is_read_as_bytes_alone_is_written_in_bytes(tmp_path: Path, kind: str, seen: tuple[float, float]) -> None:
    """The library, generated code and a kernel behind a view write bytes.

    The results equal those of a separate pass, except where a byte is rounded to a neighbour.
    """
    b = Model()
    match kind:
        case "product":
            y = apply("Relu", apply("Add", apply("MatMul", b.input(12, 32), b.weight(32, 64)), b.weight(64)))
        case "convolution":
            y = apply("Relu", b.conv(b.input(1, 6, 6, 16), 32, 3, layout="NHWC"))
        case "generated":
            y = apply("Exp", apply("Add", b.input(12, 64), b.weight(64)))
        case _:
            y = apply("Reshape", apply("Exp", b.input(3, 4, 64)), shape=(12, 64))
    last = b.conv(y, 16, 1, layout="NHWC", bias=False) if kind == "convolution" else apply("MatMul", y, b.weight(64, 24))
    graph = b.graph(last)
    program = in_bytes(graph, seen)
    whole, apart = expanded(program, GENERATED, lowering().reads), expanded(program, GENERATED)
    operators = [[kernel.fragment.op for kernel in each.kernels] for each in (whole, apart)]
    assert [each.count("Quantize") for each in operators] == ([1, 2] if kind in ("product", "convolution") else [0, 1])
    assert operators[0].count("Saturate") == 1 and len(operators[0]) == len(operators[1]) - 1
    feed = np.random.default_rng(3).standard_normal(graph.inputs[0].type.sizes).astype(np.float32)
    assert np.max(np.abs(run(program, tmp_path / "a", x0=feed) - run(apart, tmp_path / "b", x0=feed))) <= largest_step(program, seen)


def largest_step(program: Program, seen: tuple[float, float]) -> float:
    """Return how much a result of the last kernel changes if a few bytes are rounded to a neighbour."""
    kernel = program.kernels[-1]
    weights = program.graph.tensors[kernel.inputs[1].string("digest")]
    return 3 * Scale.of(seen, has_offsets=weights.ndim == 2).step * float(np.max(np.abs(weights)))


@needs_bytes
def test_a_value_that_is_also_read_as_numbers_or_returned_stays_in_numbers() -> None:
    b = Model()
    y = apply("Relu", apply("MatMul", b.input(8, 16), b.weight(16, 16)))
    z, w = apply("MatMul", y, b.weight(16, 16)), apply("MatMul", y, b.weight(16, 24))

    def passes(*roots: Node) -> int:
        whole = expanded(in_bytes(b.graph(*roots), (-3.0, 2.0)), GENERATED, lowering().reads)
        return [kernel.fragment.op for kernel in whole.kernels].count("Quantize")

    assert passes(z) == passes(z, w) == 1
    assert passes(z, y) == passes(z, apply("Softmax", y, axis=1)) == 2
    program = in_bytes(b.graph(z), (-3.0, 2.0))
    first, last = program.kernels
    fragment = apply("Add", last.fragment, placeholder(0, y.type))
    residual = replace(last, fragment=fragment, output=bind(fragment, list(last.inputs)))
    program = replace(program, graph=b.graph(residual.output), kernels=(first, residual))
    assert [kernel.fragment.op for kernel in expanded(program, GENERATED, lowering().reads).kernels].count("Quantize") == 2


def test_bytes_of_another_range_are_made_by_a_pass() -> None:
    """Two readers with different scales cannot share their bytes."""
    b = Model()
    y = apply("Relu", apply("MatMul", b.input(8, 16), b.weight(16, 16)))
    program = in_bytes(b.graph(apply("MatMul", y, b.weight(16, 16)), apply("MatMul", y, b.weight(16, 24))), (-3.0, 2.0))
    last = replace(program.kernels[-1], source_range=(-1.0, 1.0))
    whole = expanded(replace(program, kernels=(*program.kernels[:-1], last)), GENERATED, lowering().reads)
    assert [kernel.fragment.op for kernel in whole.kernels].count("Quantize") == 3


def test_ranges_are_part_of_a_program_s_text() -> None:
    b = Model()
    program = in_bytes(b.graph(apply("MatMul", b.input(8, 16), b.weight(16, 16))), (-1.5, 0.1))
    again = parse_program(format_program(program), program.graph.tensors)
    assert [kernel.source_range for kernel in again.kernels] == [(-1.5, 0.1)]
    assert again.kernels[0].implementation.precision == "int8"


def test_a_kernel_without_a_range_is_refused() -> None:
    b = Model()
    program = in_bytes(b.graph(apply("MatMul", b.input(8, 16), b.weight(16, 16))), (-1.0, 1.0))
    program = replace(program, kernels=tuple(replace(kernel, source_range=None) for kernel in program.kernels))
    with pytest.raises(LowerError, match="range of its operand"):
        plan_program(program, OPTIONS)


@pytest.mark.parametrize(
    ("seen", "has_offsets", "expected"),
    [
        ((-1.0, 1.55), True, Scale(2.55 / 255, 100, "uint8")),
        ((0.5, 2.55), True, Scale(2.55 / 255, 0, "uint8")),
        ((-2.55, -1.0), True, Scale(2.55 / 255, 255, "uint8")),
        ((-2.54, 1.0), False, Scale(2.54 / 127, 0, "int8")),
        ((0.5, 2.55), False, Scale(2.55 / 255, 0, "uint8")),
        ((0.0, 0.0), True, Scale(1.0, 0, "uint8")),
    ],
)
def test_ranges_become_scales_that_hold_zero(seen: tuple[float, float], has_offsets: bool, expected: Scale) -> None:
    found = Scale.of(seen, has_offsets=has_offsets)
    assert (found.zero, found.dtype) == (expected.zero, expected.dtype)
    assert found.step == pytest.approx(expected.step, rel=1e-6)
    numbers = np.array([*seen, 0.0], np.float32)
    back = (to_bytes(numbers, found) - found.zero) * found.step
    assert np.all(np.abs(back - numbers) <= 0.51 * found.step + 1e-7) and back[2] == 0


def test_every_output_has_its_own_scale() -> None:
    weights = np.array([[1.0, 0.0, -200.0], [-0.5, 0.0, 100.0]], np.float32)
    found, scales = quantised_weights(weights, 1)
    assert found.dtype == np.int8 and found.tolist() == [[127, 0, -127], [-64, 0, 64]]
    assert scales == pytest.approx([1 / 127, 1.0, 200 / 127])


def product(inner: int = 16, *, constant: bool = True) -> Node:
    return apply("MatMul", placeholder(0, float32(4, inner)), placeholder(1, TensorType("float32", (inner, 4)), constant=constant))


@pytest.mark.parametrize(
    ("fragment", "reason"),
    [
        (product(constant=False), "constant weights"),
        (product(MOST_ADDED + 1), "int32"),
        (apply("Relu", placeholder(0, float32(4))), "one product"),
        (apply("MatMul", placeholder(0, float32(3, 4, 8)), placeholder(1, float32(3, 8, 8), constant=True)), "no matrix"),
    ],
)  # fmt: skip
def test_what_has_no_form_in_bytes_says_why(fragment: Node, reason: str) -> None:
    found = match(fragment, "onednn.matmul@int8")
    assert isinstance(found, str)
    if reason != "constant weights":
        assert reason in found
    direct = quantised(fragment)
    assert isinstance(direct, str) and reason in direct
    assert isinstance(quantised(product()), Quantised)


@pytest.mark.parametrize("has_units", [True, False])
def test_kernels_in_bytes_are_offered_where_the_processor_multiplies_bytes(monkeypatch: pytest.MonkeyPatch, has_units: bool) -> None:
    monkeypatch.setattr(sys.modules[match.__module__], "multiplies_bytes", lambda: has_units)
    rows = 23 + has_units  # matches are cached
    b = Model()
    frozen, _ = freeze(b.graph(apply("MatMul", b.input(rows, 24), b.weight(24, 8))))
    found = candidates(frozen, replace(lowering().target, precisions=("int8",)))
    texts = {one.implementation.text for options in found.values() for one in options}
    fragment = apply("MatMul", placeholder(0, float32(rows, 24)), placeholder(1, float32(24, 8), constant=True))
    if has_units:
        assert isinstance(match(fragment, "onednn.matmul@int8"), LibraryCall) and "onednn.matmul@int8" in texts
        assert operand_precisions(fragment, "onednn.matmul@int8") == {0: frozenset({"int8"}), 1: frozenset({"int8"})}
    else:
        refusal = operand_precisions(fragment, "onednn.matmul@int8")
        assert isinstance(refusal, str) and "vnni" in refusal
        assert {text for text in texts if "@" in text} == {"bytes.product@int8"}
