"""Mutants and their corrections are found, stitched and proved; a box that is moved by one cell is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, islice
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from egraph.derive.derivation import AnyRule, DerivationRule
from egraph.engine.deriving import Derivations, Judged, Stop
from egraph.engine.saturate import Limits, saturate
from egraph.optimize.admission import PARTIAL
from egraph.optimize.derivations import Deriver
from egraph.partial.moves import Move, is_symmetric, moved, start, with_few_channels
from egraph.partial.mutants import Mutant, mutants
from egraph.partial.stitching import _multiplied, correction, stitches
from egraph.tensor import Graph, Node, TensorType, attributes, make, placeholders, walk
from egraph.tensor.boxes import Box, Mask, cells, mask_of
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate, fragment_expression
from egraph.tensor.ops.window import Layout
from tests.support.fragments import conv, leaf, reshape
from tests.support.mutants import everywhere, fails_a_test, pairs, with_an_edge_moved
from tests.support.onnxruntime_outputs import outputs_of_onnxruntime
from verify.application import _proof, equal_at_sizes
from verify.disagreement import LITTLE_WORK, _values, agreement, differing, disagreement
from verify.outcome import Open

Case = tuple[Node, Node, tuple[Box, ...]]


@cache
def mutants_of(node: Node) -> tuple[Mutant, ...]:
    """Return the mutants that the search finds with the prover of the tests."""

    def agrees(original: Node) -> Callable[[Node], float]:
        share = agreement(fragment_expression(original))
        return lambda program: share(fragment_expression(program))

    def where(original: Node, program: Node) -> tuple[Box, ...] | None:
        boxes = disagreement(fragment_expression(original), fragment_expression(program), LITTLE_WORK)
        return None if boxes is None else boxes.boxes

    return mutants(node, agrees, where)


def nchw(data: tuple[int, ...], weight: tuple[int, ...], pads: tuple[int, ...], stride: int = 1, dilation: int = 1) -> Node:
    return conv(leaf(0, *data), leaf(1, *weight, constant=True), pads, stride, dilation, "NCHW")


def under_each_other(images: int = 4, size: int = 4) -> Case:
    x, w = leaf(0, images, size, 3, 2), leaf(1, 2, 2, 3, 3, constant=True)
    original = conv(x, w, (1, 1, 1, 1))
    tall = reshape(conv(reshape(x, images // 2, 2 * size, 3, 2), w, (1, 1, 1, 1)), images, size, 3, 2)
    return original, tall, boxes_between(original, tall)


def in_blocks() -> Case:
    x, w = leaf(0, 1, 12, 3, 2), leaf(1, 2, 2, 2, 1, constant=True)
    original = conv(x, w, (0, 0, 1, 0))
    folded = reshape(conv(reshape(x, 3, 4, 3, 2), w, (0, 0, 1, 0)), 1, 12, 3, 2)
    return original, folded, boxes_between(original, folded)


def of_two_operators() -> Case:
    x, w, v = leaf(0, 1, 12, 2, 2), leaf(1, 3, 2, 3, 1, constant=True), leaf(2, 2, 3, 3, 1, constant=True)

    def of(image: Node) -> Node:
        return conv(conv(image, w, (1, 0, 1, 0)), v, (1, 0, 1, 0))

    folded = reshape(of(reshape(x, 2, 6, 2, 2)), 1, 12, 2, 2)
    return of(x), folded, boxes_between(of(x), folded)


def boxes_between(left: Node, right: Node) -> tuple[Box, ...]:
    boxes = disagreement(fragment_expression(left), fragment_expression(right))
    assert boxes is not None
    return boxes.boxes


def corrected(pair: tuple[Node, Node], most_cells: float = inf) -> tuple[Box, ...]:
    """Return the boxes in which a drawn pair differs.

    Pairs that are equal or differ everywhere are discarded, and so are pairs whose boxes take long to prove.
    """
    found = disagreement(fragment_expression(pair[0]), fragment_expression(pair[1]), LITTLE_WORK)
    boxes = () if found is None else found.boxes
    assume(boxes and cells(boxes) < pair[0].type.elements <= most_cells and len(boxes) < 5)
    return boxes


CASES = {"under each other": under_each_other, "in blocks": in_blocks, "two operators": of_two_operators}


@pytest.mark.parametrize("case", CASES)
def test_a_stitched_program_is_proved(case: str) -> None:
    original, mutant, boxes = CASES[case]()
    assert boxes and equal_at_sizes(original, mutant)
    programs = stitches(original, mutant, boxes)
    assert programs
    for program in programs:
        assert equal_at_sizes(original, program) == ""


def test_a_run_along_one_axis_is_also_joined_without_a_choice() -> None:
    assert [program.op for program in stitches(*of_two_operators())] == ["Expression", "Concat"]


def test_corrections_by_the_same_weights_are_one_of_a_larger_batch() -> None:
    """Corrections with the same weights become one convolution over a larger batch.

    The image is cut into the batch, and rows on both sides of a cut are corrected. Away from the border, all taps count for both.
    """
    x, w = leaf(0, 1, 12, 6, 2), leaf(1, 2, 2, 3, 1, constant=True)
    original = conv(x, w, (1, 0, 1, 0))
    folded = reshape(conv(reshape(x, 3, 4, 6, 2), w, (1, 0, 1, 0)), 1, 12, 6, 2)
    boxes = boxes_between(original, folded)
    programs = stitches(original, folded, boxes)
    counts = [sum(node.op == "Conv" for node in walk((program,))) for program in programs]
    assert len(boxes) == 2 and counts[0] == 3 and counts[-1] == 2
    for program in programs:
        assert equal_at_sizes(original, program) == ""


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("mirrored", [(1, 0), (0, 1), (1, 1)])
def test_corrections_as_products_are_proved_in_both_layouts_and_in_groups(mirrored: tuple[int, int], group: int, layout: str) -> None:
    """Corrections of mirrored rows, columns or both are proved as matrix products.

    The mutant pads with zeros instead, so that these rows and columns differ.
    """
    rows, columns = mirrored
    x = leaf(0, *((2, 8, 6, 7) if layout == "NCHW" else (2, 6, 7, 8)))
    w = leaf(1, 8, 8 // group, 3, 3, constant=True)
    around = (0, 0, rows, columns) if layout == "NCHW" else (0, rows, columns, 0)
    bordered = apply("Pad", x, before=around, after=around, mode="reflect", value=0.0)
    original = conv(bordered, w, (1 - rows, 1 - columns) * 2, layout=layout, group=group)
    other = conv(x, w, (1, 1, 1, 1), layout=layout, group=group)
    found = disagreement(fragment_expression(original), fragment_expression(other))
    assert found is not None
    programs = [program for program in stitches(original, other, found.boxes) if any(node.op == "MatMul" for node in walk((program,)))]
    assert programs
    for program in programs:
        assert sum(node.op == "MatMul" for node in walk((program,))) == len(found.boxes)
        assert equal_at_sizes(original, program) == ""


@st.composite
def boxes_of_convolutions(draw: st.DrawFn) -> tuple[Node, Box]:
    """Draw a convolution over one or two axes, and a box of its result that holds all channels."""
    layout, group = draw(st.sampled_from(["NCHW", "NHWC"])), draw(st.sampled_from([1, 2, 3]))
    axes = range(draw(st.integers(1, 2)))
    taps, steps, apart = ([draw(st.integers(1, most)) for _ in axes] for most in (3, 2, 2))
    pads = [draw(st.integers(0, 2)) for _ in (*axes, *axes)]
    space = [(count - 1) * dilation + 1 + draw(st.integers(0, 4)) for count, dilation in zip(taps, apart, strict=True)]
    each, filters, images = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    x = leaf(0, *((images, group * each, *space) if layout == "NCHW" else (images, *space, group * each)))
    w = leaf(1, group * filters, each, *taps, constant=True)
    root = apply("Conv", x, w, group=group, layout=layout, strides=tuple(steps), pads=tuple(pads), dilations=tuple(apart))
    channel = Layout(layout, len(axes)).channel

    def positions(axis: int, size: int) -> range:
        if axis == channel:
            return range(size)
        first, step = draw(st.integers(0, size - 1)), draw(st.integers(1, 3))
        count = draw(st.integers(1, len(range(first, size, step))))
        return range(first, first + (count - 1) * step + 1, step if count > 1 else 1)

    return root, tuple(positions(axis, size) for axis, size in enumerate(root.type.sizes))


@settings(max_examples=150, deadline=None)
@given(boxes_of_convolutions())
def test_products_of_patches_are_the_operator_in_a_box(drawn: tuple[Node, Box]) -> None:
    root, box = drawn
    part = correction(root, box)
    multiplied = None if part is None else _multiplied([(box, part)], root.type.sizes)
    assume(multiplied is not None)
    assert part is not None and multiplied is not None
    assert equal_at_sizes(part, multiplied[0][1]) == ""
    generator = np.random.default_rng(0)
    values = {node: generator.standard_normal(node.type.sizes) for node in placeholders(root)}
    whole, product = evaluate((root, multiplied[0][1]), values)
    np.testing.assert_allclose(product, whole[tuple(slice(r.start, r.stop, r.step) for r in box)], rtol=1e-9, atol=1e-9)


def test_a_correction_reads_its_halo_alone() -> None:
    """A correction computes only its rows, and reads only what they need.

    Rows 2 and 6 of 12 are computed by the operator itself, with the distance between the rows as its stride.
    """
    original, _, boxes = in_blocks()
    part = correction(original, boxes[0])
    assert part is not None and part.type.sizes == (1, 2, 3, 2)
    assert any(node.op == "Conv" for node in walk((part,)))
    program = correction(of_two_operators()[0], of_two_operators()[2][0])
    assert program is not None
    (inner,) = [n for n in walk((program,)) if n.op == "Conv" and n.inputs[0].op in ("Slice", "Placeholder", "Pad")]
    assert inner.type.sizes[1] < 12  # the first operator also computes only what the second one needs there


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(pairs())
def test_whatever_differs_in_part_is_corrected(pair: tuple[Node, Node]) -> None:
    boxes = corrected(pair)
    for program in stitches(*pair, boxes):
        assert equal_at_sizes(pair[0], program) == ""
        assert not everywhere(pair[0], program, 1).any()


def moved_by_one(case: Case) -> Iterator[tuple[Box, ...]]:
    """Yield boxes of which one is moved by one cell, or shortened at either end, so that a position that differs is not corrected."""
    original, _, boxes = case
    differing_cells = mask_of(boxes, original.type.sizes)
    for number, box in enumerate(boxes):
        for axis, r in enumerate(box):
            size = original.type.sizes[axis]
            changed = [range(r.start + by, r.stop + by, r.step) for by in (-1, 1)] + [r[1:], r[:-1]]
            for new in changed:
                if not len(new) or new[0] < 0 or new[-1] >= size:
                    continue
                made = (*boxes[:number], (*box[:axis], new, *box[axis + 1 :]), *boxes[number + 1 :])
                if (differing_cells & ~mask_of(made, original.type.sizes)).any():
                    yield made


def wrong_stitches(case: Case) -> Iterator[Node]:
    """Yield stitched programs with one box, or one edge of a box, moved by one cell, if tests in a prime field show that they are wrong."""
    original, mutant, boxes = case
    moved = (program for changed in moved_by_one(case) for program in stitches(original, mutant, changed))
    choices = (program for program in stitches(original, mutant, boxes) if program.op == "Expression")
    seen: set[Node] = set()
    for program in chain(moved, (wrong for choice in choices for wrong in with_an_edge_moved(choice))):
        if program not in seen and everywhere(original, program, 1).any():
            seen.add(program)
            yield program


@pytest.mark.parametrize("case", CASES)
def test_a_box_moved_by_one_cell_is_refused(case: str) -> None:
    wrong = list(wrong_stitches(CASES[case]()))
    assert len(wrong) >= WRONG[case]
    for program in wrong[::2]:
        assert equal_at_sizes(CASES[case]()[0], program), program


WRONG = {"under each other": 40, "in blocks": 10, "two operators": 16}
"""Least number of wrong programs for each case. Every other one is judged here; the slow test judges hundreds."""
MOVED_BOXES = 500


@pytest.mark.slow
def test_five_hundred_boxes_moved_by_one_cell_are_refused() -> None:
    count = 0

    @settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much], phases=(Phase.generate,))
    @given(pairs())
    def check(pair: tuple[Node, Node]) -> None:
        nonlocal count
        if count >= MOVED_BOXES:
            return
        boxes = corrected(pair, most_cells=400)
        for program in islice(wrong_stitches((*pair, boxes)), 25):
            count += 1
            assert isinstance(_proof(*map(fragment_expression, (pair[0], program))), Open), program  # also if the operands are not random

    check()
    assert count >= MOVED_BOXES
    print(f"{count} wrong stitches, all refused")


TESTS = 1000


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stitched_programs_survive_a_thousand_tests_in_a_prime_field(case: str) -> None:
    original, mutant, boxes = CASES[case]()
    assert not fails_a_test(original, stitches(original, mutant, boxes), TESTS)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(pairs())
def test_stitched_programs_of_draws_survive_a_thousand_tests_in_a_prime_field(pair: tuple[Node, Node]) -> None:
    boxes = corrected(pair)
    assert not fails_a_test(pair[0], stitches(*pair, boxes), TESTS)


@pytest.mark.parametrize("tests", [1, 700])
def test_a_program_that_is_wrong_somewhere_fails_a_test_in_a_prime_field(tests: int) -> None:
    """A wrong program is found among right ones, and also if not all tests are evaluated together."""
    original, mutant, boxes = under_each_other()
    right, wrong = stitches(original, mutant, boxes), next(wrong_stitches((original, mutant, boxes)))
    assert not fails_a_test(original, (original, *right), tests)
    assert fails_a_test(original, (*right, mutant), tests) and fails_a_test(original, (wrong,), tests)


def test_tests_in_a_prime_field_have_operands_of_their_own() -> None:
    """Tests evaluated together give the same values as each test alone, and no two tests have the same operands."""
    original, mutant, _ = under_each_other()
    sides, positions = (fragment_expression(original), fragment_expression(mutant)), list(np.ndindex(*original.type.sizes))
    alone, together = (_values(sides[1], positions, tests) for tests in (range(3, 4), range(2, 5)))
    assert alone is not None and together is not None
    first, second, third = together.reshape(3, -1)
    assert (second == alone).all() and (first != second).any() and (second != third).any()
    once, often = (differing(*sides, positions, tests) for tests in (1, 300))
    assert once is not None and often is not None and (once <= often).all() and once.any() and not often.all()


PET: dict[str, tuple[Node, str, set[int]]] = {
    "1: images along h": (nchw((4, 2, 8, 8), (3, 2, 3, 3), (1, 1, 1, 1)), "axis 0 by 2 into 2", {0, 2}),
    "2: images along w": (nchw((2, 1, 7, 7), (1, 1, 3, 3), (1, 1, 1, 1)), "axis 0 by 2 into 3", {0, 3}),
    "3: channels along h": (nchw((1, 2, 4, 4), (1, 2, 3, 3), (1, 1, 1, 1)), "channels by 2 into axis 2", set()),
    "4: channels along w": (nchw((1, 2, 4, 4), (1, 2, 3, 3), (1, 1, 1, 1)), "channels by 2 into axis 3", set()),
    "5: interleaved for a dilation": (nchw((1, 1, 10, 10), (1, 1, 3, 3), (2, 2, 2, 2), 1, 2), "axis 3 by 2 into 3", {3}),
    "a stride's phases as channels": (nchw((1, 2, 9, 8), (3, 2, 3, 3), (1, 1, 1, 1), 2), "axis 2 by 2 into channels", set()),
    "12: h and w exchanged": (nchw((2, 3, 6, 6), (2, 3, 1, 3), (0, 1, 0, 1)), "h and w exchanged", set()),
}
"""Operator, the move to PET's program, and the axes along which it is corrected (none if it is equal everywhere)."""


