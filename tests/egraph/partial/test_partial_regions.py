"""Programs generated for regions: PET's published ones are found, boxes agree with brute force, and stitched programs are proved."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from itertools import islice, starmap
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from egraph.derive.derivation import AnyRule, Derivation, RegionRule
from egraph.engine.deriving import Derivations, Judged, Stop
from egraph.engine.saturate import Limits, Saturation, saturate
from egraph.errors import TypeMismatch
from egraph.inspect.derivation import derivation_rule, explain_derivation
from egraph.optimize.admission import PARTIAL, agreement_with, boxes_between, list_rules
from egraph.optimize.derivations import Deriver
from egraph.partial.arrangements import arranged, led_back
from egraph.partial.boundaries import tightened, unpadded
from egraph.partial.generation import generated, zeros_around
from egraph.partial.mutants import Mutant
from egraph.partial.stitching import BORDERS as OF_BORDERS
from egraph.partial.stitching import REGIONS as OF_REGIONS
from egraph.partial.stitching import _channels_last, stitched, stitches
from egraph.policy import SaturationPolicy
from egraph.tensor import Graph, Node, TensorType, attributes, make, walk
from egraph.tensor.boxes import cells, mask_of
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate, fragment_expression
from egraph.tolerance import Tolerance
from tests.support.fragments import concat, conv, leaf, matmul
from tests.support.mutants import everywhere, fails_a_test, pairs, with_an_edge_moved
from tests.support.onnxruntime_outputs import outputs_of_onnxruntime
from verify.application import _proof, equal_at_sizes
from verify.outcome import Open

SECONDS = 5.0
"""Processor time in seconds within which a published program must be found."""
Region = tuple[Node, ...]


@cache
def found(region: Region) -> tuple[Mutant, ...]:
    """Search a region, cached for all tests of its programs."""
    return generated(region, agreement_with, boxes_between)


def weight(position: int, *shape: int) -> Node:
    return leaf(position, *shape, constant=True)


def nchw(data: Node, weights: Node, group: int = 1, pads: Sequence[int] | None = None) -> Node:
    around = [(taps - 1) // 2 for taps in weights.type.sizes[2:]]
    return conv(data, weights, pads or (*around, *around), 1, 1, "NCHW", group)


def of_one_input(images: int, channels: int, size: int, filters: Sequence[int]) -> Region:
    """Return 3x3 convolutions, of which all but the last share an input."""
    shared, other = leaf(0, images, channels, size, size), leaf(1, images, channels, size, size)
    weights = [weight(2 + k, count, channels, 3, 3) for k, count in enumerate(filters)]
    return (*(nchw(shared, w) for w in weights[:-1]), nchw(other, weights[-1]))


def mixed_windows(images: int, channels: int, size: int) -> Region:
    """Return three 1x3 convolutions and a 3x1 convolution."""
    taps = [(1, 3), (1, 3), (1, 3), (3, 1)]
    return tuple(nchw(leaf(2 * k, images, channels, size, size), weight(2 * k + 1, channels, channels, *t)) for k, t in enumerate(taps))


def two_groups() -> Region:
    return nchw(leaf(0, 1, 4, 4, 4), weight(1, 4, 2, 3, 3), 2), nchw(leaf(2, 1, 6, 4, 4), weight(3, 6, 2, 3, 3), 3)


def two_groups_of_one_input(size: int) -> Region:
    x = leaf(0, 1, 4, size, size)
    return nchw(x, weight(1, 4, 2, 3, 3), 2), nchw(x, weight(2, 6, 2, 3, 3), 2)


def batched() -> Region:
    return tuple(matmul(leaf(0, 1, 8, 4), weight(k, 1, 4, 8)) for k in (1, 2))


def grouped(channels: int, size: int, group: int) -> Region:
    return (nchw(leaf(0, 1, channels, size, size), weight(1, channels, channels // group, 3, 3), group),)


def products_of(*shapes: tuple[int, ...]) -> Region:
    return (matmul(leaf(0, *shapes[0]), weight(1, *shapes[1])),)


PUBLISHED: dict[str, tuple[Region, Region, str, Sequence[str]]] = {
    "6: one batched product": (batched(), batched(), "weights joined along axis 0 and results taken apart", ("MatMul",)),
    "7: product of transposed": (
        (matmul(leaf(0, 1, 8, 4), leaf(1, 1, 4, 8)),), (matmul(leaf(0, 1, 8, 4), leaf(1, 1, 4, 8)),),
        "as MatMul of other forms", ("MatMul",),
    ),
    "8: groups by repeated channels": (
        (nchw(leaf(0, 1, 2, 4, 4), weight(1, 4, 2, 3, 3)),), (nchw(leaf(0, 1, 2, 4, 4), weight(1, 4, 2, 3, 3)),),
        "data repeated 2 times along axis 1", ("Conv",),
    ),
    "9: convolutions as groups, repeated inputs": (
        of_one_input(16, 256, 28, (32, 48, 32, 64)), of_one_input(2, 3, 4, (2, 4, 2, 2)),
        "data repeated, joined along axis 1 and weights joined along axis 0 and results cut along axis 1", ("Conv",),
    ),
    "9: convolutions as groups, padded weights": (
        of_one_input(16, 256, 28, (32, 48, 32, 64)), of_one_input(2, 3, 4, (2, 3, 2, 3)),
        "data joined along axis 1 and weights padded, joined along axis 0 and results cut along axis 1, padding left out", ("Conv",),
    ),
    "10: groups of several": (
        two_groups(), two_groups(), "data joined along axis 1 and weights joined along axis 0 and results cut along axis 1", ("Conv",)
    ),
    "11: groups of several, joined": (
        (concat(1, *two_groups()),), (concat(1, *two_groups()),), "data joined along axis 1 and weights joined along axis 0", ("Conv",)
    ),
    "13: 1x3 and 3x1 as groups": (
        mixed_windows(16, 256, 28), mixed_windows(2, 2, 4),
        "as Conv of other forms and data joined along axis 1 and weights joined along axis 0 and results cut along axis 1", ("Conv",),
    ),
    "14: fewer groups, in two": (
        (nchw(leaf(0, 16, 256, 28, 28), weight(1, 256, 32, 3, 3), 8),), (nchw(leaf(0, 2, 8, 4, 4), weight(1, 8, 2, 3, 3), 4),),
        "data cut in 2 along axis 1 and weights cut in 2 along axis 0 and results joined along axis 1", ("Conv", "Conv"),
    ),
    "14: fewer groups, in four": (
        (nchw(leaf(0, 16, 256, 28, 28), weight(1, 256, 32, 3, 3), 8),), (nchw(leaf(0, 2, 8, 4, 4), weight(1, 8, 2, 3, 3), 4),),
        "data cut in 4 along axis 1 and weights cut in 4 along axis 0 and results joined along axis 1", ("Conv",) * 4,
    ),
    "15: 1x1 as a product": (
        (nchw(leaf(0, 16, 256, 28, 28), weight(1, 128, 256, 1, 1)),), (nchw(leaf(0, 2, 3, 4, 4), weight(1, 5, 3, 1, 1)),),
        "as MatMul of other forms", ("MatMul",),
    ),
    "16: groups of one input, inside groups": (
        two_groups_of_one_input(14), two_groups_of_one_input(4),
        "weights joined inside 2 groups and results cut along axis 1 inside 2 groups", ("Conv",),
    ),
    "16: groups of one input, weights joined": (
        two_groups_of_one_input(14), two_groups_of_one_input(4), "weights joined along axis 0 and results cut along axis 1", ("Conv",)
    ),
    "14: fewer groups, apart": (
        (nchw(leaf(0, 16, 256, 28, 28), weight(1, 256, 32, 3, 3), 8),), (nchw(leaf(0, 2, 8, 4, 4), weight(1, 8, 1, 3, 3), 8),),
        "data cut in 8 along axis 1 and weights cut in 8 along axis 0 and results joined along axis 1", ("Conv",) * 8,
    ),
    "narrow groups as fewer": (grouped(64, 28, 32), grouped(8, 4, 4), "weights 4 of {} groups as one, zeros between", ("Conv",)),
    "narrow groups as none": (grouped(16, 28, 8), grouped(4, 4, 2), "weights {0} of {0} groups as one, zeros between", ("Conv",)),
    "a batched product apart": (
        products_of((3, 512, 768), (3, 768, 768)), products_of((3, 4, 5), (3, 5, 6)),
        "data cut in 3 along axis 0 and weights cut in 3 along axis 0 and results joined along axis 0", ("MatMul",) * 3,
    ),
    "a batch by one matrix": (
        products_of((3, 512, 768), (768, 768)), products_of((3, 4, 5), (5, 6)), "as MatMul of other forms", ("MatMul",)
    ),
}  # fmt: skip
"""The region as published (or on similar shapes), a small one, the moves to the program, and its products."""
CORRECTED = ("16: groups of one input, weights joined",)


def of_moves(region: Region, moves: str) -> Mutant:
    """Return the program that these moves lead to; ``{}`` stands for the groups of the region's convolution."""
    group = dict(region[0].attributes).get("group")
    return next(mutant for mutant in found(region) if " and ".join(mutant.moves) == moves.format(group))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_programs_are_found_in_seconds_and_proved(name: str) -> None:
    region, _, moves, products = PUBLISHED[name]
    started = time.process_time()
    mutant = of_moves(region, moves)
    assert time.process_time() - started < SECONDS
    assert sorted(node.op for node in walk(mutant.programs) if node.op in ("Conv", "MatMul")) == sorted(products)
    assert any(mutant.boxes) == (name in CORRECTED)
    for root, program, boxes in zip(region, mutant.programs, mutant.boxes, strict=True):
        for whole in stitches(root, program, boxes):
            assert equal_at_sizes(root, whole) == ""


