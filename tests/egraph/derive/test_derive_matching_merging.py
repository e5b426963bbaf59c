"""Merged products and convolutions compute the results of the single ones."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.derive.matching.match import operators
from egraph.derive.matching.merging import beside, merged_correlations, stacked
from egraph.tensor import Node, walk
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.scope import Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import evaluate
from tests.support.fragments import leaf


def conv(data: Node, weight: Node, pads: tuple[int, ...], layout: str = "NCHW", group: int = 1, stride: int = 1) -> Node:
    spatial = weight.type.rank - 2
    return apply(
        "Conv", data, weight, strides=(stride,) * spatial, dilations=(1,) * spatial, pads=pads, group=group, layout=layout
    )


def equal(programs: tuple[Node, ...] | None, nodes: tuple[Node, ...]) -> None:
    assert programs is not None
    generator = np.random.default_rng(11)
    leaves = {n: generator.integers(0, PRIME, n.type.sizes) for n in walk(nodes) if n.op == "Placeholder"}
    for found, expected in zip(evaluate(programs, leaves, "prime"), evaluate(nodes, leaves, "prime"), strict=True):
        assert np.array_equal(found, expected)


def test_rule6_two_products_of_different_inputs_are_one_batched_product() -> None:
    nodes = (apply("MatMul", leaf(0, 1, 8, 4), leaf(1, 1, 4, 8)), apply("MatMul", leaf(0, 1, 8, 4), leaf(2, 1, 4, 8)))
    programs = stacked(nodes)
    equal(programs, nodes)
    assert programs is not None and len({n for n in walk(programs) if n.op == "MatMul"}) == 1


def test_products_that_broadcast_are_stacked_on_an_axis_of_their_own() -> None:
    nodes = (apply("MatMul", leaf(0, 3, 1, 5, 4), leaf(1, 4, 2)), apply("MatMul", leaf(2, 3, 1, 5, 4), leaf(3, 4, 2)))
    equal(stacked(nodes), nodes)


def test_products_of_different_shapes_are_not_stacked() -> None:
    assert stacked((apply("MatMul", leaf(0, 8, 4), leaf(1, 4, 8)), apply("MatMul", leaf(0, 8, 4), leaf(2, 4, 7)))) is None


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("group", [1, 2])
def test_rule9_convolutions_of_different_inputs_are_one_grouped_convolution(layout: str, group: int) -> None:
    shape = (1, 4, 5, 6) if layout == "NCHW" else (1, 5, 6, 4)
    nodes = tuple(conv(leaf(2 * j, *shape), leaf(2 * j + 1, 6, 4 // group, 3, 3), (1, 1, 0, 1), layout, group) for j in range(3))
    programs = stacked(nodes)
    equal(programs, nodes)
    assert programs is not None and len({n for n in walk(programs) if n.op == "Conv"}) == 1


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rule10_two_groups_and_three_groups_are_five(layout: str) -> None:
    shapes = ((1, 4, 4, 4), (1, 6, 4, 4)) if layout == "NCHW" else ((1, 4, 4, 4), (1, 4, 4, 6))
    weights = ((4, 2, 3, 3), (6, 2, 3, 3))
    nodes = tuple(
        conv(leaf(j, *shapes[j]), leaf(2 + j, *weights[j]), (1, 1, 1, 1), layout, group) for j, group in enumerate((2, 3))
    )
    programs = stacked(nodes)
    equal(programs, nodes)
    assert programs is not None and {n.attribute("group") for n in walk(programs) if n.op == "Conv"} == {5}


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_rule16_filters_of_two_grouped_convolutions_stand_beside_each_other_in_each_group(layout: str) -> None:
    data = leaf(0, *((1, 4, 14, 14) if layout == "NCHW" else (1, 14, 14, 4)))
    nodes = tuple(conv(data, leaf(j, 2 * j + 2, 2, 3, 3), (1, 1, 1, 1), layout, 2) for j in (1, 2))
    programs = beside(nodes)
    equal(programs, nodes)
    assert programs is not None and len({n for n in walk(programs) if n.op == "Conv"}) == 1


def test_group_conv_test_1_two_convolutions_of_one_input_are_one_that_is_split() -> None:
    data = leaf(0, 1, 4, 6, 6)
    nodes = (conv(data, leaf(1, 2, 4, 3, 3), (1, 1, 1, 1)), conv(data, leaf(2, 3, 4, 3, 3), (1, 1, 1, 1)))
    equal(beside(nodes), nodes)
    extended = stacked((conv(data, leaf(1, 2, 4, 3, 3), (1, 1, 1, 1)), conv(data, leaf(3, 2, 4, 3, 3), (1, 1, 1, 1))))
    equal(extended, (nodes[0], conv(data, leaf(3, 2, 4, 3, 3), (1, 1, 1, 1))))


def test_groups_of_different_sizes_do_not_stand_beside_each_other() -> None:
    pads = (1, 1, 1, 1)
    nodes = (conv(leaf(0, 1, 4, 5, 5), leaf(1, 4, 2, 3, 3), pads, group=2), conv(leaf(2, 1, 4, 5, 5), leaf(3, 4, 4, 3, 3), pads))
    assert stacked(nodes) is None and beside(nodes) is None


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_gcn_one_by_k_and_k_by_one_on_one_input_are_one_product(layout: str) -> None:
    shape = (2, 5, 7, 7) if layout == "NCHW" else (2, 7, 7, 5)
    data = leaf(0, *shape)
    nodes = (conv(data, leaf(1, 3, 5, 1, 7), (0, 3, 0, 3), layout), conv(data, leaf(2, 4, 5, 7, 1), (3, 0, 3, 0), layout))
    programs = merged_correlations(nodes)
    equal(programs, nodes)
    assert programs is not None
    products = {n for n in walk(programs) if n.op == "MatMul"}
    assert [n.type.sizes for n in products] == [(98, 7 * 3 + 7 * 4)] and not any(n.op == "Conv" for n in walk(programs))


def test_rule13_three_rows_and_a_column_with_strides_are_one_product() -> None:
    data = leaf(0, 2, 3, 8, 8)
    rows = tuple(conv(data, leaf(j, 2, 3, 1, 3), (0, 1, 0, 1), stride=j) for j in (1, 2, 3))
    nodes = (*rows, conv(data, leaf(4, 5, 3, 3, 1), (1, 0, 1, 0)))
    equal(merged_correlations(nodes), nodes)


def test_convolutions_of_other_inputs_or_with_groups_are_not_merged() -> None:
    one = conv(leaf(0, 1, 4, 5, 5), leaf(1, 2, 4, 3, 3), (1, 1, 1, 1))
    assert merged_correlations((one, conv(leaf(2, 1, 4, 5, 5), leaf(1, 2, 4, 3, 3), (1, 1, 1, 1)))) is None
    assert merged_correlations((one, conv(leaf(0, 1, 4, 5, 5), leaf(3, 2, 2, 3, 3), (1, 1, 1, 1), group=2))) is None


def of_merged(name: str) -> tuple[str, tuple[tuple[int, ...], ...], str]:
    """Return a merged expression, the shapes of its operands, and the one operator that computes it."""
    pads = "0<=h+r-1,h+r-1<6 ? "
    return {
        "two products": (
            "{j<2,m<3,n<5} sum(k<4) ([j==0 ? $0[m,k] : $1[m,k]] * [j==0 ? $2[k,n] : $3[k,n]])", ((3, 4), (3, 4), (4, 5), (4, 5)), "MatMul",
        ),
        "three products that share an operand": (
            "{j<3,m<3,n<5} sum(k<4) ([j==0 ? $0[m,k] : [j==1 ? $1[m,k] : $2[m,k]]] * $3[k,n])", ((3, 4), (3, 4), (3, 4), (4, 5)), "MatMul",
        ),
        "columns beside columns": (
            "{m<3,x<7} sum(k<4) ($0[m,k] * [x<5 ? $1[k,x] : $2[k,x-5]])", ((3, 4), (4, 5), (4, 2)), "MatMul",
        ),
        "two convolutions": (
            "{j<2,f<2,h<6} sum(c<3,r<3) ([" + pads + "[j==0 ? $0[c,h+r-1] : $1[c,h+r-1]] : 0] * [j==0 ? $2[f,c,r] : $3[f,c,r]])",
            ((3, 6), (3, 6), (2, 3, 3), (2, 3, 3)), "Conv",
        ),
        "two padded convolutions": (
            "{j<2,f<2,h<6} sum(c<3,r<3) ([j==0 ? [" + pads + "$0[c,h+r-1] : 0] : [" + pads + "$1[c,h+r-1] : 0]] * "
            "[j<1 ? $2[f,c,r] : $3[f,c,r]])",
            ((3, 6), (3, 6), (2, 3, 3), (2, 3, 3)), "Conv",
        ),
    }[name]  # fmt: skip


MERGED = ("two products", "three products that share an operand", "columns beside columns", "two convolutions", "two padded convolutions")


@pytest.mark.parametrize("name", MERGED)
def test_merged_expressions_are_one_operator(name: str) -> None:
    """A choice between tensors becomes one tensor, either stacked or concatenated along the axis that the index walks."""
    text, shapes, operator = of_merged(name)
    scope = parse_scope(text, {str(k): Tensor(str(k), shape) for k, shape in enumerate(shapes)})
    operands = tuple(leaf(k, *shape) for k, shape in enumerate(shapes))
    programs = operators(scope, operands)
    assert any(sum(n.op == operator for n in walk((program,))) == 1 for program in programs)
    reference = apply("Expression", *operands, text=text_of(scope))
    equal(programs, (reference,) * len(programs))
