"""Random operands at a position do not depend on how many positions are requested together."""

from __future__ import annotations

import numpy as np
import pytest

from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.expr.scope import Scope
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import fragment_expression
from verify import application
from verify.sampling import MOST_TABLED, TABLE_SHARE, Positions, difference_at

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


def test_every_element_of_an_operand_is_another_number() -> None:
    square = placeholder(0, TensorType("float32", (6, 6)))
    left, right = fragment_expression(square, {}), fragment_expression(apply("Transpose", square, perm=(1, 0)), {})
    for row, column in np.ndindex(6, 6):
        assert (difference_at(left, right, [(row, column)]) == "") == (row == column)


@pytest.mark.parametrize("is_compared", [False, True])
def test_positions_are_compared_before_a_proof_unless_the_caller_compares(is_compared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Positions] = []

    def asking(left: Scope, right: Scope, positions: Positions) -> str:
        asked.append(positions)
        return ""

    monkeypatch.setattr(application, "difference", asking)
    twice = apply("Transpose", apply("Transpose", X, perm=(1, 0)), perm=(1, 0))
    assert application.equal_at_sizes(twice, X, is_compared=is_compared) == ""
    assert len(asked) == (not is_compared)
