"""False rules that outsiders would try: divisions that the left side lacks, Python code that misleads a proof, and rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from egraph.rewrite.law import Stated
from egraph.rule import Binding, Equation, Rounding, Rule, Steps, Tensor, Weight, merge_rule, operation, require, require_number, rule
from egraph.rule_operators import (
    absolute,
    concat,
    exp,
    log,
    maximum,
    pad,
    power,
    reduce_max,
    reduce_sum,
    relu,
    slice_,
    softmax,
    sqrt,
    tanh,
    transpose,
    where,
)  # fmt: skip
from egraph.rules.merges import split
from egraph.tensor import TensorType
from verify.application import objection
from verify.comparison import compare_sides
from verify.prove import Effort, prove

BY_CASES = Effort(tests=0, open_cases=2, applications=0)
"""Effort without tests or known sizes, so that the general proof must decide alone."""


def less(x: Tensor, y: Tensor) -> Tensor:
    return operation("Less", x, y)


def stated(name: str, law: Callable[..., Any], rounding: Rounding = "assumes finite") -> Rule:
    law.__name__, law.__doc__ = name, name
    code = law.__code__
    law.__annotations__ = dict.fromkeys(code.co_varnames[:code.co_argcount], Tensor)
    return rule(rounding=rounding)(law)


ASKING_FOR_MORE = (
    stated("divides outside of its branch", lambda x, y, z: where(less(z, x), y / x, y) == where(less(z, x), y, y * x) / x),
    stated("takes a logarithm outside of its branch",
           lambda x, y, z: where(less(z, x), log(x), y) == where(less(z, x), y - y, y - log(x)) + log(x)),
    stated("takes a logarithm in the other branch",
           lambda x, y, z: where(less(z, y), log(x), z) == where(less(z, y), log(x), z + log(x) - log(x))),
    stated("asks under one condition of two",
           lambda x, y, z, w: where(less(z, y), where(less(w, y), log(x), y), z)
           == where(less(z, y), where(less(w, y), log(x), y + log(x) - log(x)), z)),
    stated("asks of a chosen operand what is asked where it is chosen",
           lambda x, y, z, w: log(where(less(z, y), x, exp(w))) == log(where(less(z, y), x, exp(w))) + log(x) - log(x)),
    stated("takes two logarithms of a product's factors, in a maximum", lambda x, y: relu(log(x * y)) == relu(log(x) + log(y))),
    stated("divides by what another factor makes vanish", lambda x, y: sqrt(x * relu(y)) == sqrt(x * relu(y)) + sqrt(x) - sqrt(x)),
    stated("divides by both operands of a choice",
           lambda x, y, z: where(less(z, x), y / x, x / y) == where(less(z, x), y * y, x * x) / (x * y)),
    stated("raises to another power", lambda x, y, z: power(x, y) + z == power(x, y) + power(x, z) - power(x, z) + z),
    stated("takes the root of the opposite", lambda x: sqrt(-x) == sqrt(-x) + sqrt(x) - sqrt(x)),
    stated("takes a root of a factor", lambda x, y: maximum(sqrt(y * y * x), y) == maximum(sqrt(x) * absolute(y), y)),
    stated("divides by itself", lambda x, y: x + x / y == x * x / x + x / y),
)  # fmt: skip


@pytest.mark.parametrize("each", ASKING_FOR_MORE, ids=lambda each: str(each.name).replace(" ", "_"))
def test_the_right_side_asks_no_more_than_the_left_in_general_and_at_known_sizes(each: Rule) -> None:
    proof = prove(each, BY_CASES)
    assert proof.verdict in ("unknown", "refuted"), proof
    vectors = Binding({variable.name: TensorType("float32", (3,)) for variable in each.variables}, {})
    assert objection(each, (vectors,))


@rule(rounding="assumes finite")
def divides_by_the_transposed(x: Tensor) -> Steps:
    """x^T + x / x = x^T x^T / x^T + x / x"""
    yield transpose(x, perm=(1, 0)) + x / x
    require(x.rank == 2 and x.shape[0] == x.shape[1], "square")
    turned = transpose(x, perm=(1, 0))
    yield turned * turned / turned + x / x


@rule(rounding="assumes finite")
def divides_by_what_is_padded(x: Tensor) -> Steps:
    """pad(x / x x) = pad(x) pad(x) / pad(x)"""
    yield pad(x / x * x, before=(1,), after=(0,), mode="constant", value=0.0)
    require(x.rank == 1, "vectors")
    wide = pad(x, before=(1,), after=(0,), mode="constant", value=0.0)
    yield wide * wide / wide


@rule(rounding="assumes finite")
def sums_over_every_row(x: Tensor, d: Tensor) -> Steps:
    """The sums of rows of x / d, with all of x / d added and taken away again"""
    yield reduce_sum(x / d, axes=(1,))
    require(x.rank == 2 and x.shape == d.shape, "matrices of one shape")
    whole = reduce_sum(x / d, axes=(0, 1))
    yield reduce_sum(x / d, axes=(1,)) + whole - whole


@rule(rounding="assumes finite")
def divides_beyond_a_slice(x: Tensor) -> Steps:
    """sum(x[:2] / x[:2]), with sum(x / x) added and taken away again"""
    first = slice_(x, starts=(0,), ends=(2,), steps=(1,))
    yield reduce_sum(first / first, axes=(0,))
    require(x.rank == 1 and x.shape[0] > 2, "longer vectors")
    whole = reduce_sum(x / x, axes=(0,))
    yield reduce_sum(first / first, axes=(0,)) + whole - whole


@rule(rounding="assumes finite")
def takes_a_logarithm_in_the_other_part(x: Tensor, y: Tensor) -> Steps:
    """log([exp(y) x]) = [y + log(x) - log(x) log(x)]: on the left, the first part has a value for every x"""
    yield log(concat(exp(y), x, axis=0))
    require(x.shape == (1,) and y.shape == (1,), "single numbers")
    yield concat(y + log(x) - log(x), log(x), axis=0)


@rule(rounding="assumes finite")
def divides_by_all_beside_the_largest(x: Tensor, y: Tensor) -> Steps:
    """y / max(max(x), max(-x)), with sum(x / x) added and taken away again: only the largest of x is a divisor on the left"""
    largest = maximum(reduce_max(x, axes=(0,)), reduce_max(-x, axes=(0,)))
    yield y / largest
    require(x.rank == 1 and y.rank == 1 and y.shape == (1,), "vectors")
    whole = reduce_sum(x / x, axes=(0,))
    yield y / largest + whole - whole


READ: dict[Rule, dict[str, tuple[int, ...]]] = {
    divides_by_the_transposed: {"x": (3, 3)}, divides_by_what_is_padded: {"x": (3,)}, sums_over_every_row: {"x": (3, 3), "d": (3, 3)},
    divides_beyond_a_slice: {"x": (3,)}, takes_a_logarithm_in_the_other_part: {"x": (1,), "y": (1,)},
    divides_by_all_beside_the_largest: {"x": (3,), "y": (1,)},
}  # fmt: skip


@pytest.mark.parametrize("each", READ, ids=lambda each: str(each.name))
def test_where_a_divisor_is_read_counts(each: Rule) -> None:
    assert prove(each, BY_CASES).verdict in ("unknown", "refuted")
    at_sizes = Binding({name: TensorType("float32", shape) for name, shape in READ[each].items()}, {})
    assert "and the left side does not" in objection(each, (at_sizes,))


@rule(rounding="assumes finite")
def logarithm_before_concat(x: Tensor, y: Tensor) -> Steps:
    """[log(x) log(y)] = log([x y])"""
    yield concat(log(x), log(y), axis=0)
    require(x.rank == 1 and y.rank == 1, "vectors")
    yield log(concat(x, y, axis=0))


@rule(rounding="assumes finite")
def sum_of_quotients_of_parts(x: Tensor, y: Tensor) -> Steps:
    """sum([x y] / [x y]) asks for each part what sum(x / x) + sum(y / y) asks"""
    yield reduce_sum(x / x, axes=(0,)) + reduce_sum(y / y, axes=(0,))
    require(x.rank == 1 and y.rank == 1, "vectors")
    both = concat(x, y, axis=0)
    yield reduce_sum(both / both, axes=(0,))


TRUE = (
    logarithm_before_concat, sum_of_quotients_of_parts,
    stated("choices exchanged", lambda x, y, z: where(operation("Not", less(z, y)), x, log(x)) == where(less(z, y), log(x), x)),
    stated("divides in both branches", lambda x, y, z: where(less(z, y), y / x, z / x) == where(less(z, y), y, z) / x),
    stated("divides in both branches of a branch",
           lambda x, y, z, w: where(less(z, y), where(less(w, y), log(x), log(x) + y), log(x) + z)
           == where(less(z, y), log(x) + where(less(w, y), y - y, y), log(x) + z)),
    stated("raises to the same power", lambda x, y, z: power(x, y) * z == z * power(x, y)),
    stated("raises what has a logarithm", lambda x, y: log(x) + y == y + log(x) + power(x, y) - power(x, y)),
    stated("takes the root of what has a logarithm, and divides by it",
           lambda x, y: log(x) + y == y + log(x) + sqrt(x) - sqrt(x) + y / x - y / x),
)  # fmt: skip


@pytest.mark.parametrize("each", TRUE, ids=lambda each: str(each.name).replace(" ", "_"))
def test_what_is_asked_under_all_conditions_together_is_given(each: Rule) -> None:
    proof = prove(each, BY_CASES)
    assert proof.verdict == "proved", proof


# Python code that misleads a proof


def turned(wrong: Callable[[Tensor], bool]) -> Rule:
    """x - y = -(y - x), false where ``wrong`` says so."""

    @rule(rounding="reassociates")
    def subtraction(x: Tensor, y: Tensor) -> Steps:
        """x - y = -(y - x)"""
        yield x - y
        require(x.rank == 1 and y.rank == 1, "vectors")
        yield y - x if wrong(x) else -(y - x)

    return subtraction


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.shape[0] in {1009, 1013}, lambda x: {1009: True, x.shape[0]: False}[1009], lambda x: x.shape[0] > 900,
        lambda x: x.shape[0] == 1009.0, lambda x: 1009.0 in x.shape, lambda x: x.shape == (1009.0,), lambda x: x.shape[0] / 2 > 500,
        lambda x: len([0] * x.shape[0]) > 900, lambda x: x.shape[0] * 0.5 > 500.0, lambda x: len(range(x.shape[0])) > 900,
    ],
    ids=["a set of sizes", "a table of sizes", "a comparison", "a float", "a float in a shape", "a shape of floats", "a quotient",
         "a list as long", "a product with a float", "a range as long"],
)  # fmt: skip
def test_a_rule_that_is_wrong_at_sizes_that_no_test_draws_is_not_proved(wrong: Callable[[Tensor], bool]) -> None:
    assert prove(turned(wrong), Effort(tests=8, applications=2)).verdict not in ("proved", "proved for these sizes")


def test_a_rule_that_compares_a_constant_with_a_size_is_not_proved() -> None:
    @rule
    def squared_constant(x: Tensor, c: Weight) -> Steps:
        """x c = c x, false where the constant is the size and 900"""
        yield x * c
        require(x.rank == 1 and c.number is not None, "a number")
        yield x * c * c if c.number == x.shape[0] + 900 else c * x

    assert prove(squared_constant, Effort(tests=8, applications=2)).verdict != "proved"


def test_what_a_law_does_with_plain_sizes_alone_is_seen_where_it_is_applied() -> None:
    def sides(x: Tensor, y: Tensor) -> Steps:
        yield x - y
        yield y - x if type(x.shape[0]) is int and x.shape[0] > 900 else -(y - x)

    each = replace(turned(lambda x: x.rank > 9), law=Stated(sides))
    both = [each.apply(Binding({name: TensorType("float32", (size,)) for name in "xy"}, {})) for size in (7, 1009)]
    assert [bool(compare_sides([left], [right], {}).reason) for left, right in both] == [False, True]


def test_a_variable_of_a_loop_around_is_what_it_was_when_the_rule_was_made() -> None:
    made = []
    for name in ("Sub", "Add"):

        def commutes(x: Tensor, y: Tensor) -> Equation:
            """x o y = y o x"""
            return operation(name, x, y) == operation(name, y, x)  # noqa: B023  # the mistake itself, in Python

        made.append(rule(commutes))
    assert [prove(each, Effort(tests=4)).verdict for each in made] == ["refuted", "proved"]


def test_a_rule_that_raises_what_no_rule_should_is_refuted() -> None:
    proof = prove(turned(lambda x: x.shape[0] > 7 and x.shape[9] > 1), Effort(tests=8))
    assert (proof.verdict, proof.failure) == ("refuted", "raises") and "IndexError" in proof.reason


def test_merges_are_tested_with_more_members_than_their_proof_has() -> None:
    @merge_rule(member=lambda_member, shared=("x",), rounding="reassociates")
    def merge_five(x: Tensor, w: list[Weight]) -> list[Tensor]:
        """tanh(x W_i) = tanh(x [W_1 .. W_n])_i, the last two exchanged where there are five"""
        require(all(each.rank == 2 and each.shape == w[0].shape for each in w), "matrices of one shape")
        wide = tanh(x @ concat(*w, axis=1))
        parts = split(wide, wide.rank - 1, [each.shape[1] for each in w])
        return [*parts[:-2], parts[-1], parts[-2]] if len(parts) > 4 else parts

    proof = prove(merge_five, Effort(tests=200))
    assert proof.verdict == "refuted" or "members" in proof.scope, proof


def lambda_member(x: Tensor, w: Weight) -> Tensor:
    return tanh(x @ w)


@rule(rounding="assumes finite")
def slope_below_three_halves(x: Tensor, c: Weight) -> Steps:
    """where(x < 0, c x, x) = max(x, c x), false for c between 1 and 3/2"""
    yield where(less(x, x - x), c * x, x)
    require(c.number is not None and c.number < 1.5, "a slope")
    yield maximum(x, c * x)


@rule
def about_two(x: Tensor, c: Weight) -> Steps:
    """x c = x + x, false but at 2"""
    yield x * c
    require(c.number is not None and 2 <= c.number < 3, "about two")
    yield x + x


@pytest.mark.parametrize("each", [slope_below_three_halves, about_two], ids=lambda each: str(each.name))
def test_numbers_that_a_guard_lets_pass_are_drawn_on_either_side_of_each_other(each: Rule) -> None:
    """The sides agree at the least number that the guard admits, so testing that number alone would refute nothing."""
    assert prove(each, Effort(tests=16)).verdict == "refuted"


# Rounding


@rule
def softmax_of_shifted_rows(x: Tensor, s: Tensor) -> Steps:
    """softmax(x + s) = softmax(x)"""
    yield softmax(x + s, axis=1)
    require(x.rank == 2 and s.shape == (x.shape[0], 1), "one number a row")
    yield softmax(x, axis=1)


@rule
def floor_of_there_and_back(x: Tensor, c: Weight) -> Steps:
    """floor(x + c - c) = floor(x)"""
    yield operation("Floor", x + c - c)
    require_number(c, 0.25)
    yield operation("Floor", x)


@pytest.mark.parametrize(
    "each",
    [
        softmax_of_shifted_rows, floor_of_there_and_back,
        stated("exponentials multiply", lambda x, y: exp(x) * exp(y) == exp(x + y), "reassociates"),
        stated("a logarithm undone", lambda x: log(exp(x)) == x, "reassociates"),
        stated("a quotient undone", lambda x, y: x * y / y == x, "reassociates"),
    ],
    ids=lambda each: str(each.name).replace(" ", "_"),
)  # fmt: skip
def test_no_rule_states_a_stricter_class_than_it_keeps(each: Rule) -> None:
    proof = prove(each, Effort(tests=32, applications=0))
    assert proof.verdict in ("refuted", "unknown"), proof


@pytest.mark.parametrize(
    "each",
    [
        stated("a minimum is a maximum", lambda x, y: operation("Min", x, y) == -maximum(-x, -y), "exact"),
        stated("relu passes a maximum", lambda x, y: relu(maximum(x, y)) == maximum(relu(x), relu(y)), "exact"),
        stated("exponentials multiply, finite", lambda x, y: exp(x) * exp(y) == exp(x + y), "assumes finite"),
    ],
    ids=lambda each: str(each.name).replace(" ", "_"),
)  # fmt: skip
def test_the_class_that_a_rule_keeps_is_accepted(each: Rule) -> None:
    assert prove(each, Effort(tests=16)).verdict == "proved"
