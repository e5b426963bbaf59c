"""Converging search: programs equal their operator, required families are reached, and a larger budget finds no fewer programs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from bench.searches import band, convolution
from egraph.derive.search import derive, search
from egraph.derive.targets import PRODUCT, SMALL_WINDOW, TARGETS, WINDOW
from egraph.derive.trees import scopes
from egraph.errors import EinsatError
from egraph.tensor import Node, TensorType, placeholder, walk
from egraph.tensor.expr.evaluate import evaluate
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.scope import Tensor
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.expression import text_of
from egraph.tensor.ops.reference import evaluate as run
from egraph.tensor.ops.reference import meaning
from verify.application import equal_at_sizes


def assert_same(node: Node, program: Node) -> None:
    """Compare a program with the operator on one random draw, exactly in F_p."""
    random = np.random.default_rng(11)
    leaves = {leaf: random.integers(0, PRIME, leaf.type.sizes) for leaf in node.inputs}
    one, other = run([node, program], leaves, "prime")
    assert np.array_equal(one, other)


def contraction_of(program: Node) -> list[Node]:
    return [n for n in walk((program,)) if n.op in ("MatMul", "Conv", "ConvTranspose")]


FAMILIES: dict[str, tuple[Callable[[], Node], str, tuple[int, ...]]] = {
    "1x7": (lambda: convolution((1, 64, 7, 7), (32, 64, 1, 7), pads=(0, 3, 0, 3)), "MatMul", (224, 49)),
    "9x9 to 3x3": (lambda: convolution((1, 16, 20, 20), (8, 16, 9, 9), pads=(4, 4, 4, 4)), "Conv", (1, 72, 22, 22)),
    "6x6 to 3x3": (lambda: convolution((1, 16, 20, 20), (8, 16, 6, 6), pads=(2, 2, 2, 2)), "Conv", (1, 32, 22, 22)),
    "7x7 stride 2": (lambda: convolution((1, 3, 32, 32), (16, 3, 7, 7), strides=(2, 2), pads=(3, 3, 3, 3)), "Conv", (1, 16, 16, 16)),
    "dilation into the batch": (
        lambda: convolution((1, 16, 14, 14), (16, 16, 3, 3), dilations=(2, 2), pads=(2,) * 4), "Conv", (4, 16, 7, 7),
    ),
    "one conv of 4x channels": (
        lambda: convolution((1, 8, 5, 5), (8, 16, 4, 4), "ConvTranspose", strides=(2, 2), pads=(1, 1, 1, 1)), "Conv", (1, 64, 5, 5),
    ),
    "phases": (lambda: convolution((1, 8, 5, 5), (8, 16, 4, 4), "ConvTranspose", strides=(2, 2), pads=(1,) * 4), "Conv", (1, 16, 5, 5)),
    "im2col": (lambda: convolution((1, 8, 9, 9), (16, 8, 3, 3), strides=(2, 2)), "MatMul", (16, 16)),
    "groups": (lambda: convolution((1, 32, 6, 6), (32, 8, 3, 3), pads=(1,) * 4, group=4), "MatMul", (4, 36, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_families_reach_their_operator(name: str) -> None:
    """Each family has a program with an operator of this result, up to the order of its axes, and the program computes the same."""
    make, operator, shape = FAMILIES[name]
    node = make()
    found = derive(node)
    assert any(c.op == operator and sorted(c.type.sizes) == sorted(shape) for d in found for c in contraction_of(d.program)), [
        (c.op, c.type.sizes) for d in found for c in contraction_of(d.program)
    ]
    for derivation in found:
        assert_same(node, derivation.program)
    if name == "phases":
        assert any(len(contraction_of(d.program)) == 4 for d in found)


def test_a_band_folds_its_dilation_into_the_batch() -> None:
    """Chunks of the band do not leak into each other at any size (EinNet's form is wrong at their borders)."""
    for rows, dilation in ((12, 4), (13, 4), (10, 3)):
        node = band(2, rows, 3, 2, dilation)
        for derivation in derive(node):
            assert_same(node, derivation.program)
        assert any("to a band" in d.name for d in derive(node))


@pytest.mark.parametrize("operator", ["Conv", "ConvTranspose", "MatMul"])
def test_programs_compute_what_they_derive_from(operator: str) -> None:
    """Programs compute their operator's result for all strides, dilations, pads, groups and layouts that samples draw."""
    random, count = Random(5), 0
    for _ in range(12):
        shapes, attributes = OPS[operator].sample(random)
        leaves = [placeholder(k, TensorType("float32", tuple(s)), constant=bool(k)) for k, s in enumerate(shapes)]
        node = apply(operator, *leaves, **attributes)
        for derivation in derive(node):
            assert_same(node, derivation.program)
            assert derivation.steps
            count += 1
    assert count >= (3 if operator == "MatMul" else 12)


def test_states_mean_the_same() -> None:
    """Every state of a search has the operator's value, not only the states that become programs."""
    random, compared = Random(2), 0
    for operator in ("Conv", "ConvTranspose") * 4:
        shapes, attributes = OPS[operator].sample(random)
        scope = OPS[operator].meaning([Tensor(str(k), shape) for k, shape in enumerate(shapes)], attributes)
        values = {str(k): np.random.default_rng(k).integers(0, PRIME, shape) for k, shape in enumerate(shapes)}
        for target in TARGETS:
            for state in search(scope, target, 20)[0]:
                assert np.array_equal(evaluate(scope, values, "prime"), evaluate(state.tree, values, "prime"))
                compared += 1
    assert compared > 20


def test_more_budget_never_loses_a_solution() -> None:
    for node, target in (
        (convolution((2, 8, 2, 2), (8, 4, 4, 4), "ConvTranspose", strides=(2, 2), pads=(1, 1, 1, 1)), PRODUCT),
        (convolution((1, 4, 12, 12), (3, 4, 5, 5), pads=(2, 2, 2, 2)), SMALL_WINDOW),
        (convolution((1, 4, 12, 12), (4, 3, 5, 5), "ConvTranspose", strides=(3, 3)), WINDOW),
    ):
        before: tuple[str, ...] = ()
        for budget in (1, 2, 3, 5, 8, 13, 21):
            texts = tuple(state.text for state in search(meaning(node), target, budget)[0])
            assert texts[: len(before)] == before
            before = texts
        assert before


def test_what_repairs_do_not_reach_is_explored() -> None:
    """Exploration finds programs that no repair reaches.

    A guard over iterators of both operands has no repair, but a sum that is moved outward turns its iterator into one of the output.
    """
    node = expression("{h<6,f<5} sum(c<4,k<8) [h+f+c<9 ? ($0[h,c,k] * $1[f,c,k]) : 0]", (6, 4, 8), (5, 4, 8))
    assert not search(meaning(node), PRODUCT)[0]
    found, effort = search(meaning(node), PRODUCT, 200)
    assert found and any("summation splitting of" in step.rule for step in found[0].steps) and effort.expanded <= 200
    assert search(meaning(node), PRODUCT, 300)[0][: len(found)] == found
    assert any(c.op == "MatMul" for d in derive(node, 200) for c in contraction_of(d.program))
    for derivation in derive(node, 200):
        assert_same(node, derivation.program)


@pytest.mark.parametrize(("stride", "dilation"), [((2, 2), (1, 1)), ((1, 1), (2, 2)), ((2, 2), (2, 2)), ((2, 3), (3, 2))])
def test_strides_and_dilations_of_grouped_convolutions_channels_last(stride: tuple[int, int], dilation: tuple[int, int]) -> None:
    """Windows are taken apart although the channel's index is a division.

    Regression: the search split the digits of such an index again and again.
    """
    node = convolution((1, 12, 12, 16), (16, 2, 3, 3), strides=stride, dilations=dilation, pads=(1, 1, 1, 1), group=8, layout="NHWC")
    found, effort = search(meaning(node), WINDOW)
    assert found and effort.seen <= 16
    for derivation in derive(node):
        assert_same(node, derivation.program)


def test_states_that_undo_what_they_did_are_left_out() -> None:
    """States that undo earlier steps are discarded: no scope of a state has more than three times the operator's sums, for any target."""
    for node in (
        convolution((1, 8, 9, 9), (8, 4, 3, 3), "ConvTranspose", strides=(2, 2), dilations=(3, 3)),
        convolution((1, 12, 12, 16), (16, 2, 3, 3), strides=(2, 3), dilations=(3, 2), group=8, layout="NHWC"),
    ):
        most = 3 * len(meaning(node).summation)
        states = [state for target in TARGETS for state in search(meaning(node), target)[0]]
        assert states
        for state in states:
            assert max(len(scope.summation) for scope in scopes(state.tree)) <= most


@pytest.mark.parametrize(
    ("operator", "size", "pads", "stride"),
    [
        ("Conv", (1, 1), 4, 1), ("Conv", (1, 1), 3, 2), ("Conv", (2, 1), 4, 1),
        ("ConvTranspose", (1, 1), 0, 1), ("ConvTranspose", (1, 1), 1, 2), ("ConvTranspose", (2, 1), 1, 1),
    ],
)  # fmt: skip
def test_windows_over_one_position_have_one_tap(operator: str, size: tuple[int, int], pads: int, stride: int) -> None:
    """A window over an image with one position has one tap, so it is no window, and the derived programs are proved."""
    node = convolution((1, 8, *size), (8, 8, 5, 5), operator, strides=(stride, stride), pads=(pads,) * 4)
    found = derive(node)
    assert any(c.op == "MatMul" for d in found for c in contraction_of(d.program))
    for derivation in found:
        assert equal_at_sizes(node, derivation.program) == ""
    if size == (1, 1):
        assert not any("small window" in derivation.name for derivation in found)


def test_taps_in_two_iterators_are_one_window() -> None:
    text = "{f<4,h<12} sum(c<3,b<3,a<2) [0<=h+2*b+a-2, h+2*b+a-2<12 ? ($0[c,h+2*b+a-2] * $1[f,c,a,b]) : 0]"
    node = expression(text, (3, 12), (4, 3, 2, 3))
    found = derive(node)
    assert any(c.op == "Conv" for d in found for c in contraction_of(d.program))
    for derivation in found:
        assert_same(node, derivation.program)


def test_an_image_that_was_enlarged_is_convolved_before() -> None:
    """In conv(nearest(x)) along h, equal rows are computed once, before the image is enlarged."""
    node = expression("{f<4,h<12} sum(c<3,r<3) ($0[c,h//2+r] * $1[f,c,r])", (3, 8), (4, 3, 3))
    found = derive(node)
    assert any(6 in c.type.sizes for d in found for c in contraction_of(d.program) if c.op == "Conv")
    for derivation in found:
        assert_same(node, derivation.program)


def test_the_same_search_gives_the_same_programs() -> None:
    node = convolution((1, 8, 6, 6), (8, 8, 3, 3), pads=(1, 1, 1, 1))
    assert [d.program.digest for d in derive(node)] == [d.program.digest for d in derive(node)]


def test_what_is_no_contraction_has_no_derivation() -> None:
    leaf = placeholder(0, TensorType("float32", (4, 5)))
    assert derive(apply("Expression", leaf, text="{i0<4} sum(r0<5) exp($0[i0,r0])")) == ()


def test_a_failing_operand_is_an_error_with_a_reason() -> None:
    with pytest.raises(EinsatError):
        convolution((1, 4, 2, 2), (4, 4, 5, 5))


def expression(text: str, *shapes: tuple[int, ...]) -> Node:
    scope = parse_scope(text, {str(k): Tensor(str(k), shape) for k, shape in enumerate(shapes)})
    return apply("Expression", *(placeholder(k, TensorType("float32", shape)) for k, shape in enumerate(shapes)), text=text_of(scope))


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("{m<6,n<5} sum(k<7) (($0[m,k] * $1[k,n]) * $2[k])", ((6, 7), (7, 5), (7,))),
        ("{m<6,n<5} sum(k<7) ((1/2 * $0[m,k]) * $1[k,n])", ((6, 7), (7, 5))),
        ("{m<6,n<5} sum(k<7) (max($0[m,k], 0) * $1[k,n])", ((6, 7), (7, 5))),
        ("{m<6,n<5} sum(k<7) (($0[m,k] + $2[m]) * $1[k,n])", ((6, 7), (7, 5), (6,))),
        ("{f<4,h<6,w<6} sum(c<3,r<3,s<3) (($0[c,h+r,w+s] * $1[f,c,r,s]) * table(3: 1 2 -1)[r])", ((3, 8, 8), (4, 3, 3, 3))),
        ("{f<4,h<6} sum(c<3,r<3) [0<=h+r-1, h+r-1<6 ? (exp($0[c,h+r-1]) * $1[f,c,r]) : 0]", ((3, 6), (4, 3, 3))),
    ],
)
def test_products_of_more_than_two_reads(text: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    """Scales, activations, biases and tables among the factors are instantiated on one side, so that an operator remains."""
    node = expression(text, *shapes)
    found = derive(node)
    assert any(contraction_of(d.program) for d in found)
    assert any(c.op == "Conv" for d in found for c in contraction_of(d.program)) is ("h" in text)
    for derivation in found:
        assert_same(node, derivation.program)


def test_terms_of_a_sum_are_derived_apart() -> None:
    node = expression("{m<6,n<5} sum(k<7) (($0[m,k] * $1[k,n]) - ($2[m,k] * $3[n,k]))", (6, 7), (7, 5), (6, 7), (5, 7))
    found = derive(node)
    assert any(len(contraction_of(d.program)) == 2 for d in found)
    for derivation in found:
        assert_same(node, derivation.program)


def test_reductions_are_matched_as_they_stand() -> None:
    node = expression("{c<4,h<3,w<3} max(r<2,s<2) $0[c,2*h+r,2*w+s]", (4, 6, 6))
    assert any(inner.op == "MaxPool" for d in derive(node) for inner in walk((d.program,)))


def test_two_kernels_over_one_input_become_products_of_one_left_operand() -> None:
    """For a 1xk and a kx1 window over one input, both products read the input unchanged, so that they can be merged along their columns."""
    wide = convolution((1, 16, 7, 7), (4, 16, 1, 5), pads=(0, 2, 0, 2))
    tall = convolution((1, 16, 7, 7), (4, 16, 5, 1), pads=(2, 0, 2, 0))
    products = [
        {n.inputs[k] for d in derive(node) for n in walk((d.program,)) if n.op == "MatMul" for k in (0, 1)} for node in (wide, tall)
    ]
    shared = [leaf.inputs[0] for leaf in products[0] & products[1] if leaf.inputs]
    assert any(leaf.op == "Placeholder" and not leaf.attribute("constant") for leaf in shared)
