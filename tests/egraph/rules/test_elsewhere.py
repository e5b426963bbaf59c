"""Rules of other systems are compared with ours: equal statements are found, and similar ones are not."""

from __future__ import annotations

from collections.abc import Iterable

from bench.corpora.counterparts import SYSTEMS, Published, published, same_rules
from egraph.rule import Attributes, Equation, Tensor, Weight, rule
from egraph.rule_operators import concat, relu, transpose


@rule
def product_transposed(x: Tensor, y: Tensor, p: Attributes) -> Equation:
    """(x * y)^p = x^p * y^p"""
    return transpose(x * y, p) == transpose(x, p) * transpose(y, p)


@rule
def difference_transposed(x: Tensor, y: Tensor, p: Attributes) -> Equation:
    """(x - y)^p = x^p - y^p"""
    return transpose(x - y, p) == transpose(x, p) - transpose(y, p)


@rule
def one_joined_with_itself(x: Tensor, c: Attributes) -> Equation:
    """[relu(x) relu(x)] = relu([x x])"""
    return concat(relu(x), relu(x), a=c) == relu(concat(x, x, a=c))


@rule
def constants_multiplied(x: Tensor, c: Weight, d: Weight) -> Equation:
    """(x * c) * d = x * (c * d)"""
    return (x * c) * d == x * (c * d)


@rule
def operands_multiplied(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """(x * y) * z = x * (y * z)"""
    return (x * y) * z == x * (y * z)


def names(found: Iterable[Published]) -> set[str]:
    return {one.name for one in found}


def test_equal_graphs_are_found_in_either_direction() -> None:
    assert "axiom operator-commutativity-2" in names(same_rules(product_transposed))
    assert not same_rules(difference_transposed)


def test_variables_correspond_one_to_one() -> None:
    """Variables of equal rules correspond one to one: [relu(x) relu(y)] = relu([x y]) is more general than its case x = y."""
    assert not same_rules(one_joined_with_itself)


def test_a_constant_of_theirs_is_a_constant_of_ours() -> None:
    assert "mul rule06" in names(same_rules(constants_multiplied))
    found = names(same_rules(operands_multiplied))
    assert "mul rule06" not in found and "axiom ewmul-is-associative" in found


def test_every_system_is_there_and_times_are_the_published_ones() -> None:
    assert {system for one in published() for system in one.systems} == set(SYSTEMS)
    times = {one.name: one.seconds for one in published() if one.seconds is not None}
    assert times and all(0 < seconds < 1 for seconds in times.values())
    assert all("TensorRight" in one.systems for one in published() if one.seconds is not None), "the others publish no time of one rule"
