"""Products with factors of their left operand, and those that windows of an image look at, against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egraph.onnx.exporter import serialized
from egraph.tensor import Graph, Node, placeholder, walk
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from lower.calls.call import LibraryCall
from lower.compile import CompileOptions, compile_program
from lower.targets.cpu.products.match import PRODUCT, WITH_WINDOWS, constant_orders, match
from runtime import Session
from tests.support.lowering import Model, choose, float32

ACTIVATIONS = ("", "Relu", "Clip", "Sigmoid", "Swish", "HardSwish", "HardSigmoid", "LeakyRelu")
SLOW = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def activated(x: Node, name: str) -> Node:
    attributes: dict[str, dict[str, Any]] = {
        "Clip": {"min": -0.5, "max": 6.0}, "LeakyRelu": {"alpha": 0.1}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
        "Gelu": {"approximate": "none"},
    }  # fmt: skip
    if name == "Swish":
        return apply("Mul", x, apply("Sigmoid", x))
    return apply(name, x, **attributes.get(name, {})) if name else x


def convolved(model: Model, x: Node, taps: tuple[int, int], stride: tuple[int, int], pads: tuple[int, ...], step: int) -> Node:
    channels = x.type.sizes[-1]
    weights = model.weight(channels, 1, *taps)
    return apply("Conv", x, weights, strides=stride, pads=pads, dilations=(step, step), group=channels, layout="NHWC")


def compare(graph: Graph, folder: Path, threads: int, expected: list[str]) -> None:
    program = choose(graph, "products")
    assert [k.implementation.text for k in program.kernels if not k.implementation.is_view] == expected
    compile_program(program, folder, CompileOptions(threads=threads, export_graph=serialized))
    random = np.random.default_rng(1)
    feeds = {node.string("name"): 3 * random.standard_normal(node.type.sizes).astype(np.float32) for node in graph.inputs}
    leaves = {node: feeds[node.string("name")] for node in graph.inputs}
    leaves |= {node: graph.tensors[node.string("digest")] for node in walk(graph.roots) if node.op == "Constant"}
    expected_values = evaluate(graph.roots, leaves)
    with Session(folder, threads=threads) as session:
        for _ in range(2):
            for found, value in zip(session.run(None, feeds), expected_values, strict=True):
                np.testing.assert_allclose(found, value, rtol=1e-5, atol=2e-6 * np.abs(value).max())


@SLOW
@given(
    images=st.sampled_from([1, 2, 3]), side=st.sampled_from([1, 5, 9]), channels=st.integers(1, 40), outputs=st.integers(1, 70),
    activation=st.sampled_from(ACTIVATIONS), stride=st.sampled_from([1, 2]), residual=st.booleans(), threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_convolutions_with_factors_agree_with_the_reference(
    tmp_path: Path, images: int, side: int, channels: int, outputs: int, activation: str, stride: int, residual: bool, threads: int
) -> None:
    model = Model()
    x = apply("Mul", model.input(images, side, side + 1, channels), model.input(images, 1, 1, channels))
    y = activated(model.conv(x, outputs, 1, layout="NHWC", stride=stride), activation)
    y = apply("Add", y, model.input(*y.type.sizes)) if residual else y
    compare(model.graph(y), tmp_path, threads, [PRODUCT])


@pytest.mark.parametrize(("rows", "size", "columns"), [((300,), 40, 50), ((7,), 300, 700), ((2, 60), 90, 33), ((9,), 500, 1)])
def test_products_with_factors_are_shared_by_threads(tmp_path: Path, rows: tuple[int, ...], size: int, columns: int) -> None:
    model = Model()
    product = apply("MatMul", apply("Mul", model.input(size), model.input(*rows, size)), model.weight(size, columns))
    compare(model.graph(apply("Sub", product, model.weight(columns))), tmp_path, 2, [PRODUCT])


@SLOW
@given(
    images=st.sampled_from([1, 2]), height=st.integers(3, 17), width=st.integers(3, 20), channels=st.integers(1, 12),
    outputs=st.sampled_from([1, 16, 31, 32, 70]), taps=st.sampled_from([(3, 3), (5, 5), (1, 3), (2, 1), (3, 5)]),
    stride=st.sampled_from([(1, 1), (2, 2), (1, 2), (3, 3)]), pads=st.sampled_from([0, 1, 2]), step=st.sampled_from([1, 1, 2]),
    first=st.sampled_from(ACTIVATIONS), second=st.sampled_from(ACTIVATIONS), threads=st.sampled_from([1, 2]),
)  # fmt: skip
def test_windows_of_products_agree_with_the_reference(
    tmp_path: Path, images: int, height: int, width: int, channels: int, outputs: int, taps: tuple[int, int], stride: tuple[int, int],
    pads: int, step: int, first: str, second: str, threads: int,
) -> None:  # fmt: skip
    if min(height, width) + 2 * pads <= step * (max(taps) - 1):
        return
    model = Model()
    y = activated(model.conv(model.input(images, height, width, channels), outputs, 1, layout="NHWC"), first)
    y = convolved(model, y, taps, stride, (pads, pads, pads, max(0, pads - 1)), step)
    y = activated(apply("Add", y, model.weight(1, 1, 1, outputs)), second)
    compare(model.graph(y), tmp_path, threads, [WITH_WINDOWS])


@pytest.mark.parametrize(("side", "taps"), [(40, 3), (20, 5)], ids=["shares of rows", "shares of channels"])
def test_windows_of_large_products_are_shared_by_threads(tmp_path: Path, side: int, taps: int) -> None:
    model = Model()
    y = activated(model.conv(model.input(1, side, side, 24), 100, 1, layout="NHWC"), "Swish")
    y = convolved(model, y, (taps, taps), (1, 1), (taps // 2,) * 4, 1)
    compare(model.graph(apply("Add", y, model.input(*y.type.sizes))), tmp_path, 2, [WITH_WINDOWS])


def test_weights_are_stored_as_the_kernels_read_them() -> None:
    x = placeholder(0, float32(1, 6, 6, 8))
    more: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "layout": "NHWC"}
    product = apply("Conv", x, placeholder(1, float32(12, 8, 1, 1), constant=True), group=1, **more)
    assert constant_orders(product) == {1: (1, 2, 3, 0)}
    windows = apply("Conv", product, placeholder(2, float32(12, 1, 3, 3), constant=True), group=12, **more)
    assert constant_orders(windows) == {1: (1, 2, 3, 0), 2: (1, 2, 3, 0)}
    assert not constant_orders(apply("MatMul", placeholder(0, float32(3, 4)), placeholder(1, float32(4, 5), constant=True)))
    assert not constant_orders(apply("Exp", product))  # no call any more


def test_numbers_that_are_none_stay_none(tmp_path: Path) -> None:
    model = Model()
    x = apply("Mul", model.input(4, 3), model.input(3))
    products = [apply("MatMul", x, model.weight(3, 5)) for _ in ACTIVATIONS]
    graph = model.graph(*(activated(product, name) for product, name in zip(products, ACTIVATIONS, strict=True)))
    compile_program(choose(graph, "products"), tmp_path, CompileOptions(export_graph=serialized))
    values = np.ones((4, 3), np.float32)
    values[1, 2], values[2, 0] = np.nan, np.inf
    with Session(tmp_path, threads=1) as session:
        for found in session.run(None, {"x0": values, "x1": np.ones(3, np.float32)}):
            assert np.isnan(found[1]).all()
            assert np.isfinite(found[[0, 3]]).all()


def test_plain_products_are_left_to_libraries() -> None:
    model = Model()
    program = choose(model.graph(apply("MatMul", model.input(30, 20), model.weight(20, 10))), "products")
    assert [kernel.implementation.library for kernel in program.kernels] != ["products"]


def test_what_the_kernels_do_not_compute_is_refused() -> None:
    def product(*shape: int, op: str = "MatMul", layout: str = "NHWC", taps: int = 1) -> Node:
        x = placeholder(0, float32(*shape))
        if op == "MatMul":
            return apply(op, x, placeholder(1, float32(shape[-1], 8)))
        weights = placeholder(1, float32(8, shape[-1 if layout == "NHWC" else 1], taps, taps), constant=True)
        return apply(op, x, weights, strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1, layout=layout)

    assert isinstance(match(product(3, 4), PRODUCT), LibraryCall)
    image = product(1, 5, 5, 4, op="Conv")
    columns = apply("MatMul", placeholder(0, float32(3, 4)), apply("Transpose", placeholder(1, float32(8, 4)), perm=(1, 0)))
    dense = apply(
        "Conv", image, placeholder(2, float32(8, 8, 3, 3), constant=True), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1,
        layout="NHWC",
    )  # fmt: skip
    windows: dict[str, Any] = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "group": 8, "layout": "NHWC"}
    gated = apply("Mul", image, placeholder(2, float32(*image.type.sizes)))
    gated = apply("Conv", gated, placeholder(3, float32(8, 1, 3, 3), constant=True), **windows)
    row = apply("MatMul", apply("Mul", placeholder(0, float32(1, 4)), placeholder(1, float32(1, 4))), placeholder(2, float32(4, 8)))
    for fragment, implementation, reason in (
        (gated, WITH_WINDOWS, "reads an image"), (row, PRODUCT, "one row"),
        (apply("Exp", product(3, 4)), PRODUCT, "exp is not computed after products"),
        (product(1, 4, 5, 5, op="Conv", layout="NCHW"), PRODUCT, "channels first"),
        (product(1, 5, 5, 4, op="Conv", taps=3), PRODUCT, "several positions"), (columns, PRODUCT, "do not lie side by side"),
        (dense, WITH_WINDOWS, "not one of each channel on its own"), (image, WITH_WINDOWS, "not one of each channel on its own"),
    ):  # fmt: skip
        said = match(fragment, implementation)
        assert isinstance(said, str)
        assert reason in said
