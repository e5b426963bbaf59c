"""Test depthwise convolutions as generated kernels beside the library's, and taps that only read padding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from egraph.optimize.estimated import grown
from egraph.rule import Attributes, Binding, Mismatch, Steps, Tensor, Weight, rule
from egraph.rule_operators import conv, slice_
from egraph.rules.conv import depthwise_pointwise_conv_is_scale, taps_on_padding
from egraph.tensor import Candidate, Graph, attributes, walk
from egraph.tensor.ops import apply
from lower.candidates import candidates
from tests.support.lowering import Model, check, choose, float32, freeze
from verify.random_testing import check_rule


def generated(graph: Graph) -> list[Candidate]:
    frozen, _ = freeze(graph)
    return [one for options in candidates(frozen).values() for one in options if one.implementation.is_generated]


def operators(one: Candidate) -> list[str]:
    return sorted(node.op for node in walk((one.fragment,)) if node.op != "Placeholder")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("size", "kernel", "stride"), [(1, 3, 1), (2, 5, 1), (7, 3, 2), (9, 5, 1), (19, 3, 1)])
def test_a_depthwise_convolution_may_be_generated_with_what_follows(
    tmp_path: Path, layout: str, size: int, kernel: int, stride: int
) -> None:
    m = Model()
    x = m.input(*((2, 6, size, size + 1) if layout == "NCHW" else (2, size, size + 1, 6)))
    before = apply("Sigmoid", x)
    graph = m.graph(apply("Relu", m.conv(before, 6, kernel, layout=layout, stride=stride, group=6)))
    found = [operators(one) for one in generated(graph)]
    assert ["Conv"] in found and ["Add", "Conv", "Relu"] in found
    assert not [each for each in found if {"Conv", "Sigmoid"} <= set(each)]  # the activation would be computed again for each window
    plan = check(graph, choose(graph, "tvm"), tmp_path)
    assert {step.kind for step in plan.steps} == {"tvm"}


def test_other_windows_are_left_to_the_library() -> None:
    m = Model()
    x = m.input(1, 64, 14, 14)
    dense, grouped, pointwise = m.conv(x, 64, 3), m.conv(x, 64, 3, group=2), m.conv(x, 64, 1)
    graph = m.graph(dense, grouped, pointwise)
    assert not [one for one in generated(graph) if "Conv" in operators(one)]


CASES = [
    # x, kernel, pads, strides, dilations -> kernel, pads
    ((1, 1), (3, 3), (1, 1, 1, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((1, 1), (5, 3), (2, 1, 2, 1), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ((2, 9), (5, 5), (2, 2, 2, 2), (1, 1), (1, 1), (3, 5), (1, 2, 1, 2)),
    ((2, 2), (3, 3), (1, 1, 1, 1), (2, 2), (1, 1), (2, 2), (0, 0, 1, 1)),
    ((4, 4), (3, 3), (6, 6, 6, 6), (1, 1), (6, 6), (1, 1), (0, 0, 0, 0)),
    ((7, 4), (3, 3), (6, 6, 6, 6), (1, 1), (6, 6), (3, 1), (6, 0, 6, 0)),
]


@pytest.mark.parametrize(("size", "kernel", "pads", "strides", "dilations", "left_kernel", "left_pads"), CASES)
def test_taps_on_padding_vanish(
    size: Sequence[int], kernel: Sequence[int], pads: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...],
    left_kernel: Sequence[int], left_pads: tuple[int, ...],
) -> None:  # fmt: skip
    values = attributes(dilations=dilations, group=4, layout="NCHW", pads=pads, strides=strides)
    before, after = taps_on_padding.apply(Binding({"x": float32(1, 4, *size), "w": float32(4, 1, *kernel)}, {"a": values}))
    assert before.type == after.type
    assert after.inputs[1].type.sizes[2:] == left_kernel and after.integers("pads") == left_pads


def test_a_convolution_whose_taps_all_see_the_input_somewhere_is_kept() -> None:
    values = attributes(dilations=(1, 1), group=1, layout="NCHW", pads=(1, 1, 1, 1), strides=(1, 1))
    with pytest.raises(Mismatch, match="taps must read padding alone"):
        taps_on_padding.apply(Binding({"x": float32(1, 4, 2, 2), "w": float32(4, 4, 3, 3)}, {"a": values}))


@rule
def one_tap_too_many(x: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) = conv(x, w[1:]) with less padding,  also where the first tap reads x"""
    yield conv(x, w, a)
    kept = slice_(w, starts=(0, 0, *(1,) * (w.rank - 2)), ends=w.shape, steps=(1,) * w.rank)
    n = w.rank - 2
    yield conv(x, kept, a.but(pads=tuple(p - a.dilations[i] if i < n else p for i, p in enumerate(a.pads))))


def test_a_tap_that_reads_the_input_may_not_vanish() -> None:
    assert check_rule(taps_on_padding, seed=3, cases=12, tries=20_000).passed
    assert not check_rule(one_tap_too_many, seed=3, cases=12, tries=20_000).passed


def test_a_depthwise_convolution_of_one_position_is_a_product() -> None:
    m = Model()
    graph = m.graph(m.conv(m.input(1, 8, 1, 1), 8, 3, group=8))
    frozen = grown(graph, (taps_on_padding, depthwise_pointwise_conv_is_scale))
    (root,) = frozen.roots
    (add,) = (node for node in frozen.classes[root] if node.op == "Add")
    assert "Mul" in {node.op for child in add.children for node in frozen.classes[child]}
