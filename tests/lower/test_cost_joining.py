"""Concatenations are free if the planner writes the parts in place, and only then."""

from __future__ import annotations

from egraph.tensor import VIEW, Candidate
from egraph.tensor.ops import apply
from lower.cost.model import CostModel, is_joining, joined_for_free
from lower.roofline import DeviceSpeed
from runtime.profile import Database
from tests.support.fragments import leaf
from tests.support.implementations import GENERATED


def _join(operands: tuple[int, ...], axis: int = 1, *, repeat: bool = False) -> Candidate:
    leaves = [leaf(0 if repeat else k, 1, 4, 8) for k in range(len(operands))]
    return Candidate(apply("Concat", *leaves, axis=axis), operands, (), GENERATED)


PART = Candidate(apply("Relu", leaf(0, 1, 4, 8)), (9,), (), GENERATED)
VIEWED = Candidate(apply("Reshape", leaf(0, 4, 8), shape=(1, 4, 8)), (9,), (), VIEW)


def test_what_joins_is_along_the_outermost_axis_and_nothing_else() -> None:
    assert is_joining(_join((1, 2)))
    assert not is_joining(_join((1, 2), axis=2))
    assert not is_joining(_join((1, 1)))
    assert not is_joining(_join((1, 2), repeat=True))
    assert not is_joining(Candidate(apply("Relu", _join((1, 2)).fragment), (1, 2), (), GENERATED))


def test_parts_made_by_kernels_for_one_concatenation_are_joined_for_free() -> None:
    join = _join((1, 2))
    laid = {1: (PART,), 2: (PART,), 3: (join,)}
    assert joined_for_free(laid) == {(3, join)}
    model = CostModel(Database.in_memory(), "here", DeviceSpeed())
    priced = model.price(laid)
    assert priced[3][0].cost_us == 0.0
    assert priced[1][0].cost_us > 0.0


def test_inputs_views_and_shared_parts_are_copied() -> None:
    join = _join((1, 2))
    assert not joined_for_free({1: (PART,), 3: (join,)})  # 2 is an input
    assert not joined_for_free({1: (PART,), 2: (VIEWED,), 3: (join,)})
    other = _join((2, 4))
    assert not joined_for_free({1: (PART,), 2: (PART,), 4: (PART,), 3: (join,), 5: (other,)})  # 2 cannot be stored in both results


def test_nested_concatenations_are_free_as_long_as_they_are_read_as_a_whole() -> None:
    inner, outer, flat = _join((1, 2)), _join((3, 4)), _join((1, 2, 4))
    found = joined_for_free({1: (PART,), 2: (PART,), 4: (PART,), 3: (inner,), 5: (outer, flat)})
    assert found == {(3, inner), (5, outer)}