def axes_of(boxes: tuple[Box, ...], node: Node) -> set[int]:
    """Return the axes along which some box does not cover the whole output."""
    return {axis for box in boxes for axis, r in enumerate(box) if r != range(node.type.sizes[axis])}


@pytest.mark.slow
@pytest.mark.parametrize("name", PET)
def test_corrected_published_rules_survive_a_thousand_tests_in_a_prime_field(name: str) -> None:
    node, move, _ = PET[name]
    of_move = [mutant for mutant in mutants_of(node) if mutant.moves == (move,)]
    assert not fails_a_test(node, [program for each in of_move for program in stitches(node, each.programs[0], each.boxes[0])], TESTS)


@pytest.mark.parametrize("name", PET)
def test_mutants_of_published_rules_are_found(name: str) -> None:
    node, move, axes = PET[name]
    of_move = [mutant for mutant in mutants_of(node) if mutant.moves == (move,)]
    assert axes in [axes_of(mutant.boxes[0], node) for mutant in of_move]
    for mutant in of_move:
        assert (mask_of(mutant.boxes[0], node.type.sizes) == everywhere(node, mutant.programs[0])).all()
        for program in stitches(node, mutant.programs[0], mutant.boxes[0]):
            assert equal_at_sizes(node, program) == ""


def masks_of_moves(node: Node) -> dict[tuple[Move, ...], Mask]:
    """Return by brute force where programs differ from an operator: those of single moves, and of all axes at once."""
    layout = Layout(node.string("layout"), 2)
    programs = {state.moves: state.program(node) for state in moved(start(node), layout)}
    return {moves: everywhere(node, program) for moves, program in programs.items() if program is not None}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("stride", "dilation"), [(1, 1), (1, 2), (2, 1)])
