"""Where two programs differ, as boxes: exactly the positions at which brute force sees a difference."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from egraph.partial.moves import Regrouping
from egraph.tensor import Node
from egraph.tensor.boxes import Mask, boxes_of, cells, describe_boxes, mask_of, progressions
from egraph.tensor.ops.reference import fragment_expression
from tests.fragments import conv, leaf, matmul, reshape, transpose
from tests.mutants import everywhere, pairs
from verify.application import equal_at_sizes
from verify.disagreement import Disagreement, differing, disagreement, error_bound, points_of
from verify.named_arrays import PRIME

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


def test_two_images_under_each_other_differ_where_they_touch() -> None:
    result = between(*under_each_other(16, 28))
    assert result.describe(NAMES) == "equal except where n = 0 mod 2, h = 27 or n = 1 mod 2, h = 0"
    assert result.witness == (0, 27, 0, 0)


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


def assert_boxes_are_those_of_brute_force(pair: tuple[Node, Node]) -> None:
    """A pair that is not decided within the prover's units of work is no case; hypothesis fails where most are none."""
    result = disagreement(fragment_expression(pair[0]), fragment_expression(pair[1]))
    assume(result is not None)
    assert result is not None
    assert (mask_of(result.boxes, pair[0].type.sizes) == everywhere(*pair)).all()


@settings(max_examples=40, deadline=None)
@given(pairs())
def test_boxes_are_those_of_brute_force(pair: tuple[Node, Node]) -> None:
    assert_boxes_are_those_of_brute_force(pair)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(pairs())
def test_boxes_are_those_of_brute_force_on_many_draws(pair: tuple[Node, Node]) -> None:
    assert_boxes_are_those_of_brute_force(pair)


def test_few_points_of_a_box_show_that_it_differs() -> None:
    """m + 1 points of a box tell for all of it; the bound on their error is that of polynomials over a prime field."""
    pair = under_each_other(4, 4)
    sides = fragment_expression(pair[0]), fragment_expression(pair[1])
    for box in between(*pair).boxes:
        points = points_of(box)
        assert len(points) == 1 + sum(len(r) > 1 for r in box)
        seen = differing(*sides, points, tests=2)
        assert seen is not None and seen.all()
    assert error_bound(*sides, tests=2) == (2 / PRIME) ** 2


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


RULES_THAT_HOLD_IN_PART = '''
from egraph.rule import Attributes, Steps, Tensor, require, rule
from egraph.rule_operators import pad

@rule
def edges_are_zeros(x: Tensor, p: Attributes) -> Steps:
    """pad(x, edge) = pad(x, 0)"""
    yield pad(x, p)
    require(p.mode == "edge", "the edge must be repeated")
    yield pad(x, p.but(mode="constant"))

RULES = (edges_are_zeros,)
'''


def test_a_users_rule_that_holds_in_part_is_told_with_its_boxes(tmp_path: Path) -> None:
    rules = tmp_path / "rules.py"
    rules.write_text(RULES_THAT_HOLD_IN_PART, encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "verify", str(rules), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert re.match(r"equal except where axis \d", json.loads(done.stdout)["rules"][0]["where"])
