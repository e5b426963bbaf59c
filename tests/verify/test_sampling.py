"""Random operands at some positions: what they are does not depend on how many positions are asked for together."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import fragment_expression
from verify.sampling import MOST_TABLED, TABLE_SHARE, difference_at

X, W = placeholder(0, TensorType("float32", (5, 7))), placeholder(1, TensorType("float32", (7, 9)))


@pytest.mark.parametrize("node", [apply("MatMul", X, W), apply("Exp", X), apply("Slice", W, starts=(1, 2), ends=(7, 8), steps=(2, 3))])
def test_operands_are_the_same_whether_drawn_as_a_whole_or_element_by_element(node: Node) -> None:
    left, right = fragment_expression(node, {}), fragment_expression(apply("Add", node, node), {})
    size = max(leaf.type.elements for leaf in (X, W))
    for position in np.ndindex(*node.type.sizes):
        alone = difference_at(left, right, [position])
        assert "differ at" in alone
        assert alone == difference_at(left, right, [position] * size), "read as often, they are drawn as a whole"
    assert size <= min(MOST_TABLED, TABLE_SHARE * size)


def test_positions_may_be_rows_of_an_array() -> None:
    left, right = fragment_expression(apply("Neg", X), {}), fragment_expression(apply("Abs", X), {})
    positions = [(0, 0), (4, 6), (2, 3)]
    assert difference_at(left, right, np.array(positions)) == difference_at(left, right, positions) != ""
    assert difference_at(left, right, np.empty((0, 2), np.int64)) == ""