@pytest.mark.parametrize("name", PUBLISHED)
def test_boxes_and_outputs_of_published_programs_are_right(name: str) -> None:
    _, region, moves, _ = PUBLISHED[name]
    mutant = of_moves(region, moves)
    for root, program, boxes in zip(region, mutant.programs, mutant.boxes, strict=True):
        assert (mask_of(boxes, root.type.sizes) == everywhere(root, program)).all()
    expected, leaves = outputs_of_onnxruntime(region)
    for programs in zip(*starmap(stitches, zip(region, mutant.programs, mutant.boxes, strict=True)), strict=False):
        for value, right in zip(evaluate(programs, leaves), expected, strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_corrected_programs_survive_a_thousand_tests_in_a_prime_field(name: str) -> None:
    _, region, moves, _ = PUBLISHED[name]
    corrected = [mutant for mutant in found(region) if mutant.cells]
    assert corrected or name not in CORRECTED
    chosen = (of_moves(region, moves), *corrected)
    for number, root in enumerate(region):
        programs = {whole: None for each in chosen for whole in stitches(root, each.programs[number], each.boxes[number])}
        assert not fails_a_test(root, programs, 1000)


def test_a_chain_is_folded_into_the_batch_and_corrected_where_both_windows_reach() -> None:
    x, w, v = leaf(0, 2, 3, 12, 5), weight(1, 4, 3, 3, 3), weight(2, 2, 4, 3, 3)
    chain = (nchw(nchw(x, w), v),)
    (mutant,) = [each for each in found(chain) if each.moves == ("axis 2 by 2 into 0",)]
    assert (mask_of(mutant.boxes[0], chain[0].type.sizes) == everywhere(chain[0], mutant.programs[0])).all()
    assert {r for _, _, r, _ in mutant.boxes[0]} <= {range(4, 8), range(4, 6), range(6, 8)}  # two rows on both sides of the cut
    for program in stitches(chain[0], mutant.programs[0], mutant.boxes[0]):
        assert equal_at_sizes(chain[0], program) == ""


def test_taps_that_lie_in_the_padding_nearly_everywhere_are_left_out_and_corrected() -> None:
    """A tap that reads padding almost everywhere is dropped, and the rows that do read data are corrected.

    Of 6 rows, only rows 4 and 5 read data at the first tap of a window with dilation 4, and only rows 0 and 1 at the last one.
    """
    node = conv(leaf(0, 1, 6, 5, 2), weight(1, 3, 2, 3, 1), (4, 0, 4, 0), 1, 4)
    mutants = {mutant.moves[0].split(" from ")[1]: mutant for mutant in found((node,)) if mutant.moves[0].startswith("sum over")}
    rows = {each: {r for _, r, _, _ in mutant.boxes[0]} for each, mutant in mutants.items()}
    assert rows == {"1 to 2": {range(4, 6)}, "0 to 1": {range(2)}}  # without both taps, the correction would not pay
    for mutant in mutants.values():
        assert (mask_of(mutant.boxes[0], node.type.sizes) == everywhere(node, mutant.programs[0])).all()
        assert all(equal_at_sizes(node, program) == "" for program in stitches(node, mutant.programs[0], mutant.boxes[0]))


@settings(max_examples=25, deadline=None)
@given(pairs())
def test_sums_of_fewer_terms_differ_where_those_left_out_count(pair: tuple[Node, Node]) -> None:
    node, _ = pair
    for program, _ in tightened(node):
        boxes = boxes_between(node, program)
        assert boxes is not None and (mask_of(boxes, node.type.sizes) == everywhere(node, program)).all()
        assert cells(boxes) < node.type.elements


BORDERS: dict[str, dict[str, Any]] = {
    "reflect": {"mode": "reflect", "value": 0.0}, "edge": {"mode": "edge", "value": 0.0}, "wrap": {"mode": "wrap", "value": 0.0},
    "ones": {"mode": "constant", "value": 1.0},
}  # fmt: skip


def bordered(border: str, layout: str, stride: int, group: int, op: str = "Conv") -> Node:
    """Return a window over data that has one nonzero row above, one nonzero column on both sides, and zeros below."""
    channels, space = 2, (20, 18)
    sizes = (2, channels, *space) if layout == "NCHW" else (2, *space, channels)
    before, after = ((0, 0, *each) if layout == "NCHW" else (0, *each, 0) for each in ((1, 1), (0, 1)))
    data = apply("Pad", leaf(0, *sizes), before=before, after=after, **BORDERS[border])
    if op == "Conv":
        return conv(data, weight(1, 2, channels // group, 3, 3), (0, 0, 1, 0), stride, 1, layout, group)
    values: dict[str, Any] = {"strides": (stride, stride), "pads": (0, 0, 0, 0), "dilations": (1, 1), "layout": layout}
    return apply(op, data, kernel_shape=(3, 2), count_include_pad=0, **values)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize(("op", "stride", "group"), [("Conv", 1, 1), ("Conv", 2, 2), ("AveragePool", 2, 1)])
def test_borders_of_other_elements_than_zeros_are_corrected(border: str, layout: str, op: str, stride: int, group: int) -> None:
    """Programs for nonzero borders are correct and pad only the few rows and columns that corrections read."""
    node = bordered(border, layout, stride, group, op)
    (mutant,) = zeros_around((node,), boxes_between)
    assert (mask_of(mutant.boxes[0], node.type.sizes) == everywhere(node, mutant.programs[0])).all()
    (expected,), leaves = outputs_of_onnxruntime((node,))
    programs = stitches(node, mutant.programs[0], mutant.boxes[0])
    turned = _channels_last(node, mutant.programs[0], mutant.boxes[0])
    assert programs and bool(turned) == (layout == "NCHW")  # also over data in channels-last layout
    for program in (*programs, *turned):
        moving = [each for each in walk((program,)) if each.op in ("Pad", "Concat", "Expression")]
        moved = [each for each in moving if all(operand.op != op for operand in each.inputs)]
        assert moved and all(each.type.elements < node.inputs[0].type.elements for each in moved)
        assert equal_at_sizes(node, program) == ""
        (value,) = evaluate((program,), leaves)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4)


@st.composite
def borders(draw: st.DrawFn) -> Node:
    """Draw a window over data with up to three nonzero rows and columns on every side, and zeros around them."""
    border, layout, op = (draw(st.sampled_from(each)) for each in (sorted(BORDERS), ("NHWC", "NCHW"), ("Conv", "AveragePool")))
    taps, stride, dilation = draw(st.tuples(*[st.integers(1, 4)] * 2)), draw(st.integers(1, 3)), draw(st.sampled_from((1, 1, 2)))
    space, group = draw(st.tuples(*[st.integers(8, 20)] * 2)), draw(st.sampled_from((1, 2)))
    around, pads = draw(st.tuples(*[st.integers(0, 3)] * 4)), draw(st.sampled_from(((0, 0, 0, 0), (1, 0, 0, 0), (0, 0, 1, 1))))
    sizes = (1, 2, *space) if layout == "NCHW" else (1, *space, 2)
    before, after = ((0, 0, *each) if layout == "NCHW" else (0, *each, 0) for each in (around[:2], around[2:]))
    try:
        data = apply("Pad", leaf(0, *sizes), before=before, after=after, **BORDERS[border])
        if op == "Conv":
            return conv(data, weight(1, 2, 2 // group, *taps), pads, stride, dilation, layout, group)
        values: dict[str, Any] = {"strides": (stride,) * 2, "pads": pads, "dilations": (dilation,) * 2, "layout": layout}
        return apply(op, data, kernel_shape=taps, count_include_pad=draw(st.integers(0, 1)), **values)
    except TypeMismatch:  # the window is longer than the data, or lies entirely in the padding
        assume(False)
        raise


@settings(max_examples=10, deadline=None)
@given(borders())
def test_any_border_is_corrected_and_proved_and_no_other_box_is(node: Node) -> None:
    """Programs for any border are proved, and a program with one edge moved by one cell is refused.

    The draws include one column before and two after the data, and programs with three or more corrections.
    """
    for mutant in zeros_around((node,), boxes_between):
        boxes = mutant.boxes[0]
        assert (mask_of(boxes, node.type.sizes) == everywhere(node, mutant.programs[0])).all()
        programs = stitches(node, mutant.programs[0], boxes)
        for program in programs:
            assert equal_at_sizes(node, program) == ""
        if boxes and programs:
            moved = (each for each in with_an_edge_moved(programs[0]) if everywhere(node, each).any())
            for wrong in islice(moved, 1):
                assert isinstance(_proof(*map(fragment_expression, (node, wrong))), Open)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_corrected_borders_of_large_maps_are_proposed(layout: str) -> None:
    """Programs are proposed in the region's layout and in channels-last layout, in which rows of a box are contiguous."""
    sizes = (1, 128, 128, 32) if layout == "NHWC" else (1, 32, 128, 128)
    around = (0, 1, 1, 0) if layout == "NHWC" else (0, 0, 1, 1)
    data = apply("Pad", leaf(0, *sizes), before=around, after=around, **BORDERS["reflect"])
    node = conv(data, weight(1, 32, 1, 3, 3), (0,) * 4, 2, 1, layout, 32)
    (mutant,) = zeros_around((node,), boxes_between)
    programs = [derivation.program for (derivation,) in stitched((node,), [mutant], OF_REGIONS)]
    layouts = {each.string("layout") for each in walk(programs) if each.op == "Conv"}
    assert layouts == {layout, "NHWC"}


def test_borders_of_zeros_are_left_to_other_rules() -> None:
    node = bordered("ones", "NHWC", 1, 1)
    pad = node.inputs[0]
    zeros = make("Pad", pad.inputs, tuple((k, 0.0 if k == "value" else v) for k, v in pad.attributes), pad.type)
    assert list(unpadded(node)) and not list(unpadded(make("Conv", (zeros, node.inputs[1]), node.attributes, node.type)))


def test_a_sum_of_convolutions_is_one_of_all_their_channels() -> None:
    region = (apply("Add", nchw(leaf(0, 1, 3, 5, 5), weight(1, 4, 3, 3, 3)), nchw(leaf(2, 1, 3, 5, 5), weight(3, 4, 3, 3, 3))),)
    exact = [each for each in found(region) if not any(each.boxes)]
    assert [node.op for node in walk(exact[0].programs) if node.op == "Conv"] == ["Conv"]
    assert equal_at_sizes(region[0], exact[0].programs[0]) == ""


def test_what_costs_more_than_the_region_is_not_proposed() -> None:
    (conv_node,) = region = (nchw(leaf(0, 2, 8, 9, 9), weight(1, 8, 8, 3, 3)),)
    twice = apply("Add", conv_node, nchw(conv_node.inputs[0], conv_node.inputs[1], pads=(2, 0, 0, 2)))
    assert list(stitched(region, [Mutant(region, ("nothing",), ((),))], OF_REGIONS))
    assert not list(stitched(region, [Mutant((twice,), ("a second one",), ((),))], OF_REGIONS))


def test_lists_of_operands_are_arranged_as_types_allow() -> None:
    a, b = leaf(0, 2, 3), leaf(1, 4, 3)
    padded = [f"padded, {name}" for name in ("joined along axis 0", "joined along axis 1", "stacked")]
    assert [name for name, _ in arranged((a, b))] == ["", "joined along axis 0", "on a diagonal", "padded", *padded]
    assert [name for name, _ in led_back((leaf(0, 6, 3),), [(2, 3), (4, 3)])] == ["cut along axis 0"]
    assert [name for name, _ in led_back((leaf(0, 8, 3),), [(2, 3), (4, 3)])] == ["cut along axis 0, padding left out"]
    assert not list(led_back((leaf(0, 8, 3),), [(2, 4), (4, 4)]))


def grown(roots: Region, rules: Sequence[RegionRule], deriver: Deriver | None = None) -> tuple[Saturation, Deriver]:
    nodes = tuple(walk(roots))
    generator = np.random.default_rng(0)
    tensors = {n.string("digest"): generator.random(n.type.sizes, np.float32) for n in nodes if n.op == "Constant"}
    graph = Graph("net", tuple(n for n in nodes if n.op == "Input"), tuple((f"y{k}", root) for k, root in enumerate(roots)), tensors)
    deriver = deriver or Deriver(tuple(rules))
    return saturate(graph, (), Limits(seconds=120.0, e_nodes=4_000, iterations=4), derivations=deriver.open()), deriver


def entry(name: str, *shape: int) -> Node:
    return make("Input", (), attributes(name=name), TensorType("float32", shape))


def constant(name: str, *shape: int) -> Node:
    return make("Constant", (), attributes(digest=name), TensorType("float32", shape))


def branch(number: int) -> Node:
    """Return two group convolutions of one input, concatenated; the block occurs several times."""
    x = entry(f"x{number}", 1, 4, 5, 5)
    return concat(1, *(nchw(x, constant(f"w{number}{k}", 2 * k + 4, 2, 3, 3), 2) for k in range(2)))


REGIONS = tuple(rule for rule in PARTIAL if isinstance(rule, RegionRule))


def test_regions_of_the_e_graph_get_proved_programs_and_equal_blocks_are_searched_once() -> None:
    saturation, deriver = grown((branch(0),), REGIONS)
    (statistics,) = [each for each in saturation.statistics if each.rule == REGIONS[0].name]
    assert statistics.unions > 0 and deriver.judged
    alone = {text for _, text in deriver.judged if text.count("Conv") == 2}
    twice, both = grown((branch(0), branch(1)), REGIONS)
    (again,) = [each for each in twice.statistics if each.rule == REGIONS[0].name]
    assert again.matches >= 2 * statistics.matches > 0
    assert alone <= {text for _, text in both.judged}


def test_a_border_is_corrected_before_anything_is_searched_though_other_regions_cost_more() -> None:
    """Borders are corrected before other regions are searched, even if these cost more.

    In an antialiased network, the blurs have mirrored borders and are the cheapest operators.
    """
    x = entry("x", 1, 8, 20, 20)
    mirrored = apply("Pad", x, before=(0, 0, 1, 1), after=(0, 0, 1, 1), **BORDERS["reflect"])
    blurred = conv(mirrored, constant("blur", 8, 1, 3, 3), (0,) * 4, 2, 1, "NCHW", 8)
    roots = (nchw(nchw(blurred, constant("w", 32, 8, 3, 3)), constant("v", 8, 32, 3, 3)),)
    graph = Graph("net", (x,), (("y", roots[0]),), {name: np.ones(sizes, np.float32) for name, sizes in SIZES.items()})
    deriver, asked = Deriver(PARTIAL), list[str]()

    def programs(rule: AnyRule, nodes: Sequence[Node], stop: Stop) -> Sequence[Judged]:
        asked.append(rule.name)
        return deriver.programs(rule, nodes, stop) if rule.name == OF_BORDERS else ()

    policy = SaturationPolicy(derived_regions=1)
    limits = Limits(seconds=120.0, e_nodes=4_000, iterations=4)
    saturation = saturate(graph, (), limits, derivations=Derivations(PARTIAL, programs), policy=policy)
    (statistics,) = [each for each in saturation.statistics if each.rule == OF_BORDERS]
    assert asked.index(OF_BORDERS) == 0 < len(asked) - 1 and statistics.unions > 0


SIZES = {"blur": (8, 1, 3, 3), "w": (32, 8, 3, 3), "v": (8, 32, 3, 3)}


def test_a_region_neither_reads_what_it_makes_nor_holds_more_than_it_may() -> None:
    """A region does not contain operators that are connected only through other operators.

    For conv, relu, conv with a sum around them, the convolutions and the sum are no region because Relu lies between them.
    """
    x = entry("x", 1, 4, 5, 5)
    first = nchw(x, constant("w", 4, 4, 3, 3))
    second = nchw(apply("Relu", first), constant("v", 4, 4, 3, 3))
    seen: list[Region] = []

    def note(roots: Region) -> tuple[()]:
        seen.append(roots)
        return ()

    rule = RegionRule("noting", ("Conv", "Add"), ("Conv",), note, most_operators=3)
    grown((apply("Add", first, second),), (rule,))
    sizes = [sum(node.op != "Placeholder" for node in walk(roots)) for roots in seen]
    assert sizes and max(sizes) == 2
    assert all(len({node.op for node in walk(roots)} & {"Conv", "Add"}) for roots in seen)


def test_a_region_that_a_rule_gets_wrong_is_refused() -> None:
    def wrong(roots: Region) -> list[tuple[Derivation, ...]]:
        return [tuple(Derivation("swapped", roots[-1 - k], ()) for k in range(len(roots)))]

    x = entry("x", 5, 4)
    members = tuple(apply("MatMul", x, constant(f"w{k}", 4, 3)) for k in range(2))
    rule = RegionRule("swapping", ("MatMul",), ("MatMul",), wrong)
    saturation, _ = grown(members, (rule,))
    assert saturation.statistics[-1].unions == 0
    assert all(refusal.reason.startswith("swapped: ") for refusal in saturation.statistics[-1].refusals)
    assert saturation.statistics[-1].refusals


def test_every_alternative_corrects_no_more_than_its_bound() -> None:
    region = two_groups_of_one_input(4)
    assert all(cells(boxes) <= 0.6 * root.type.elements for each in found(region) for root, boxes in zip(region, each.boxes, strict=True))


@pytest.mark.parametrize("rule", REGIONS, ids=lambda rule: str(rule.name))
def test_inspect_and_the_list_of_rules_know_regions(rule: RegionRule) -> None:
    assert derivation_rule(f"{rule.name}: exact, data joined along axis 1") is rule
    assert f"computes several {', '.join(rule.operators)} by others" in list_rules(())
    relu = apply("Relu", entry("x", 2, 2))
    told = explain_derivation(rule, rule.name, relu, Graph("net", (relu.inputs[0],), (("y", relu),), {}), Tolerance())
    assert not told["applies"] and told["reason"].startswith("the root must be Conv or ")
