"""Test which expressions are fused into larger kernels, which are not, and which are no kernel at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egraph.derive.bilinear.convolutions import algorithms
from egraph.derive.bilinear.programs import program
from egraph.optimize.estimated import estimated_program, grown
from egraph.rules.elementwise import multiply_by_reciprocal_root, square
from egraph.tensor import Candidate, ENode, Graph, Node, TensorType, attributes, make, placeholder, placeholders, walk
from egraph.tensor.expr.scope import Read, Reduction, Scope, Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.scopes import grid, multiply
from lower.candidates import candidates
from tests.support.lowering import Model, check, choose, float32, freeze


def fast_convolution(m: Model, x: Node) -> Node:
    """Return a 3x3 convolution (channels last) as transforms and a product, with weights already transformed."""
    channels = x.type.sizes[3]
    window: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1, "layout": "NHWC"}
    operands = placeholder(0, x.type), placeholder(1, float32(channels, channels, 3, 3), constant=True)
    node = apply("Conv", *operands, **window)
    what = next(w for w in algorithms(node) if [axis.algorithm.products for axis in w.axes] == [6, 6])
    y = program(*operands, what)
    v = y.inputs[0].inputs[0]
    product = apply("MatMul", apply("Expression", x, text=v.string("text")), m.weight(36, channels, channels))
    return apply("Expression", product, text=y.string("text"))


def block() -> Graph:
    """relu(conv(relu(x)) + bias + x), followed by a second convolution"""
    m = Model()
    x = m.input(1, 8, 12, 16)
    y = apply("Add", apply("Add", fast_convolution(m, apply("Relu", x)), m.weight(16)), x)
    return m.graph(fast_convolution(m, apply("Relu", y)))


def generated(graph: Graph) -> list[Candidate]:
    frozen, _ = freeze(graph)
    return [one for options in candidates(frozen).values() for one in options if one.implementation.is_generated]


def operators(one: Candidate) -> list[str]:
    return sorted(node.op for node in walk((one.fragment,)) if node.op != "Placeholder")


def test_elementwise_operators_join_a_transform() -> None:
    found = [operators(one) for one in generated(block())]
    assert ["Add", "Add", "Expression", "Relu"] in found  # fused after the expression
    assert ["Expression", "Relu"] in found  # fused before the expression
    assert not [each for each in found if each.count("Expression") > 1]  # each read of a tile would be a transform


def test_a_program_of_transforms_computes_the_convolution(tmp_path: Path) -> None:
    graph = block()
    plan = check(graph, choose(graph, "tvm"), tmp_path)
    assert plan.steps


def test_a_large_contraction_is_no_kernel_and_a_rearrangement_goes_anywhere() -> None:
    m = Model()
    x, w = m.input(128, 256), m.input(256, 128)
    (i, j), at = grid("i", (128, 128))
    (k,), deep = grid("k", (256,))
    a, b = Tensor("0", (128, 256)), Tensor("1", (256, 128))
    product = Scope((i, j), (k,), Reduction.SUM, multiply(Read(a, (at[0], deep[0])), Read(b, (deep[0], at[1]))))
    swap = Scope.pointwise((i, j), Read(Tensor("0", (128, 128)), (at[1], at[0])))
    y = apply("Expression", x, w, text=text_of(product))
    graph = m.graph(apply("Relu", apply("Expression", apply("Neg", y), text=text_of(swap))))
    found = generated(graph)
    assert ["Expression", "Neg", "Relu"] in map(operators, found)
    texts = {node.string("text") for one in found for node in walk((one.fragment,)) if node.op == "Expression"}
    assert texts == {text_of(swap)}


def test_what_follows_a_product_is_one_kernel_although_the_product_could_be_computed_otherwise() -> None:
    m = Model()
    x = m.input(1, 8, 8, 16)
    conv: dict[str, Any] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1, "layout": "NHWC"}
    product = apply("Conv", apply("Neg", x), m.weight(16, 16, 1, 1), **conv)
    frozen, _ = freeze(m.graph(apply("Relu", apply("Add", product, m.weight(16)))))
    number = next(n for n, nodes in frozen.classes.items() if nodes[0].op == "Conv")
    other = ENode("Abs", (), frozen.classes[number][0].children[:1])
    frozen = replace(frozen, classes={**frozen.classes, number: (*frozen.classes[number], other)})
    (root,) = frozen.roots
    found = {(tuple(operators(one)), one.operands[0]) for one in candidates(frozen)[root] if one.implementation.is_generated}
    below = frozen.classes[number][0].children[0]
    assert {(("Abs", "Add", "Neg", "Relu"), frozen.classes[below][0].children[0]), (("Add", "Relu"), number)} <= found


def test_a_normalisation_by_the_root_mean_square_is_one_kernel_over_the_residual_sum(tmp_path: Path) -> None:
    """The kernel starts at the residual sum, not at its operands: another kernel computes the sum for several readers."""
    m = Model()
    x = m.input(5, 16)
    y = apply("Add", apply("Sigmoid", x), m.input(5, 16))
    two, epsilon = m.weight(), m.weight()
    for node, value in ((two, 2.0), (epsilon, 1e-6)):
        m.tensors[node.string("digest")] = np.asarray(value, dtype=np.float32)
    mean = apply("ReduceMean", apply("Pow", y, two), axes=(1,))
    normal = apply("Mul", y, apply("Reciprocal", apply("Sqrt", apply("Add", mean, epsilon))))
    graph = m.graph(apply("Add", y, apply("MatMul", normal, m.weight(16, 16))))
    frozen = grown(graph, (square, multiply_by_reciprocal_root))
    found = [one for options in candidates(frozen).values() for one in options if one.implementation.is_generated]
    assert ["Add", "Div", "Mul", "ReduceMean", "Sqrt"] in map(operators, found)
    assert not [one for one in found if "Pow" in operators(one) and "ReduceMean" in operators(one)]  # a product squares
    check(graph, estimated_program(graph, (square, multiply_by_reciprocal_root)), tmp_path)


def normalised_by_groups(m: Model, groups: int, spatial: int) -> Node:
    """Return group normalisation as it is imported: each group is one channel."""
    x = m.input(1, 8, spatial, spatial)
    grouped = apply("Reshape", x, shape=(1, groups, 8 * spatial * spatial // groups))
    plain = apply("InstanceNormalization", grouped, m.weight(groups), m.weight(groups), epsilon=1e-5)
    return apply("Reshape", plain, shape=(1, 8, spatial, spatial))


@pytest.mark.parametrize(("groups", "is_joined"), [(1, True), (2, False), (8, True)])
def test_sums_of_groups_of_channels_are_not_computed_for_each_element(groups: int, is_joined: bool) -> None:
    m = Model()
    found = [operators(one) for one in generated(m.graph(apply("Sigmoid", normalised_by_groups(m, groups, 6))))]
    assert any({"InstanceNormalization", "Sigmoid"} <= set(each) for each in found) is is_joined
    assert any("InstanceNormalization" in each for each in found)


def test_sums_are_not_computed_for_each_tap_of_a_window() -> None:
    m = Model()
    y = apply("Relu", normalised_by_groups(m, 8, 6))
    window: dict[str, Any] = {"strides": (2, 2), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NCHW"}
    sizes: dict[str, Any] = {"sizes": (1, 8, 12, 12), "scales": (1.0, 1.0, 2.0, 2.0), "coordinate_mode": "half_pixel"}
    ways: dict[str, Any] = {"mode": "linear", "nearest_mode": "round_prefer_floor", "cubic_coeff_a": -0.75, "exclude_outside": 0}
    for wide in (apply("MaxPool", y, kernel_shape=(3, 3), **window), apply("Resize", y, **sizes, **ways)):
        found = [operators(one) for one in generated(m.graph(apply("Sigmoid", wide)))]
        assert any({"Relu", wide.op} <= set(each) for each in found)
        assert not [each for each in found if {"InstanceNormalization", wide.op} <= set(each)]


def test_windows_are_not_computed_for_each_tap_of_a_window() -> None:
    """One kernel for several levels would compute a window again for each tap of the next.

    For example, a depth decoder adds maps and enlarges the sum, level by level: one kernel for three levels took 5 s to compile.
    """
    m = Model()
    ways: dict[str, Any] = {"nearest_mode": "round_prefer_floor", "cubic_coeff_a": -0.75, "exclude_outside": 0}

    def enlarged(x: Node, mode: str) -> Node:
        sizes = (*x.type.sizes[:2], *(2 * size for size in x.type.sizes[2:]))
        return apply("Resize", x, sizes=sizes, scales=(1.0, 1.0, 2.0, 2.0), coordinate_mode="half_pixel", mode=mode, **ways)

    for inner, is_joined in (("linear", False), ("nearest", True)):
        below = enlarged(m.input(1, 8, 6, 6), inner)
        found = [operators(one) for one in generated(m.graph(enlarged(apply("Add", below, m.input(*below.type.sizes)), "linear")))]
        assert any(each.count("Resize") == 2 for each in found) is is_joined
        assert any({"Add", "Resize"} <= set(each) for each in found)


def residual() -> Graph:
    """Return a residual sum of quantised pairs: dequantise both, add, rectify, quantise. Others read the intermediate values, too."""
    m = Model()
    m.tensors |= {f"s{i}": np.array(0.1 * i, np.float32) for i in (1, 2, 3)} | {"z": np.array(119, np.uint8)}
    zero = make("Constant", (), attributes(digest="z"), TensorType("uint8", ()))

    def pair(x: Node, step: int) -> Node:
        scale = make("Constant", (), attributes(digest=f"s{step}"), TensorType("float32", ()))
        return apply("Dequantize", apply("Quantize", x, scale, zero), scale, zero)

    left, right = (pair(apply("Exp", m.input(1, 6, 6, 32)), step) for step in (1, 2))
    total = pair(apply("Relu", apply("Add", left, right)), 3)
    return m.graph(total, apply("Neg", left))


def test_a_sum_of_bytes_is_one_kernel_that_reads_and_writes_bytes() -> None:
    found = [one for one in generated(residual()) if one.fragment.type.dtype == "uint8" and "Add" in operators(one)]
    read = [sorted(leaf.type.dtype for leaf in placeholders(one.fragment) if not leaf.attribute("constant")) for one in found]
    assert ["Add", "Dequantize", "Dequantize", "Quantize", "Relu"] in map(operators, found)
    assert ["uint8", "uint8"] in read


def test_a_sum_of_bytes_computes_what_its_operators_do(tmp_path: Path) -> None:
    graph = residual()
    assert check(graph, choose(graph, "tvm"), tmp_path).steps