def test_moves_of_the_other_axis_make_a_mirrored_program(layout: str, stride: int, dilation: int) -> None:
    node = conv(leaf(0, *square(2, 2, 6, layout)), leaf(1, 2, 2, 3, 3, constant=True), (dilation,) * 4, stride, dilation, layout)
    masks, places, compared = masks_of_moves(node), Layout(layout, 2), 0
    assert is_symmetric(node)
    for moves, mask in masks.items():
        other = masks.get(tuple(move.mirrored(places) for move in moves))
        if other is not None:
            compared += 1
            assert (mask == other.swapaxes(places.first, places.first + 1)).all(), moves
    assert compared > 20


def square(images: int, channels: int, size: int, layout: str) -> tuple[int, ...]:
    return (images, channels, size, size) if layout == "NCHW" else (images, size, size, channels)


def test_what_tells_the_axes_apart_is_no_mirror() -> None:
    assert not is_symmetric(nchw((1, 1, 6, 5), (1, 1, 3, 3), (1, 1, 1, 1)))
    assert not is_symmetric(nchw((1, 1, 6, 6), (1, 1, 3, 2), (1, 1, 1, 1)))
    assert not is_symmetric(nchw((1, 1, 6, 6), (1, 1, 3, 3), (1, 0, 1, 1)))
    assert is_symmetric(nchw((1, 1, 6, 6), (1, 1, 3, 3), (1, 1, 2, 2)))


