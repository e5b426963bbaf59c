"""Integers wrap around: their magnitude is bounded, and no rule is proved that ignores wrapping."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from egraph.rule import Equation, Rounding, Rule, Steps, Tensor, Weight, require, require_number, rule
from egraph.rule_operators import cast, dequantize
from egraph.tensor import TensorType, placeholder
from egraph.tensor.expr.index import index
from egraph.tensor.expr.scope import Read
from egraph.tensor.expr.scope import Tensor as Operand
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate, fragment_expression
from verify.application import equal_at_sizes
from verify.comparison import compare_sides
from verify.isomorphism import ALIKE
from verify.normal.whole_numbers import LARGEST_INT32, NO_OVERFLOW, magnitude
from verify.prove import Effort, prove


def number_of_sum(rounding: Rounding) -> Rule:
    @rule(rounding=rounding)
    def law(x: Tensor, c: Weight) -> Equation:
        """number(x + c) = number(x) + number(c)"""
        return cast(x + c, to="float32") == cast(x, to="float32") + cast(c, to="float32")

    return law


@rule(rounding="reassociates")
def number_of_difference(x: Tensor, y: Tensor) -> Equation:
    """number(x - y) = number(x) - number(y)"""
    return cast(x - y, to="float32") == cast(x, to="float32") - cast(y, to="float32")


@rule(rounding="reassociates")
def product_of_any_length(x: Tensor, s: Tensor, z: Weight, w: Weight, t: Weight, y: Weight) -> Steps:
    """dequantize(x, s, 0) dequantize(w, t, 0) = number(x w) * (s * t)"""
    yield dequantize(x, s, z) @ dequantize(w, t, y)
    require_number(z, 0.0)
    require_number(y, 0.0)
    require(s.rank == 0 and z.rank == 0 and t.rank == 0 and y.rank == 0 and w.rank == 2 and x.rank == 2, "matrices, and one number each")
    yield cast(x @ w, to="float32") * (s * t)


WRONG = (number_of_sum("reassociates"), number_of_sum("exact"), number_of_difference, product_of_any_length)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.name} {wrong.rounding}")
def test_sums_that_may_wrap_around_are_told_to_assume_finite_values(wrong: Rule) -> None:
    proof = prove(wrong, Effort(tests=8))
    assert not proof.is_proved and NO_OVERFLOW in proof.reason and 'rounding="assumes finite"' in proof.reason


def test_under_the_class_that_says_so_the_equation_is_proved() -> None:
    assert prove(number_of_sum("assumes finite"), Effort(tests=8)).verdict == "proved"


def test_the_two_sides_differ_where_a_sum_wraps_around() -> None:
    """The sides differ for int32 numbers at the end of their range, which a proof without wrapping would hide."""
    x, c = (placeholder(k, TensorType("int32", (2,))) for k in (0, 1))
    left = apply("Cast", apply("Add", x, c), to="float32")
    right = apply("Add", apply("Cast", x, to="float32"), apply("Cast", c, to="float32"))
    assert equal_at_sizes(left, right, "reassociates") and not equal_at_sizes(left, right, "assumes finite")


@pytest.mark.parametrize("length", [5, 33_025, 33_026])
def test_products_of_bytes_are_bounded_by_their_number(length: int) -> None:
    x, w = placeholder(0, TensorType("uint8", (2, length))), placeholder(1, TensorType("uint8", (length, 3)), constant=True)
    scope = fragment_expression(apply("MatMul", x, w))
    bound = magnitude(Read(scope, tuple(index(0) for _ in scope.traversal)))
    assert bound == 255 * 255 * length and (bound <= LARGEST_INT32) == (length <= 33_025)


def test_no_expression_of_bytes_exceeds_its_bound() -> None:
    random = Random(3)
    extremes = {"uint8": (0, 255), "int8": (-128, 127)}
    for seed in range(40):
        kinds = [random.choice(("uint8", "int8")) for _ in range(3)]
        leaves = [placeholder(k, TensorType(kind, (6,))) for k, kind in enumerate(kinds)]
        node = apply("Cast", leaves[0], to="int32")
        for leaf in leaves[1:]:
            node = apply(random.choice(("Add", "Sub", "Mul")), node, apply("Cast", leaf, to="int32"))
        bound = magnitude(fragment_expression(node).body)
        generator = np.random.default_rng(seed)
        feeds = {leaf: generator.choice(extremes[leaf.type.dtype], 6).astype(leaf.type.dtype) for leaf in leaves}
        assert np.abs(np.asarray(evaluate((node,), feeds)[0], np.float64)).max() <= bound < np.inf


def test_the_gate_compares_bytes_over_their_whole_range() -> None:
    x = placeholder(0, TensorType("uint8", (64,)))
    number = apply("Cast", x, to="float32")
    small = apply("Clip", number, min=-1000.0, max=100.0)
    assert compare_sides((number,), (small,), {}).reason and not compare_sides((number,), (small,), {0: 7.0}).reason


def test_of_types_that_are_one_as_much_is_known() -> None:
    """A proof for one type serves the other, so it may use only bounds that both share."""
    known = {magnitude(Read(Operand("x", (), dtype), ())) for dtype in ALIKE}
    assert known == {255.0} and set(ALIKE) == {"int8", "uint8"}
