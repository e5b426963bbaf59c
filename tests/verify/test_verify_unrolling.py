"""Short sums under a remainder are written out: transposed convolutions as overlapping sums, at given sizes."""

from __future__ import annotations

import pytest

from egraph.rule import Attributes, Binding, Equation, Rule, Tensor, rule
from egraph.rule_operators import conv_transpose, relu
from egraph.rules import rule_named
from egraph.tensor import TensorType, attributes
from verify.application import objection


def _binding(kernel: int, stride: int, pad: int) -> Binding:
    values = attributes(dilations=(1,), group=1, layout="NCHW", output_padding=(0,), pads=(pad, pad), strides=(stride,))
    types = {"x": TensorType("float32", (2, 3, 5)), "w": TensorType("float32", (3, 2, kernel))}
    return Binding(types, {"a": values})


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(4, 2, 1), (3, 2, 0), (5, 3, 1)])
def test_a_transposed_convolution_is_an_overlapping_sum(kernel: int, stride: int, pad: int) -> None:
    """Each tap belongs to one phase of the output; the phases pair tap by tap."""
    assert objection(rule_named("conv_transpose_is_overlapping_sum"), [_binding(kernel, stride, pad)]) == ""


@rule
def transposed_by_relu(x: Tensor, w: Tensor, a: Attributes) -> Equation:
    """conv_transpose(x, w) = conv_transpose(relu(x), w), which is false"""
    return conv_transpose(x, w, a) == conv_transpose(relu(x), w, a)


@rule
def transposed_of_doubled(x: Tensor, w: Tensor, a: Attributes) -> Equation:
    """conv_transpose(x, w) = conv_transpose(x + x, w), which is false"""
    return conv_transpose(x, w, a) == conv_transpose(x + x, w, a)


@pytest.mark.parametrize("false", [transposed_by_relu, transposed_of_doubled])
def test_what_is_false_stays_open_element_by_element(false: Rule) -> None:
    """Writing sums out must not prove false rules."""
    assert objection(false, [_binding(4, 2, 1)]) != ""
