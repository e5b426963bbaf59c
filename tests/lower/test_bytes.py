"""Test products and convolutions of bytes: their sums are exact, and their epilogues agree with the reference."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egraph.onnx.exporter import serialized
from egraph.tensor import Graph, Implementation, Node, TensorType, attributes, make, placeholder, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.calls.call import LibraryCall
from lower.compile import CompileOptions, compile_program
from lower.targets import cpu, lowering
from lower.targets.cpu.bytes.match import PRODUCT, TILES, constant_orders, match, operand_precisions
from lower.views import Window
from runtime import Session
from runtime.devices.cpu.native.build import build
from tests.support.lowering import Model, choose, float32

SLOW = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
BYTES = st.sampled_from(["uint8", "int8"])
THREADS = st.sampled_from([1, 2])
ENDS = ("int32", "integers", "float32", "residual", "uint8", "int8", "quantised", "bytes between")


def activated(x: Node, name: str) -> Node:
    attributes: dict[str, dict[str, Any]] = {
        "Clip": {"min": -0.5, "max": 6.0}, "LeakyRelu": {"alpha": 0.1}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
        "Gelu": {"approximate": "none"},
    }  # fmt: skip
    if name == "Swish":
        return apply("Mul", x, apply("Sigmoid", x))
    return apply(name, x, **attributes.get(name, {}))


class Bytes:
    """Builder of a small graph of bytes. Bytes are drawn from their whole range, so that 16-bit sums would saturate."""

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.inputs: list[Node] = []
        self.random = np.random.default_rng(5)

    def drawn(self, dtype: str, *shape: int) -> np.ndarray:
        if dtype == "float32":
            return self.random.standard_normal(shape).astype(np.float32)
        limits = np.iinfo(dtype)
        return self.random.integers(max(limits.min, -(2**20)), min(limits.max, 2**20) + 1, shape).astype(dtype)

    def input(self, dtype: str, *shape: int) -> Node:
        node = make("Input", (), attributes(name=f"x{len(self.inputs)}"), TensorType(dtype, shape))
        self.inputs.append(node)
        return node

    def constant(self, value: np.ndarray | np.generic) -> Node:
        digest = f"c{len(self.tensors)}"
        self.tensors[digest] = np.asarray(value)
        return make("Constant", (), attributes(digest=digest), TensorType(value.dtype.name, value.shape))

    def weight(self, dtype: str, *shape: int) -> Node:
        return self.constant(self.drawn(dtype, *shape))

    def ended(self, sums: Node, end: str) -> Node:
        """Return the epilogue ``end`` applied to the sums."""
        columns = sums.type.sizes[-1]
        if end == "int32":
            return sums
        if end == "integers":
            sums = apply("Sub", apply("Add", sums, self.weight("int32", columns)), self.input("int32", *sums.type.sizes[:-1], 1))
        y = apply("Mul", apply("Cast", sums, to="float32"), self.constant(2.0 ** -self.random.integers(4, 12, columns).astype(np.float32)))
        if end == "residual":
            y = apply("Add", y, self.input("float32", *y.type.sizes))
        y = apply("Add", y, self.constant(self.random.integers(-9, 9, columns).astype(np.float32)))
        if end in ("uint8", "int8"):
            return apply("Saturate", apply("Relu", y) if end == "int8" else y, to=end)
        if end in ("quantised", "bytes between"):
            scale, zero = self.constant(np.float32(2)), self.constant(np.uint8(121))
            y = apply("Quantize", y, scale, zero)
            return apply("Clip", apply("Dequantize", y, scale, zero), min=-9.5, max=30.0) if end == "bytes between" else y
        return apply("Relu", y) if end == "float32" else y

    def graph(self, output: Node) -> Graph:
        return Graph("test", tuple(self.inputs), (("y", output),), self.tensors)


def without_vectors(folder: Path) -> None:
    """Replace the library of an artefact by the code for processors without vector instructions."""
    (step,) = (step for step in json.loads((folder / "plan.json").read_text())["steps"] if step["kind"] == "function")
    shutil.copyfile(build(Path(cpu.__file__).with_name("bytes") / "bytes.c", ("-U__x86_64__",)), folder / step["spec"]["library"])


def compare(model: Bytes, y: Node, folder: Path, threads: int, implementation: str = PRODUCT, *, is_plain: bool = False) -> None:
    """Check that one call computes ``y``. All numbers are exact in float32, so every bit must equal the reference."""
    graph = model.graph(y)
    program = choose(graph, implementation)
    assert [kernel.implementation.text for kernel in program.kernels if not kernel.implementation.is_free] == [implementation]
    compile_program(program, folder, CompileOptions(threads=threads, export_graph=serialized))
    if is_plain:
        without_vectors(folder)
    feeds = {node.string("name"): model.drawn(node.type.dtype, *node.type.sizes) for node in graph.inputs}
    feeds = {name: np.rint(value) if value.dtype == np.float32 else value for name, value in feeds.items()}
    leaves = {node: feeds[node.string("name")] for node in graph.inputs}
    leaves |= {node: graph.tensors[node.string("digest")] for node in walk(graph.roots) if node.op == "Constant"}
    (expected,) = evaluate(graph.roots, leaves)
    with Session(folder, threads=threads) as session:
        for _ in range(2):
            (actual,) = session.run(None, feeds)
            np.testing.assert_array_equal(actual, expected)


@SLOW
@given(
    images=st.sampled_from([1, 2]), height=st.integers(3, 17), width=st.integers(3, 20), channels=st.sampled_from([1, 1, 3, 8, 17]),
    outputs=st.sampled_from([1, 1, 7, 16, 33]), taps=st.sampled_from([(3, 3), (1, 1), (5, 5), (1, 3), (2, 1)]),
    stride=st.sampled_from([(1, 1), (2, 2), (1, 3)]), pads=st.sampled_from([0, 1, 2]), step=st.sampled_from([1, 1, 2]),
    group=st.sampled_from([1, 3, 21]), kinds=st.tuples(BYTES, BYTES), end=st.sampled_from(ENDS), threads=THREADS,
)  # fmt: skip
def test_convolutions_of_bytes_agree_with_the_reference(
    tmp_path: Path, images: int, height: int, width: int, channels: int, outputs: int, taps: tuple[int, int], stride: tuple[int, int],
    pads: int, step: int, group: int, kinds: tuple[str, str], end: str, threads: int,
) -> None:  # fmt: skip
    if min(height, width) + 2 * pads <= step * (max(taps) - 1):
        return
    model = Bytes()
    x, weights = model.input(kinds[0], images, height, width, channels * group), model.weight(kinds[1], outputs * group, channels, *taps)
    y = apply(
        "Conv", x, weights, strides=stride, pads=(pads, pads, pads, max(0, pads - 1)), dilations=(step, step), group=group, layout="NHWC"
    )
    compare(model, model.ended(y, end), tmp_path, threads)


@SLOW
@given(
    images=st.sampled_from([1, 2]), height=st.integers(3, 17), width=st.integers(3, 20), channels=st.sampled_from([3, 21, 40, 72, 136]),
    taps=st.sampled_from([(3, 3), (1, 1), (5, 5), (1, 3), (2, 1), (4, 2)]), stride=st.sampled_from([(1, 1), (2, 2), (3, 1)]),
    pads=st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 3, 1)]), step=st.sampled_from([1, 2, 3]), kinds=st.tuples(BYTES, BYTES),
    end=st.sampled_from(ENDS), threads=THREADS, is_plain=st.booleans(),
)  # fmt: skip
def test_windows_of_single_channels_agree_with_the_reference(
    tmp_path: Path, images: int, height: int, width: int, channels: int, taps: tuple[int, int], stride: tuple[int, int],
    pads: tuple[int, ...], step: int, kinds: tuple[str, str], end: str, threads: int, is_plain: bool,
) -> None:  # fmt: skip
    """Pairs of taps may begin at every line, at every second line, or at none that the stride skips. Blocks have 4, 2 or 1 vectors."""
    if height + pads[0] + pads[2] <= step * (taps[0] - 1) or width + pads[1] + pads[3] <= step * (taps[1] - 1):
        return
    model = Bytes()
    x, weights = model.input(kinds[0], images, height, width, channels), model.weight(kinds[1], channels, 1, *taps)
    y = apply("Conv", x, weights, strides=stride, pads=pads, dilations=(step, step), group=channels, layout="NHWC")
    compare(model, model.ended(y, end), tmp_path, threads, is_plain=is_plain)


@SLOW
@given(
    rows=st.sampled_from([(1,), (7,), (2, 5), (3, 1, 30)]), size=st.sampled_from([1, 2, 37, 96]), columns=st.sampled_from([1, 9, 16, 50]),
    kinds=st.tuples(BYTES, BYTES), is_constant=st.booleans(), end=st.sampled_from(ENDS), threads=THREADS,
)  # fmt: skip
def test_products_of_bytes_agree_with_the_reference(
    tmp_path: Path, rows: tuple[int, ...], size: int, columns: int, kinds: tuple[str, str], is_constant: bool, end: str, threads: int
) -> None:
    model = Bytes()
    x = model.input(kinds[0], *rows, size)
    weights = (model.weight if is_constant else model.input)(kinds[1], size, columns)
    compare(model, model.ended(apply("MatMul", x, weights), end), tmp_path, threads)


@pytest.mark.parametrize(("side", "channels", "outputs", "taps"), [(40, 24, 64, 3), (7, 96, 320, 3), (33, 80, 40, 1), (90, 3, 40, 7)])
def test_large_convolutions_of_bytes_are_shared_by_threads(tmp_path: Path, side: int, channels: int, outputs: int, taps: int) -> None:
    model = Bytes()
    y = apply(
        "Conv", model.input("uint8", 1, side, side, channels), model.weight("int8", outputs, channels, taps, taps), strides=(1, 1),
        pads=(taps // 2,) * 4, dilations=(1, 1), group=1, layout="NHWC",
    )  # fmt: skip
    compare(model, model.ended(y, "uint8"), tmp_path, 2)


@pytest.mark.parametrize(("height", "width", "channels", "taps"), [(40, 40, 136, 3), (9, 7, 700, 5), (60, 60, 24, 3), (3, 200, 100, 3)])
def test_large_windows_of_single_channels_are_shared_by_threads(tmp_path: Path, height: int, width: int, channels: int, taps: int) -> None:
    model = Bytes()
    x, weights = model.input("uint8", 1, height, width, channels), model.weight("int8", channels, 1, taps, taps)
    y = apply("Conv", x, weights, strides=(1, 1), pads=(taps // 2,) * 4, dilations=(1, 1), group=channels, layout="NHWC")
    compare(model, model.ended(y, "uint8"), tmp_path, 2)


@SLOW
@given(
    images=st.sampled_from([1, 2]), height=st.integers(1, 15), width=st.integers(1, 20), channels=st.sampled_from([8, 17, 32, 40]),
    outputs=st.sampled_from([1, 16, 33]), pads=st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (2, 0, 1, 1)]), kinds=st.tuples(BYTES, BYTES),
    end=st.sampled_from(ENDS), threads=THREADS,
)  # fmt: skip
def test_convolutions_in_tiles_agree_with_the_reference(
    tmp_path: Path, images: int, height: int, width: int, channels: int, outputs: int, pads: tuple[int, ...], kinds: tuple[str, str],
    end: str, threads: int,
) -> None:  # fmt: skip
    if height + pads[0] + pads[2] < 3 or width + pads[1] + pads[3] < 3:
        return
    model = Bytes()
    x, weights = model.input(kinds[0], images, height, width, channels), model.weight(kinds[1], outputs, channels, 3, 3)
    y = apply("Conv", x, weights, strides=(1, 1), pads=pads, dilations=(1, 1), group=1, layout="NHWC")
    compare(model, model.ended(y, end), tmp_path, threads, TILES)


@pytest.mark.parametrize(("x", "w"), [(255, -128), (255, 127)])
def test_the_largest_sums_of_tiles_are_exact(tmp_path: Path, x: int, w: int) -> None:
    """Intermediate transformed sums wrap around. Four times the result just fits."""
    model, channels = Bytes(), 1820
    weights = model.constant(np.full((3, channels, 3, 3), w, np.int8))
    y = apply(
        "Conv", model.input("uint8", 1, 4, 4, channels), weights, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1, layout="NHWC"
    )
    graph = model.graph(y)
    compile_program(choose(graph, TILES), tmp_path, CompileOptions(threads=1, export_graph=serialized))
    with Session(tmp_path, threads=1) as session:
        (sums,) = session.run(None, {"x0": np.full((1, 4, 4, channels), x, np.uint8)})
    assert np.all(sums == 9 * channels * x * w)


@pytest.mark.parametrize("name", ["Sigmoid", "Tanh", "Gelu", "Swish", "HardSwish", "HardSigmoid", "LeakyRelu", "Clip"])
def test_functions_of_sums_are_close_to_the_reference(tmp_path: Path, name: str) -> None:
    model = Bytes()
    sums = apply("MatMul", model.input("uint8", 200, 3), model.weight("int8", 3, 40))
    y = apply("Mul", apply("Cast", sums, to="float32"), model.constant(np.float32(2.0**-13)))
    graph = model.graph(activated(y, name))
    program = choose(graph, "bytes")
    assert [kernel.implementation.text for kernel in program.kernels] == [PRODUCT]
    compile_program(program, tmp_path, CompileOptions(threads=1, export_graph=serialized))
    x = model.drawn("uint8", 200, 3)
    constants = {node: graph.tensors[node.string("digest")] for node in walk(graph.roots) if node.op == "Constant"}
    (expected,) = evaluate(graph.roots, {graph.inputs[0]: x, **constants})
    with Session(tmp_path, threads=1) as session:
        np.testing.assert_allclose(session.run(None, {"x0": x})[0], expected, rtol=2e-6, atol=3e-7 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("kind", "shape", "group", "bytes_packed"),
    [
        ("int8", (20, 6, 3, 3), 1, 32 * 9 * 6), ("int8", (16, 7, 3, 1), 1, 16 * 3 * 8), ("int8", (7, 30), 1, 32 * 8),
        ("uint8", (20, 6, 3, 3), 1, 0), ("int8", (20, 7, 3, 3), 1, 0), ("int8", (20, 6, 3, 3), 2, 0),
    ],
    ids=["whole pairs", "one tap beside another", "matrix", "unsigned", "pairs across taps", "groups"],
)  # fmt: skip
def test_constants_of_signed_bytes_are_packed_once(
    tmp_path: Path, kind: str, shape: tuple[int, ...], group: int, bytes_packed: int
) -> None:
    """This also holds on processors without vector instructions."""
    model = Bytes()
    if len(shape) == 2:
        y = apply("MatMul", model.input("uint8", 50, shape[0]), model.weight(kind, *shape))
    else:
        x, one = model.input("uint8", 1, 9, 8, shape[1] * group), (1, 1)
        places = attributes(strides=one, pads=(1, 1, 1, 1), dilations=one, group=group, layout="NHWC")
        y = apply("Conv", x, model.weight(kind, *shape), attributes=places)
    compare(model, y, tmp_path, threads=2)
    (step,) = (step for step in json.loads((tmp_path / "plan.json").read_text())["steps"] if step["kind"] == "function")
    assert step["spec"].get("pack", {}).get("elements", 0) == bytes_packed
    without_vectors(tmp_path)
    feeds = {node.string("name"): model.drawn(node.type.dtype, *node.type.sizes) for node in model.inputs}
    leaves: dict[Node, np.ndarray] = {node: feeds[node.string("name")] for node in model.inputs}
    leaves |= {node: model.tensors[node.string("digest")] for node in walk((y,)) if node.op == "Constant"}
    with Session(tmp_path, threads=2) as session:
        np.testing.assert_array_equal(session.run(None, feeds)[0], evaluate((y,), leaves)[0])


def test_transposed_weights_are_read_as_they_are_stored(tmp_path: Path) -> None:
    model = Bytes()
    weights = apply("Transpose", model.input("int8", 50, 37), perm=(1, 0))
    compare(model, model.ended(apply("MatMul", model.input("uint8", 70, 37), weights), "float32"), tmp_path, 2)


def leaf(index: int, dtype: str, *sizes: int, constant: bool = False) -> Node:
    return placeholder(index, TensorType(dtype, sizes), constant=constant)


def convolution(layout: str = "NHWC", taps: int = 3, dtype: str = "int8") -> Node:
    shape = (1, 9, 9, 8) if layout == "NHWC" else (1, 8, 9, 9)
    more: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1, "layout": layout}
    return apply("Conv", leaf(0, "uint8", *shape), leaf(1, dtype, 4, 8, taps, taps, constant=True), **more)


def test_weights_are_stored_as_the_kernels_read_them() -> None:
    assert constant_orders(convolution()) == {1: (2, 3, 1, 0)} == constant_orders(convolution(taps=1))
    product = apply("MatMul", leaf(0, "uint8", 3, 4), leaf(1, "int8", 4, 5, constant=True))
    assert not constant_orders(product) and not constant_orders(apply("Exp", apply("Cast", product, to="float32")))
    transposed = apply("MatMul", leaf(0, "uint8", 3, 4), apply("Transpose", leaf(1, "int8", 5, 4, constant=True), perm=(1, 0)))
    assert constant_orders(transposed) == {1: (1, 0)}


def test_what_the_kernels_do_not_compute_is_refused() -> None:
    product = apply("MatMul", leaf(0, "uint8", 3, 4), leaf(1, "int8", 4, 5))
    assert isinstance(match(product, PRODUCT), LibraryCall)
    long = apply("MatMul", leaf(0, "uint8", 3, 33026), leaf(1, "int8", 33026, 5))
    sums = apply("Cast", product, to="float32")
    for fragment, reason in (
        (convolution("NCHW"), "channels last"), (long, "exceed an int32"), (apply("Exp", sums), "exp is not computed"),
        (apply("Mul", product, leaf(2, "int32", 5)), "Mul of int32"), (apply("Sub", leaf(2, "int32", 5), product), "Sub of int32"),
        (apply("MatMul", leaf(0, "uint8", 2, 3, 4), leaf(1, "int8", 2, 4, 5)), "not one matrix"),
        (apply("MatMul", placeholder(0, float32(3, 4)), placeholder(1, float32(4, 5), constant=True)), "no product of bytes"),
    ):  # fmt: skip
        said = match(fragment, PRODUCT)
        assert isinstance(said, str) and reason in said, said
    assert isinstance(match(convolution(), TILES), LibraryCall)
    assert "3 x 3 taps" in str(match(convolution(taps=1), TILES))
    for weights, is_exact in (("int8", True), ("uint8", False)):
        window: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 1, "layout": "NHWC"}
        said = match(apply("Conv", leaf(0, "uint8", 1, 4, 4, 1820), leaf(1, weights, 3, 1820, 3, 3), **window), TILES)
        assert isinstance(said, LibraryCall) if is_exact else "may exceed an int32" in str(said), said
    columns = Window(0, (3, 5), (1, 3))
    assert "side by side" in str(match(product, PRODUCT, destination=columns))


def test_convolutions_of_numbers_in_bytes_pass_bytes_on(tmp_path: Path) -> None:
    b = Model()
    hidden = apply("Relu", b.conv(b.input(1, 20, 20, 32), 64, 3, layout="NHWC"))
    graph = b.graph(b.conv(hidden, 48, 1, layout="NHWC"))
    program, x = choose(graph, "onednn"), b.random.standard_normal((1, 20, 20, 32)).astype(np.float32)
    first, second = (
        replace(kernel, implementation=Implementation.parse(f"{PRODUCT}@int8", lowering().target), source_range=seen)
        for kernel, seen in zip(program.kernels, ((-4.5, 4.5), (0.0, 30.0)), strict=True)
    )
    outputs = []
    for kernels, folder in ((program.kernels, "numbers"), ((first, second), "bytes")):
        plan = compile_program(replace(program, kernels=kernels), tmp_path / folder, CompileOptions(threads=1, export_graph=serialized))
        with Session(tmp_path / folder, threads=1) as session:
            outputs.append(session.run(None, {"x0": x})[0])
    assert [step.name for step in plan.steps][1:] == ["Conv+Cast+Mul+Add+Relu+Saturate", "Conv+Cast+Mul+Add"]
    assert np.abs(outputs[1] - outputs[0]).max() < 0.02 * np.abs(outputs[0]).max()


def test_products_of_numbers_are_computed_in_bytes_where_that_is_asked_for() -> None:
    fragment = apply("MatMul", placeholder(0, float32(3, 4)), placeholder(1, float32(4, 5), constant=True))
    assert isinstance(match(fragment, f"{PRODUCT}@int8"), LibraryCall)
    assert operand_precisions(fragment, f"{PRODUCT}@int8") == {0: frozenset({"int8"}), 1: frozenset({"int8"})}
    assert "bf16" in str(match(fragment, f"{PRODUCT}@bf16"))
