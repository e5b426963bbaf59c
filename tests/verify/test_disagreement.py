"""The boxes in which two programs differ are exactly the positions at which brute force finds a difference."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from egraph.partial.moves import Regrouping
from egraph.rewrite.file import load_rules
from egraph.rule import Binding, Rule
from egraph.tensor import Node, TensorType, attributes, format_fragment
from egraph.tensor.boxes import Mask, boxes_of, cells, describe_boxes, mask_of, progressions
from egraph.tensor.expr.index import Symbol
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import fragment_expression
from tests.support.few_points import FewPoints, few_points
from tests.support.fragments import conv, cut, leaf, matmul, reshape, transpose
from tests.support.fresh import in_a_fresh_process
from tests.support.mutants import everywhere, pairs
from tests.support.partial_rules import rule_file
from verify.application import equal_at_sizes
from verify.cases import cases
from verify.disagreement import LITTLE_WORK, Disagreement, disagreement, error_bound
from verify.named_arrays import PRIME
from verify.open_cases import Values
from verify.parametric import parametric, proved_outside
from verify.suggest import suggestion

NAMES = "nhwc"


def between(left: Node, right: Node) -> Disagreement:
    result = disagreement(fragment_expression(left), fragment_expression(right))
    assert result is not None
    return result


@given(arrays(np.bool_, st.lists(st.integers(1, 6), min_size=0, max_size=4).map(tuple)))
def test_boxes_hold_exactly_what_a_mask_marks(mask: Mask) -> None:
    boxes = boxes_of(mask)
    assert cells(boxes) == mask.sum()  # disjoint
    assert (mask_of(boxes, mask.shape) == mask).all()


@given(st.sets(st.integers(0, 40)))
def test_progressions_hold_exactly_the_positions(positions: set[int]) -> None:
    result = progressions(sorted(positions))
    assert sorted(p for r in result for p in r) == sorted(positions)


def test_interleaved_positions_are_one_box() -> None:
    mask = np.zeros((2, 24), np.bool_)
    mask[:, 7::8] = True
    assert boxes_of(mask) == ((range(2), range(7, 24, 8)),)
    assert describe_boxes(boxes_of(mask), mask.shape, "nh") == "h = 7 mod 8"


def under_each_other(images: int, size: int) -> tuple[Node, Node]:
    x, w = leaf(0, images, size, 5, 2), leaf(1, 3, 2, 3, 3, constant=True)
    tall = conv(reshape(x, images // 2, 2 * size, 5, 2), w, (1, 1, 1, 1))
    return conv(x, w, (1, 1, 1, 1)), reshape(tall, images, size, 5, 3)


def test_evaluating_conditions_and_sums_counts_as_work() -> None:
    """A budget of a few units suffices for a small tensor, but not for a large one with the same conditions."""
    few = 400
    for images, units, is_decided in ((4, few, True), (1000, few, False), (1000, LITTLE_WORK, True)):
        left, right = map(fragment_expression, under_each_other(images, images))
        assert (disagreement(left, right, units) is not None) == is_decided


def test_two_images_under_each_other_differ_where_they_touch() -> None:
    result = between(*under_each_other(16, 28))
    assert result.describe(NAMES) == "equal except where n = 0 mod 2, h = 27 or n = 1 mod 2, h = 0"
    assert result.witness == (0, 27, 0, 0)


def test_halves_of_an_image_beside_each_other_are_decided_with_little_work() -> None:
    """Rows of both halves overlap partly, in terms of both signs; splitting them must end."""
    x, w = leaf(0, 1, 2, 56, 56), leaf(1, 2, 2, 3, 3, constant=True)
    halves = Regrouping(2, 3, 2, takes_major=True, puts_major=True)
    beside = halves.of(x)
    assert beside is not None
    mutant = halves.inverse.of(conv(beside, w, (1, 1, 1, 1), 1, 1, "NCHW"))
    assert mutant is not None
    found = disagreement(fragment_expression(conv(x, w, (1, 1, 1, 1), 1, 1, "NCHW")), fragment_expression(mutant), LITTLE_WORK // 5)
    assert found is not None
    assert found.describe("nchw") == "equal except where h in 0..26, w = 55 or h in 27..28 or h in 29..55, w = 0"


def test_an_image_in_blocks_of_rows_differs_at_their_ends() -> None:
    x, w = leaf(0, 1, 24, 5, 2), leaf(1, 3, 2, 2, 1, constant=True)
    folded = reshape(conv(reshape(x, 3, 8, 5, 2), w, (0, 0, 1, 0)), 1, 24, 5, 3)
    assert between(conv(x, w, (0, 0, 1, 0)), folded).describe(NAMES) == "equal except where h in {7, 15}"


def test_what_is_equal_has_no_boxes() -> None:
    a, b, c = leaf(0, 3, 4), leaf(1, 4, 5), leaf(2, 5, 2)
    result = between(matmul(matmul(a, b), c), matmul(a, matmul(b, c)))
    assert not result.boxes and result.witness is None and result.describe("mn") == "equal everywhere"


def test_what_has_nothing_in_common_differs_everywhere() -> None:
    a, b = leaf(0, 3, 3), leaf(1, 3, 3)
    result = between(matmul(a, b), matmul(b, a))
    assert result.is_total and result.cells == 9


def test_a_transposed_matrix_agrees_on_its_diagonal() -> None:
    a = leaf(0, 4, 4)
    assert (mask_of(between(a, transpose(a, 1, 0)).boxes, (4, 4)) == ~np.eye(4, dtype=bool)).all()


def has_boxes_of_brute_force(pair: tuple[Node, Node]) -> bool:
    """Assert that a pair's boxes are those of brute force; return whether a mutant's budget suffices to decide the pair."""
    result = disagreement(fragment_expression(pair[0]), fragment_expression(pair[1]), LITTLE_WORK)
    if result is not None:
        assert (mask_of(result.boxes, pair[0].type.sizes) == everywhere(*pair)).all()
    return result is not None


@settings(max_examples=40, deadline=None)
@given(pairs())
def test_boxes_are_those_of_brute_force(pair: tuple[Node, Node]) -> None:
    assume(has_boxes_of_brute_force(pair))  # hypothesis fails if most pairs stay undecided


MANY_DRAWS, UNDECIDED = 2000, 5
"""Number of drawn pairs, and how many per thousand may stay undecided."""


@pytest.mark.slow
def test_boxes_are_those_of_brute_force_on_many_draws() -> None:
    drawn, undecided = 0, list[str]()

    @settings(max_examples=MANY_DRAWS, deadline=None, phases=(Phase.generate,))
    @given(pairs())
    def check(pair: tuple[Node, Node]) -> None:
        nonlocal drawn
        drawn += 1
        if not has_boxes_of_brute_force(pair):
            undecided.append(" and ".join(map(format_fragment, pair)))

    check()
    print(f"{drawn - len(undecided)} of {drawn} drawn pairs decided, all with the boxes of brute force", *undecided, sep="\n")
    assert drawn >= MANY_DRAWS and len(undecided) * 1000 <= UNDECIDED * drawn


def points_between(left: Node, right: Node) -> FewPoints | None:
    return few_points(fragment_expression(left), fragment_expression(right))


def assert_few_points_tell(pair: tuple[Node, Node]) -> None:
    """Assert that a box contains a differing position exactly if the programs differ at one of its m + 1 points."""
    result = points_between(*pair)
    assert result is not None
    sizes, mask = pair[0].type.sizes, everywhere(*pair)
    assert mask_of(result.boxes, sizes).all() and cells(result.boxes) == mask.size
    for box in result.boxes:
        cells_of_box = mask[tuple(slice(r.start, r.stop, r.step) for r in box)]
        assert cells_of_box.any() == (box in result.differing)


def test_few_points_of_a_box_tell_for_all_of_it() -> None:
    """The boxes are five kinds of rows, including those at which the two images touch, by three kinds of columns."""
    pair = under_each_other(4, 4)
    assert_few_points_tell(pair)
    result = points_between(*pair)
    assert result is not None and 0 < len(result.differing) < len(result.boxes)
    bound = error_bound(fragment_expression(pair[0]), fragment_expression(pair[1]), tests=2)
    assert result.missed == result.points * bound and bound == (2 / PRIME) ** 2
    text = "15 boxes, 53 points, 2 tests: 6 boxes differ; that one was missed has a probability of at most 1.9e-10"
    assert result.describe() == text


def test_boxes_of_few_points_end_at_the_boundaries_of_reshapes() -> None:
    x = leaf(0, 4, 6)
    result = points_between(reshape(x, 3, 8), reshape(cut(x, (0, 0), (4, 6)), 3, 8))
    assert result is not None and len(result.boxes) > 3 and not result.differing  # rows of six in rows of eight
    assert points_between(apply("Exp", x), x) is None  # not multilinear


@settings(max_examples=15, deadline=None)
@given(pairs())
def test_few_points_agree_with_brute_force(pair: tuple[Node, Node]) -> None:
    assert_few_points_tell(pair)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(pairs())
def test_few_points_agree_with_brute_force_on_many_draws(pair: tuple[Node, Node]) -> None:
    assert_few_points_tell(pair)


def test_regrouping_and_back_is_nothing() -> None:
    x = leaf(0, 4, 6, 5, 2)
    way = Regrouping(0, 1, 2, True, False)
    moved = way.of(x)
    assert moved is not None and moved.type.sizes == (2, 12, 5, 2)
    back = way.inverse.of(moved)
    assert back is not None and not between(x, back).boxes


def test_a_refusal_says_where_the_sides_differ() -> None:
    refused = equal_at_sizes(*under_each_other(4, 4))
    assert refused.endswith("; equal except where n in {0, 2}, h = 3 or n in {1, 3}, h = 0")


@pytest.fixture(scope="module")
def in_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in_part") / "rules.py"
    path.write_text(rule_file(), encoding="utf-8")
    return path


def rule_of(path: Path, name: str) -> Rule:
    (rule,) = [each for each in load_rules(path) if each.name == name]
    assert isinstance(rule, Rule)
    return rule


def test_boxes_of_a_users_rule_are_linear_in_its_sizes(in_part: Path) -> None:
    in_a_fresh_process(check_linear_boxes, in_part)


def check_linear_boxes(path: str) -> None:
    in_part = Path(path)
    rows, images = islice(parametric(rule_of(in_part, "edges_are_zeros")), 2)
    assert rows.describe() == "equal except where axis 0 < p.before[0] or axis 0 >= p.before[0] + x.shape[0]"
    assert len(images.boxes) == 4 and rows.exact == rows.drawn and not rows.given
    pairs = next(parametric(rule_of(in_part, "under_each_other")))
    assert "n = 0 mod 2, h >= x.shape[2] - a.pads[2] or n = 1 mod 2, h < a.pads[0]" in pairs.describe()


def test_boxes_for_all_sizes_are_those_of_brute_force_at_any(in_part: Path) -> None:
    """Boxes are right at sizes that were not drawn, including single rows, for which boxes touch or are empty."""
    in_a_fresh_process(check_boxes_at_other_sizes, in_part)


def check_boxes_at_other_sizes(path: str) -> None:
    rule = rule_of(Path(path), "edges_are_zeros")
    rows = next(parametric(rule))
    for size, before, after in ((23, 4, 13), (1, 1, 1), (1, 0, 5), (2, 3, 0), (19, 0, 0)):
        values: Values = {Symbol("x0"): size, Symbol("p_before0", 0): before, Symbol("p_after0", 0): after}
        bundle = attributes(mode="edge", value=0.0, before=(before,), after=(after,))
        left, right = rule.apply(Binding({"x": TensorType("float32", (size,))}, {"p": bundle}))
        mask = everywhere(left, right)
        assert (mask_of(rows.at(values), mask.shape) == mask).all() and cells(rows.at(values)) == mask.sum()


@pytest.mark.parametrize("name", ["edges_are_zeros", "under_each_other"])
def test_boxes_for_all_sizes_that_are_a_cell_too_small_are_not_proved(in_part: Path, name: str) -> None:
    in_a_fresh_process(check_smaller_boxes, in_part, name)


def check_smaller_boxes(path: str, name: str) -> None:
    rule = rule_of(Path(path), name)
    case, located = next(cases(rule)), next(parametric(rule))
    case = replace(case, assumptions=case.assumptions.assume(*located.given))
    assert proved_outside(case, located.boxes)
    smaller = 0
    for number, box in enumerate(located.boxes):
        for axis, run in enumerate(box):
            for less in () if run is None else (replace(run, first=run.first + run.step), replace(run, last=run.last - run.step)):
                changed = (*box[:axis], less, *box[axis + 1 :])
                assert not proved_outside(case, (*located.boxes[:number], changed, *located.boxes[number + 1 :]))
                smaller += 1
    assert smaller >= 4


def test_a_guard_is_suggested_that_leaves_no_box(in_part: Path) -> None:
    in_a_fresh_process(check_suggestion, in_part)


def check_suggestion(path: str) -> None:
    in_part = Path(path)
    guard = "all(n == 0 for n in p.before) and all(n == 0 for n in p.after)"
    assert guard in suggestion(rule_of(in_part, "edges_are_zeros"))


@pytest.mark.usefixtures("forked_python")
def test_a_users_rule_that_holds_in_part_is_told_with_its_boxes(in_part: Path) -> None:
    command = [sys.executable, "-m", "verify", str(in_part), "--rule", "edges_are_zeros", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)["rules"]
    assert row["where"].startswith("equal except where axis 0 < p.before[0] or")
    assert row["boxes"][0]["boxes"][0] == {"axis 0": {"first": "0", "last": "p.before[0] - 1", "step": "1"}}
    said = subprocess.run(command[:-1], capture_output=True, text=True, check=False).stdout
    assert "equal except where axis 0 < p.before[0] or" in said and "@rule(corrected=True) uses it" in said