@pytest.mark.parametrize(("channels", "filters", "group"), [(8, 5, 1), (9, 3, 1), (20, 4, 2)])
def test_programs_of_few_channels_differ_where_those_of_many_do(channels: int, filters: int, group: int) -> None:
    x, w = leaf(0, 2, channels, 5, 4), leaf(1, filters, channels // group, 3, 2, constant=True)
    node = conv(x, w, (1, 1, 1, 0), 1, 1, "NCHW", group)
    thin = with_few_channels(node)
    assert thin.inputs[0].type.sizes[1] < channels and thin.inputs[1].type.elements < w.type.elements
    many, few = masks_of_moves(node), masks_of_moves(thin)
    assert list(many) == list(few)
    for moves, mask in many.items():
        assert (mask.any(axis=1) == few[moves].any(axis=1)).all(), moves


def test_images_beside_each_other_need_no_correction_with_zeros_between() -> None:
    exact = [m for m in mutants_of(PET["2: images along w"][0]) if m.moves == ("axis 0 by 2 into 3",) and not m.cells]
    assert exact and any(node.op == "Pad" for node in walk(exact[0].programs))


def test_parity_folded_into_the_batch_is_exact_for_a_dilation() -> None:
    """Folding parity into the batch needs no correction because its window does not reach across images, although PET corrects it."""
    assert any(not m.cells and m.moves == ("axis 2 by 2 into 0",) for m in mutants_of(PET["5: interleaved for a dilation"][0]))


def test_an_image_is_cut_along_both_axes_into_the_batch() -> None:
    """Parts of both axes of an image are put side by side in the batch, and corrected at their edges."""
    node = nchw((1, 2, 20, 20), (2, 2, 3, 3), (1, 1, 1, 1))
    both = [m for m in mutants_of(node) if len(m.moves) == 2 and all(map(is_fold, m.moves))]
    assert both
    for program in stitches(node, both[0].programs[0], both[0].boxes[0]):
        assert equal_at_sizes(node, program) == ""


def is_fold(move: str) -> bool:
    return move.startswith("axis") and move.endswith("into 0")


def test_the_rule_gives_proved_programs_to_the_e_graph() -> None:
    """Programs pass through the gate like all derivations: each is refused or proved, and proved ones join the operator's class."""
    x = make("Input", (), attributes(name="x"), TensorType("float32", (2, 1, 7, 7)))
    w = make("Input", (), attributes(name="w"), TensorType("float32", (1, 1, 3, 3)))
    root = apply("Conv", x, w, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), group=1, layout="NCHW")
    deriver = Deriver(PARTIAL)
    graph = Graph("one", (x, w), (("y", root),), {})
    saturation = saturate(graph, (), Limits(seconds=120.0, e_nodes=4_000, iterations=4), derivations=deriver.open())
    ((_, judged),) = deriver.judged.items()
    (statistics,) = [each for each in saturation.statistics if each.rule == PARTIAL[0].name]
    assert statistics.unions == sum(not each.reason for each in judged) > 0
    assert all(each.name.startswith("partial equivalence") for each in judged)


