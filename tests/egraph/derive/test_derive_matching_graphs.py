"""Whole fragments are matched as one operator: EinNet's graph-level cases and PET's exact ones, under their original names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from egraph.derive.matching.form import form
from egraph.derive.matching.match import match
from egraph.derive.matching.views import moved_elements
from egraph.tensor import Node, placeholders, walk
from egraph.tensor.expr.compose import inline
from egraph.tensor.expr.evaluate import Evaluator
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.scope import Tensor
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate, fragment_expression
from tests.support.fragments import leaf


def reshape(node: Node, *shape: int) -> Node:
    return apply("Reshape", node, shape=shape)


def transpose(node: Node, *perm: int) -> Node:
    return apply("Transpose", node, perm=perm)


def conv(data: Node, weight: Node, *pads: int, strides: tuple[int, ...] = (1, 1), group: int = 1) -> Node:
    return apply("Conv", data, weight, strides=strides, dilations=(1,) * len(strides), pads=pads, group=group, layout="NCHW")


def deconv(data: Node, weight: Node, stride: int, pad: int, layout: str) -> Node:
    values: dict[str, Any] = {"strides": (stride, stride), "dilations": (1, 1), "pads": (pad,) * 4, "output_padding": (0, 0)}
    return apply("ConvTranspose", data, weight, group=1, layout=layout, **values)


def programs_of(root: Node) -> tuple[Node, ...]:
    """Match a fragment by its composed meaning as one scope, and check that every program has its value, in F_p."""
    operands = placeholders(root)
    names = {str(n.integer("index")): Tensor(str(position), n.type.sizes, n.type.dtype) for position, n in enumerate(operands)}
    programs = tuple(one for one in match(inline(fragment_expression(root), names), operands) if one is not root and one.type == root.type)
    generator = np.random.default_rng(5)
    leaves = {n: generator.integers(0, PRIME, n.type.sizes) for n in operands}
    expected, *found = evaluate((root, *programs), leaves, "prime")
    assert all(np.array_equal(value, expected) for value in found)
    return programs


def operators(root: Node) -> list[str]:
    return [node.op for node in walk((root,)) if node.op != "Placeholder"]


# -- eliminateVertically ----------------------------------------------------------------------------------------------------------


def softmax_between(first: tuple[int, ...], axis: int, second: tuple[int, ...]) -> Node:
    """x[8,20,30] as [8,4,5,30], transposed, normalised, transposed"""
    inner = transpose(reshape(leaf(0, 8, 20, 30), 8, 4, 5, 30), *first)
    return transpose(apply("Softmax", inner, axis=axis), *second)


def test_rtstr_is_one_softmax() -> None:
    root = reshape(softmax_between((0, 2, 1, 3), 3, (0, 2, 1, 3)), 8, 20, 30)
    assert programs_of(root)[0] is apply("Softmax", leaf(0, 8, 20, 30), axis=2)


def test_rtst_is_two_operators() -> None:
    assert operators(programs_of(softmax_between((0, 2, 1, 3), 3, (0, 2, 1, 3)))[0]) == ["Softmax", "Reshape"]


def test_rtstr_3d_is_one_softmax() -> None:
    root = reshape(softmax_between((1, 2, 0, 3), 3, (2, 0, 1, 3)), 8, 20, 30)
    assert programs_of(root)[0] is apply("Softmax", leaf(0, 8, 20, 30), axis=2)


def test_rtstr_along_another_axis_is_one_softmax_too() -> None:
    """EinNet leaves this chain at five operators."""
    root = reshape(softmax_between((1, 2, 0, 3), 2, (2, 0, 1, 3)), 8, 20, 30)
    assert programs_of(root)[0] is apply("Softmax", leaf(0, 8, 20, 30), axis=0)


def test_reduce_reshape_relu_is_two_operators_and_a_view() -> None:
    root = apply("Relu", reshape(apply("ReduceMax", leaf(0, 8, 8, 8), axes=(2,)), 64))
    kinds = operators(programs_of(root)[-1])
    assert [kind for kind in kinds if kind != "Reshape"] == ["ReduceMax", "Expression"]


def test_a_chain_of_layouts_around_a_product_is_one_product() -> None:
    heads = reshape(transpose(leaf(0, 2, 12, 8, 16), 0, 2, 1, 3), 16, 192)
    root = reshape(transpose(apply("MatMul", heads, leaf(3, 192, 24, constant=True)), 1, 0), 24, 2, 8)
    first = programs_of(root)[0]
    assert operators(first).count("MatMul") == 1 and operators(first).count("Transpose") <= 2


def test_a_fragment_keeps_its_placeholders() -> None:
    root = transpose(apply("MatMul", transpose(leaf(4, 5, 3), 1, 0), leaf(7, 5, 6, constant=True)), 1, 0)
    programs = programs_of(root)
    assert programs
    for program in programs:
        assert {n for n in walk((program,)) if n.op == "Placeholder"} == {leaf(4, 5, 3), leaf(7, 5, 6, constant=True)}


# -- convolutions -----------------------------------------------------------------------------------------------------------------


def test_naive_conv() -> None:
    root = conv(leaf(0, 1, 3, 32, 32), leaf(1, 2, 3, 3, 3), 1, 1, 1, 1)
    assert "Expression" in [program.op for program in programs_of(root)]


def test_infogan_tconv_3() -> None:
    root = deconv(leaf(0, 1, 2, 2, 48), leaf(1, 48, 32, 4, 4), 2, 1, "NHWC")
    assert root in match(fragment_expression(root), root.inputs)
    assert [program.op for program in programs_of(root)][-1] == "Expression"


TCONV = [
    190, 193, 740, 755, 770, 785, 592, 604, 992, 1016, 2704, 2770, 2836, 2902, 1832, 1874,
    1184, 1208, 3232, 3298, 3364, 3430, 2168, 2210, 1114, 1135, 2660, 2711, 2762, 2813, 1624, 1654,
]  # fmt: skip
"""ConvTranspose of arange[1,2,2,3] (NHWC) and K[f,r,s,c] = arange[3,4,4,2], stride 2, pad 1."""


def test_tconv_input_expression_split_by_parity() -> None:
    text = (
        "{n<1,h<4,w<4,c<2} sum(f<3,r<2,s<2) [0<=(h+1)//2-r,(h+1)//2-r<2,0<=(w+1)//2-s,(w+1)//2-s<2 ? "
        "($0[n,(h+1)//2-r,(w+1)//2-s,f] * $1[f,2*r+(h+1)%2,2*s+(w+1)%2,c]) : 0]"
    )
    tensors = {"0": Tensor("0", (1, 2, 2, 3)), "1": Tensor("1", (3, 4, 4, 2))}
    values = {"0": np.arange(12.0).reshape(1, 2, 2, 3), "1": np.arange(96.0).reshape(3, 4, 4, 2)}
    assert Evaluator(values, "float64", {}).tensor(parse_scope(text, tensors)).ravel().tolist() == TCONV


def test_convtrans_test_1() -> None:
    """The operator and the programs that are matched with another layout of the weight give the same numbers."""
    data, kernel = leaf(0, 1, 2, 2, 3), leaf(1, 3, 4, 4, 2)
    root = deconv(data, transpose(kernel, 0, 3, 1, 2), 2, 1, "NHWC")
    programs = programs_of(root)
    leaves = {data: np.arange(12).reshape(1, 2, 2, 3), kernel: np.arange(96).reshape(3, 4, 4, 2)}
    assert len(programs) >= 2
    for value in evaluate((root, *programs), leaves):
        assert value.ravel().tolist() == TCONV


def test_cudnn_conv_transposed_run_1() -> None:
    root = deconv(leaf(0, 1, 2, 3, 3), leaf(1, 2, 2, 3, 3), 1, 0, "NCHW")
    leaves = {leaf(0, 1, 2, 3, 3): np.arange(18).reshape(1, 2, 3, 3), leaf(1, 2, 2, 3, 3): np.arange(36).reshape(2, 2, 3, 3)}
    programs = (root, *programs_of(root))
    for value in evaluate(programs, leaves):
        assert value.size == 50 and value.ravel()[:6].tolist() == [162, 351, 569, 413, 224, 405]
    assert {"Conv", "ConvTranspose"} <= {kind for program in programs for kind in operators(program)}  # the taps are reversed


def test_cudnn_conv_transposed_run_on_a_range() -> None:
    root = deconv(leaf(0, 1, 1, 4, 4), leaf(1, 1, 1, 2, 2), 1, 0, "NCHW")
    leaves = {leaf(0, 1, 1, 4, 4): np.arange(16).reshape(1, 1, 4, 4), leaf(1, 1, 1, 2, 2): np.arange(4).reshape(1, 1, 2, 2)}
    programs = programs_of(root)
    assert programs
    for value in evaluate((root, *programs), leaves):
        assert value.size == 25 and value.ravel()[:8].tolist() == [0, 0, 1, 2, 3, 0, 6, 12]


# -- PET --------------------------------------------------------------------------------------------------------------------------


def test_rule7_transgemm() -> None:
    root = apply("MatMul", leaf(0, 1, 8, 4), leaf(1, 1, 4, 8))
    turned = transpose(apply("MatMul", transpose(leaf(1, 1, 4, 8), 0, 2, 1), transpose(leaf(0, 1, 8, 4), 0, 2, 1)), 0, 2, 1)
    assert form(fragment_expression(turned)).text == form(fragment_expression(root)).text
    assert [operators(p) for p in programs_of(root) if p.op != "Expression"].count(["Reshape", "Transpose"] * 2) <= 1
    assert any(operators(p).count("Transpose") == 3 and "MatMul" in operators(p) for p in programs_of(root))


def test_rule12_a_row_window_is_a_column_window_of_the_transposed_image() -> None:
    image, weight = leaf(0, 2, 4, 6, 6), leaf(1, 3, 4, 1, 3)
    turned = transpose(conv(transpose(image, 0, 1, 3, 2), transpose(weight, 0, 1, 3, 2), 1, 0, 1, 0), 0, 1, 3, 2)
    assert form(fragment_expression(turned)).text == form(fragment_expression(conv(image, weight, 0, 1, 0, 1))).text
    assert "Conv" in {kind for program in programs_of(turned) for kind in operators(program)}


def test_conv_test_5_trans_kernel() -> None:
    """A 3x5 window over the transposed image with the transposed kernel is matched as the 5x3 window that it equals."""
    image, weight = leaf(0, 2, 4, 6, 7), leaf(1, 3, 4, 5, 3)
    turned = transpose(conv(transpose(image, 0, 1, 3, 2), transpose(weight, 0, 1, 3, 2), 1, 2, 1, 2), 0, 1, 3, 2)
    assert programs_of(turned)[0] is conv(image, weight, 2, 1, 2, 1)


@pytest.mark.parametrize("group", [1, 4])
def test_rule14_convolutions_of_halves_of_the_groups(group: int) -> None:
    """A grouped convolution is matched, with the group found from the coefficients of the channels."""
    root = conv(leaf(0, 2, 8, 5, 5), leaf(1, 8, 8 // group, 3, 3), 1, 1, 1, 1, group=group)
    channels_last = transpose(leaf(0, 2, 5, 5, 8), 0, 3, 1, 2)
    shuffled = transpose(conv(channels_last, leaf(1, 8, 8 // group, 3, 3), 1, 1, 1, 1, group=group), 0, 2, 3, 1)
    assert root in match(fragment_expression(root), root.inputs)
    assert {node.attribute("group") for p in programs_of(shuffled) for node in walk((p,)) if node.op == "Conv"} == {group}


def test_rule15_a_window_of_one_is_a_product() -> None:
    programs = programs_of(conv(leaf(0, 2, 256, 4, 4), leaf(1, 128, 256, 1, 1), 0, 0, 0, 0))
    assert any(node.op == "MatMul" and node.type.sizes == (128, 32) for p in programs for node in walk((p,)))
    assert any(node.op == "MatMul" and node.type.sizes == (32, 128) for p in programs for node in walk((p,)))


def test_pad_slice_test() -> None:
    image, weight = leaf(0, 1, 1, 7, 7), leaf(1, 1, 1, 5, 5)
    padded = apply("Pad", image, before=(0, 0, 8, 8), after=(0, 0, 8, 8), mode="constant", value=0.0)
    wide = conv(padded, weight, 2, 2, 2, 2)
    root = apply("Slice", wide, starts=(0, 0, 8, 8), ends=(1, 1, 15, 15), steps=(1, 1, 1, 1))
    programs = [p for p in programs_of(root) if operators(p).count("Conv") == 1]
    assert conv(image, weight, 2, 2, 2, 2) in programs


def interleave(node: Node, source: int, factor: int, target: int) -> Node:
    """Split ``factor`` off the front of one axis and place it behind another (PET's TransposeOp)."""
    sizes = list(node.type.sizes)
    split = reshape(node, *sizes[:source], factor, sizes[source] // factor, *sizes[source + 1 :])
    axes = [axis for axis in range(len(sizes) + 1) if axis != source]
    axes.insert(axes.index(target + 1) + 1, source)
    sizes[source] //= factor
    sizes[target] *= factor
    return reshape(transpose(split, *axes), *sizes)


def back(node: Node, source: int, factor: int, target: int) -> Node:
    """Undo ``interleave``."""
    sizes = list(node.type.sizes)
    split = reshape(node, *sizes[:target], sizes[target] // factor, factor, *sizes[target + 1 :])
    axes = [axis for axis in range(len(sizes) + 1) if axis != target + 1]
    axes.insert(axes.index(source), target + 1)
    sizes[target] //= factor
    sizes[source] *= factor
    return reshape(transpose(split, *axes), *sizes)


def test_transpose_test_4() -> None:
    """Moving n into h and back is the identity; moving n into h alone is one transpose between views."""
    x = leaf(0, 2, 1, 8, 8)
    moved = interleave(x, 0, 2, 2)
    assert moved.type.sizes == (1, 1, 16, 8)
    assert programs_of(back(moved, 0, 2, 2))[0] is x
    assert operators(programs_of(moved)[0]).count("Transpose") == 1


def test_eliminator_test_1() -> None:
    """A chain of h into n, then twice n into w and twice back, is matched as its first step."""
    x = leaf(0, 4, 4, 14, 14)
    first = interleave(x, 0, 2, 2)
    chain = back(back(interleave(interleave(first, 0, 2, 3), 0, 1, 3), 0, 1, 3), 0, 2, 3)
    (best, *_) = programs_of(chain)
    assert operators(best).count("Transpose") == 1
    assert form(fragment_expression(chain)).text == form(fragment_expression(first)).text


def test_fuse_activation() -> None:
    """In a product followed by a transpose and a Relu, the last two become one Expression."""
    root = apply("Relu", transpose(apply("MatMul", leaf(0, 32, 32), leaf(1, 32, 32)), 1, 0))
    assert operators(programs_of(root)[-1]) == ["MatMul", "Expression"]


# -- the operator as it stands is the match that moves nothing ----------------------------------------------------------------------

AS_THEY_STAND = {
    "a row window": conv(leaf(0, 2, 8, 7, 7), leaf(1, 3, 8, 1, 7), 0, 3, 0, 3),
    "a strided window of one": conv(leaf(0, 2, 8, 7, 7), leaf(1, 3, 8, 1, 1), 0, 0, 0, 0, strides=(2, 2)),
    "a depthwise window": conv(leaf(0, 1, 8, 7, 7), leaf(1, 8, 1, 3, 3), 1, 1, 1, 1, group=8),
    "a transposed window": deconv(leaf(0, 2, 4, 5, 5), leaf(1, 4, 3, 4, 4), 2, 1, "NCHW"),
    "a bias of channels": apply("Add", leaf(0, 1, 8, 7, 7), leaf(1, 1, 8, 1, 1)),
    "a bias of columns": apply("Add", leaf(0, 2, 5, 8), leaf(1, 8)),
    "a pool": apply("MaxPool", leaf(0, 2, 8, 9, 9), kernel_shape=(3, 3), strides=(2, 2), dilations=(1, 1), pads=(1,) * 4, layout="NCHW"),
    "a softmax": apply("Softmax", leaf(0, 2, 3, 8, 8), axis=3),
}


@pytest.mark.parametrize("name", AS_THEY_STAND)
def test_what_needs_no_movement_is_matched_without_any(name: str) -> None:
    root = AS_THEY_STAND[name]
    programs = match(fragment_expression(root), root.inputs)
    assert root in programs
    moved = [sum(kind in ("Transpose", "Slice", "Pad") for kind in operators(program)) for program in programs]
    assert moved[programs.index(root)] == 0


def test_weights_move_for_nothing() -> None:
    """A product with a transposed constant weight is matched unchanged because the weight is transposed before the model runs."""
    text = "{m<12,n<8} sum(k<16) ($0[m,k] * $1[n,k])"
    scope = parse_scope(text, {"0": Tensor("0", (12, 16)), "1": Tensor("1", (8, 16))})
    first = match(scope, (leaf(0, 12, 16), leaf(1, 8, 16, constant=True)))[0]
    assert first is apply("MatMul", leaf(0, 12, 16), transpose(leaf(1, 8, 16, constant=True), 1, 0))
    other = match(scope, (leaf(0, 12, 16, constant=True), leaf(1, 8, 16)))
    assert moved_elements(other[0]) == 96 and moved_elements(first) == 0
