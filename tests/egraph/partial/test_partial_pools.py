"""Average pools as convolutions with equal taps, and the reverse, are found, have correct boxes, are proved and agree with onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from egraph.errors import TypeMismatch
from egraph.optimize.admission import agreement_with, boxes_between
from egraph.partial.generation import generated
from egraph.partial.mutants import Mutant
from egraph.partial.pools import as_convolution, as_pool, equal_taps, known_as_constants
from egraph.partial.stitching import stitched, stitches
from egraph.tensor import Node, walk
from egraph.tensor.boxes import mask_of
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from tests.support.fragments import concat, conv, leaf, reshape
from tests.support.mutants import everywhere
from tests.support.onnxruntime_outputs import outputs_of_onnxruntime
from verify.application import equal_at_sizes
from verify.corrected import corrected
from verify.disagreement import MOST_TRIED, _ends

Region = tuple[Node, ...]
AS_CONV, AS_POOL = "as Conv of equal taps", "as AveragePool where taps are equal"


def data(layout: str, images: int = 1, channels: int = 16, space: tuple[int, int] = (9, 8)) -> Node:
    return leaf(0, images, channels, *space) if layout == "NCHW" else leaf(0, images, *space, channels)


def pool(
    x: Node, counted: bool, layout: str = "NCHW", taps: Sequence[int] = (3, 3), pads: Sequence[int] = (1, 1, 1, 1), stride: int = 1
) -> Node:  # fmt: skip
    return apply(
        "AveragePool", x, kernel_shape=tuple(taps), strides=(stride,) * 2, pads=tuple(pads), dilations=(1, 1),
        count_include_pad=int(counted), layout=layout,
    )  # fmt: skip


def depthwise(x: Node, position: int = 1) -> Node:
    return conv(x, leaf(position, 16, 1, 3, 3, constant=True), (1, 1, 1, 1), 1, 1, "NCHW", 16)


def of_moves(region: Region, *moves: str) -> Mutant:
    return next(each for each in generated(region, agreement_with, boxes_between) if each.moves == moves)


def is_right(region: Region, mutant: Mutant, *, is_proved: bool = True) -> bool:
    """Return whether boxes agree with brute force, stitched programs are proved (or refused), and outputs agree with onnxruntime."""
    expected, leaves = outputs_of_onnxruntime(region)
    for number, (root, program, boxes) in enumerate(zip(region, mutant.programs, mutant.boxes, strict=True)):
        if (mask_of(boxes, root.type.sizes) != everywhere(root, program)).any():
            return False
        for whole in stitches(root, program, boxes):
            (value,) = evaluate((whole,), leaves)
            if (equal_at_sizes(root, whole) == "") != is_proved or not np.allclose(value, expected[number], rtol=1e-4, atol=1e-5):
                return False
    return True


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("counted", "pads", "stride"), [(True, (1, 1, 1, 1), 1), (False, (0, 0, 0, 0), 2), (True, (0, 1, 1, 0), 2)])
def test_a_pool_is_a_convolution_of_equal_taps(layout: str, counted: bool, pads: tuple[int, ...], stride: int) -> None:
    region = (pool(data(layout), counted, layout, pads=pads, stride=stride),)
    mutant = of_moves(region, AS_CONV)
    (product,) = [node for node in walk(mutant.programs) if node.op == "Conv"]
    assert product.integer("group") == 16 and not any(node.op == "AveragePool" for node in walk(mutant.programs))
    assert not mutant.cells and is_right(region, mutant)
    proposed = [each.program for (each,) in stitched(region, [mutant], "pools")]
    assert proposed == list(mutant.programs)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("stride", [1, 2])
def test_where_pads_do_not_count_the_border_is_corrected(layout: str, stride: int) -> None:
    region = (pool(data(layout, space=(9 * stride, 8 * stride)), False, layout, stride=stride),)
    mutant = of_moves(region, AS_CONV)
    assert 0 < mutant.cells < region[0].type.elements and is_right(region, mutant)


@pytest.mark.parametrize("counted", [True, False])
def test_a_pool_and_a_depthwise_convolution_of_one_input_are_one_convolution(counted: bool) -> None:
    """The weights of the joined convolution are made from constant weights, so that the program makes none when it runs."""
    x = data("NCHW")
    region = pool(x, counted), depthwise(x)
    mutant = of_moves(region, AS_CONV, "weights joined inside 16 groups", "results cut along axis 1 inside 16 groups")
    (product,) = [node for node in walk(mutant.programs) if node.op == "Conv"]
    assert not any(node.op == "Placeholder" and not node.attribute("constant") for node in walk((product.inputs[1],)))
    assert bool(mutant.cells) != counted and is_right(region, mutant)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_a_convolution_whose_taps_are_equal_is_a_pool(group: int) -> None:
    weight = apply("Expand", leaf(1, 4, 4 // group, 1, 1, constant=True), shape=(4, 4 // group, 3, 3))
    region = (conv(data("NCHW", 2, 4), weight, (1, 0, 0, 1), 2, 1, "NCHW", group),)
    mutant = of_moves(region, AS_POOL)
    (product,) = [node for node in walk(mutant.programs) if node.op == "Conv"]
    assert product.inputs[0].op == "AveragePool" and product.inputs[1].type.sizes[2:] == (1, 1)
    assert not mutant.cells and is_right(region, mutant)


def test_a_convolution_whose_taps_differ_is_no_pool() -> None:
    first, second = (apply("Expand", leaf(k, 4, 4, 1, 1, constant=True), shape=(4, 4, 3, 1)) for k in (1, 2))
    region = (conv(data("NCHW", 2, 4), concat(3, first, second), (1, 0, 0, 1), 1, 1, "NCHW"),)
    assert list(as_pool(region[0]))
    assert AS_POOL not in [move for each in generated(region, agreement_with, boxes_between) for move in each.moves]


@settings(max_examples=30, deadline=None)
@given(
    st.tuples(*[st.integers(1, 3)] * 2), st.tuples(*[st.integers(0, 2)] * 4), st.integers(1, 2), st.booleans(),
    st.sampled_from(("NHWC", "NCHW")), st.tuples(*[st.integers(3, 6)] * 2),
)  # fmt: skip
def test_a_pool_is_its_convolution_but_where_pads_count_differently(
    taps: tuple[int, int], pads: tuple[int, ...], stride: int, counted: bool, layout: str, space: tuple[int, int]
) -> None:
    x = data(layout, 1, 2, space)
    try:
        node = pool(x, counted, layout, taps, pads, stride)
    except TypeMismatch:  # a window lies entirely in the padding
        assume(False)
    program = as_convolution(node, x)
    assert program.type == node.type
    boxes = boxes_between(node, program)
    assert boxes is not None and (mask_of(boxes, node.type.sizes) == everywhere(node, program)).all()
    assert not boxes or not counted


@pytest.mark.parametrize("stride", [1, 2])
def test_boxes_of_large_maps_are_those_of_the_ends_where_that_is_proved(stride: int) -> None:
    """A large map has more positions than are tried one by one, and its boxes agree with brute force."""
    x = data("NCHW", 2, 16, (28 * stride, 28 * stride))
    node = pool(x, False, stride=stride)
    program = as_convolution(node, x)
    boxes = boxes_between(node, program)
    assert boxes is not None and (mask_of(boxes, node.type.sizes) == everywhere(node, program)).all()
    assert all(equal_at_sizes(node, whole) == "" for whole in stitches(node, program, boxes))


@pytest.mark.parametrize(
    ("shape", "lengths"), [((5,), [5]), ((1 << 26,), [MOST_TRIED]), ((2, 3, 300, 90), [2, 3, 52, 52]), ((129, 128, 1, 2), [90, 90, 1, 2])]
)
def test_as_many_positions_of_the_ends_are_tried_as_may_be(shape: tuple[int, ...], lengths: list[int]) -> None:
    """As many positions at the ends of axes are tried as the limit allows.

    All long axes have equally long ends, also if an axis has millions of positions.
    """
    axes = _ends(shape)
    assert [len(axis) for axis in axes] == lengths
    assert all(axis[0] == 0 and axis[-1] == size - 1 and (np.diff(axis) > 0).all() for axis, size in zip(axes, shape, strict=True))


def test_a_rule_that_counts_pads_is_corrected_on_a_large_map() -> None:
    """A pool that counts its padding is corrected on a large map.

    Most positions agree, although no term of one side has a partner on the other.
    """
    image = data("NCHW", space=(112, 112))
    result = corrected(pool(image, False), pool(image, True), {}, "reassociates")
    assert result.programs and result.where is not None and result.where.cells == 16 * (112 * 112 - 110 * 110)


def test_boxes_of_large_maps_may_differ_by_image_or_channel() -> None:
    x, w = leaf(0, 8, 14, 14, 4), leaf(1, 4, 4, 3, 3, constant=True)
    node = conv(x, w, (1, 1, 1, 1))
    tall = reshape(conv(reshape(x, 4, 28, 14, 4), w, (1, 1, 1, 1)), 8, 14, 14, 4)
    image = leaf(0, 1, 40, 40, 4)
    counted, uncounted = pool(image, True, "NHWC"), pool(image, False, "NHWC")
    halves = [
        apply("Slice", each, starts=(0, 0, 0, k), ends=(1, 40, 40, k + 2), steps=(1,) * 4) for each, k in ((counted, 0), (uncounted, 2))
    ]
    for root, program in ((node, tall), (counted, concat(3, *halves))):
        boxes = boxes_between(root, program)
        assert boxes and (mask_of(boxes, root.type.sizes) == everywhere(root, program)).all()


def test_what_differs_between_the_ends_of_a_large_map_is_corrected_as_well() -> None:
    """A difference in the middle of a large map is corrected too.

    The middle is assumed to be like the ends and then compared; if it differs, its box is kept.
    """
    image = leaf(0, 1, 96, 96, 4)
    node = pool(image, False, "NHWC")
    flat = as_convolution(pool(image, True, "NHWC", (1, 3), (0, 1, 0, 1)), image)
    kept = as_convolution(node, image)
    rows = [
        apply("Slice", each, starts=(0, first, 0, 0), ends=(1, end, 96, 4), steps=(1,) * 4)
        for each, first, end in ((kept, 0, 47), (flat, 47, 48), (kept, 48, 96))
    ]
    boxes = boxes_between(node, concat(1, *rows))
    assert boxes is not None
    expected = np.ones((1, 96, 96, 4), bool)
    expected[:, 1:-1, 1:-1] = False
    expected[:, 47] = True
    assert (mask_of(boxes, node.type.sizes) == expected).all()


def test_weights_of_equal_taps_count_as_constants_and_nothing_else_does() -> None:
    x = data("NCHW")
    node = pool(x, True)
    (priced,) = known_as_constants((as_convolution(node, x),))
    assert priced.inputs[1].op == "Placeholder" and priced.inputs[1].attribute("constant") and priced.inputs[0] is x
    assert known_as_constants((node, depthwise(x))) == (node, depthwise(x))
    assert equal_taps(x, 3, (2, 2)).type.sizes == (3, 1, 2, 2)