def test_what_takes_seconds_an_operator_comes_after_what_takes_little() -> None:
    """Quick rules run on all operators before slow rules do, so that no operator lacks their programs if time runs out."""
    x, w = (make("Input", (), attributes(name=name), TensorType("float32", (4, 4))) for name in "xw")
    first = apply("MatMul", x, w)
    graph = Graph("two", (x, w), (("y", apply("Relu", apply("MatMul", apply("Relu", first), w))),), {})
    rules = tuple(DerivationRule(name, ("MatMul", "Relu"), lambda node: (), rounds=rounds) for name, rounds in (("slow", 0), ("quick", 2)))
    asked: list[str] = []

    def programs(rule: AnyRule, nodes: Sequence[Node], stop: Stop) -> Sequence[Judged]:
        asked.append(rule.name)
        return ()

    saturate(graph, (), Limits(seconds=60.0, e_nodes=400, iterations=4), derivations=Derivations(rules, programs))
    assert asked == ["quick", "quick", "slow", "slow"]  # equal operators share one request


@pytest.mark.parametrize("name", PET)
def test_outputs_of_published_rules_are_those_of_onnxruntime(name: str) -> None:
    """Corrected programs agree with onnxruntime everywhere, borders included, and uncorrected ones differ exactly in the boxes."""
    node, move, axes = PET[name]
    (expected,), leaves = outputs_of_onnxruntime((node,))
    of_move = [mutant for mutant in mutants_of(node) if mutant.moves == (move,)]
    assert of_move
    for mutant in of_move:
        for value in evaluate(stitches(node, mutant.programs[0], mutant.boxes[0]), leaves):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)
        (uncorrected,) = evaluate(mutant.programs, leaves)
        wrong = ~np.isclose(uncorrected, expected, rtol=1e-4, atol=1e-5)
        assert (wrong == mask_of(mutant.boxes[0], node.type.sizes)).all()
    assert any(mutant.cells for mutant in of_move) == bool(axes)
