"""Rounding classes mean what docs/proofs.md says: on zeros of both signs, infinities, NaN, subnormal and huge operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from egraph.errors import EinsatError
from egraph.rule import Attributes, Binding, Equation, Rounding, Rule, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import maximum, quantize, reciprocal, reduce_mean, reduce_sum, relu, saturate, where
from egraph.rules import RULES, rule_named
from egraph.tensor.expr.compose import identity
from egraph.tensor.expr.scope import Tensor as Operand
from verify.prove import Effort, prove
from verify.random_testing import Instance, check_rule, draws, instantiate
from verify.rounding import keeps_rounding, objection
from verify.special_values import all_at_once, broken, broken_case, every, first_difference, instances


@pytest.mark.parametrize("each", RULES, ids=lambda each: str(each.name))
def test_a_shipped_rule_keeps_its_class(each: Rule) -> None:
    assert broken(each, seed=1, count=3, draws=2) is None


@rule(rounding="reassociates")
def nothing_added(x: Tensor, y: Tensor) -> Equation:
    """(x - x) + y = y, not for infinities"""
    return (x - x) + y == y


@rule(rounding="reassociates")
def equal_to_itself(x: Tensor) -> Equation:
    """x == x where x is not above itself, not for NaN"""
    return operation("Equal", x, x) == operation("Not", operation("Less", x, x))


@rule(rounding="reassociates")
def times_zero(x: Tensor, y: Tensor, z: Weight) -> Steps:
    """x 0 + y = y, not for infinities"""
    yield x * z + y
    require_number(z, 0.0)
    yield y


@rule(rounding="reassociates")
def relu_of_scaled(x: Tensor, c: Weight) -> Steps:
    """relu(x c) = relu(x) c, not for c = 0 and x = -inf"""
    yield relu(x * c)
    require(c.number is not None and c.number >= 0, "c must not be negative")
    yield relu(x) * c


@rule
def product_of_nothing(x: Tensor, z: Weight) -> Steps:
    """x @ 0 = sum(x @ 0) (x @ 0), not for infinities"""
    whole = x @ z
    yield whole
    require_number(z, 0.0)
    require(z.rank == 2 and x.rank == 2, "matrices")
    yield reduce_sum(whole, axes=(0, 1)) * whole


@rule
def zero_below_one(x: Tensor, z: Weight) -> Steps:
    """1 / (x + 0) = 1 / x, not for x = -0.0"""
    yield reciprocal(x + z)
    require_number(z, 0.0)
    yield reciprocal(x)


@rule(rounding="assumes finite")
def divided_again(x: Tensor, c: Weight) -> Equation:
    """x c = x c c / c, not for c = 0"""
    return x * c == (x * c * c) / c


FALSE = (nothing_added, equal_to_itself, times_zero, relu_of_scaled, product_of_nothing, zero_below_one, divided_again)


@pytest.mark.parametrize("each", FALSE, ids=lambda each: str(each.name))
def test_a_class_that_a_rule_does_not_keep_is_seen_and_refused(each: Rule) -> None:
    assert broken(each) is not None
    assert prove(each, Effort(tests=8)).verdict in ("unknown", "refuted")


@rule
def added_in_another_order(x: Tensor, y: Tensor, z: Tensor) -> Steps:
    """(x + y) + z = z + (y + x), and in another order where there are more rows than any test draws"""
    yield (x + y) + z
    require(x.rank == y.rank == z.rank == 2, "matrices")
    yield x + (y + z) if x.shape[0] > 90 else z + (y + x)


def test_every_way_through_a_guard_is_held_to_the_class() -> None:
    assert broken(added_in_another_order) is None
    proof = prove(added_in_another_order, Effort(tests=8))
    assert proof.failure == "rounding" and "x of shape (91" in proof.reason


@rule(rounding="reassociates")
def mean_of_scaled(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """mean(x) c = mean(x c): at an infinite c either side may be infinite where the other is NaN"""
    yield reduce_mean(x, a) * c
    require(c.rank == 0 and c.number is not None, "one number")
    yield reduce_mean(x * c, a)


def test_random_tests_hold_a_rule_to_its_own_class() -> None:
    assert check_rule(mean_of_scaled, cases=64).passed
    assert not check_rule(replace(mean_of_scaled, rounding="exact"), cases=64).passed


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("left", "right", "rounding", "sums", "differs"),
    [
        (0.0, -0.0, "exact", False, True), (0.0, -0.0, "exact", True, False), (0.0, -0.0, "reassociates", False, False),
        (1.0, 1.0 + 1e-15, "exact", False, True), (1.0, 1.0 + 1e-15, "exact", True, False),
        (1.0, 1.0 + 1e-15, "reassociates", False, False),
        (1.0, 1.1, "reassociates", False, True), (NAN, NAN, "exact", False, False), (NAN, INFINITY, "exact", True, True),
        (NAN, INFINITY, "reassociates", False, False), (NAN, 0.0, "reassociates", False, True),
        (0.0, INFINITY, "reassociates", False, True),
        (NAN, 0.0, "assumes finite", False, False), (0.0, NAN, "assumes finite", False, True), (1.0, 1.1, "assumes finite", False, True),
    ],
)  # fmt: skip
def test_what_may_differ_by_class(left: float, right: float, rounding: Rounding, sums: bool, differs: bool) -> None:
    sides = np.array([2.0, left]), np.array([2.0, right])
    assert (first_difference(*sides, [], rounding, sums=sums) is not None) is differs


@pytest.mark.parametrize("name", ["neutral_in_mul", "relu_twice", "transpose_twice", "matmul_weights_associate", "gelu_from_tanh"])
def test_classes_are_not_given_away(name: str) -> None:
    """A rule's rounding class is no weaker than necessary."""
    expected = {"matmul_weights_associate": "reassociates", "gelu_from_tanh": "reassociates"}
    assert rule_named(name).rounding == expected.get(name, "exact")


def test_a_window_in_the_padding_is_met_by_a_case() -> None:
    """An infinite scale of a result that is only padding is NaN on the left side, but zero on the right side."""
    wrong = replace(rule_named("scale_into_conv"), rounding="reassociates")
    proof = prove(wrong, Effort(tests=8))
    assert proof.failure == "rounding" and "nan on the left side and 0 on the right" in proof.reason


def test_a_case_of_thousands_of_millions_of_elements_is_not_evaluated() -> None:
    side = identity(Operand("x", (2**31,), "float32"))
    with pytest.raises(EinsatError, match="too large"):
        broken_case(side, side, {}, "exact")


@rule(rounding="reassociates")
def floor_by_its_rest(x: Tensor, y: Tensor) -> Equation:
    """max(floor(x), y) = max(x - (x - floor(x)), y), but where x = -infinity meets a finite y"""
    whole = operation("Floor", x)
    return maximum(whole, y) == maximum(x - (x - whole), y)


def test_operands_of_elementwise_rules_meet_in_every_way() -> None:
    """Few random draws pair -infinity with a finite number, for which the left side is finite and the right side is NaN."""
    breach = broken(floor_by_its_rest, count=1, draws=0)
    assert breach is not None and breach.kind == "not finite"
    assert prove(floor_by_its_rest, Effort(tests=16)).verdict == "unknown"


@rule(rounding="reassociates")
def chosen_twice(p: Tensor, x: Tensor) -> Equation:
    """where(p, x, -x) = where(not p, -x, x)"""
    return where(p, x, -x) == where(operation("Not", p), -x, x)


def test_conditions_meet_numbers_in_every_way_too() -> None:
    wide = all_at_once(chosen_twice, next(instances(chosen_twice, 0, 1)))
    assert wide is not None
    condition, number = (every(wide, "zeros")[leaf] for leaf in wide.leaves)
    met = {(bool(p), str(x)) for p, x in zip(condition, number, strict=True)}
    assert met == {(p, x) for p in (False, True) for x in ("0.0", "-0.0", "1.0", "-1.0", "0.75", "-2.5")}


@rule
def scaled_before_it_is_rounded(x: Tensor, s: Weight, c: Weight, u: Weight, v: Weight) -> Steps:
    """quantize(x s + c, u, 0) = saturate(x (s / u) + c / u): last bits differ, which bytes seldom show"""
    yield quantize(x * s + c, u, v)
    require_number(v, 0.0)
    require(u.number is not None and 0 < u.number < 1e30, "a scale that is one number")
    require(u.rank == 0 and v.rank == 0, "numbers")
    yield saturate(x * (s / u) + c / u, to="uint8")


@rule
def floored_twice(x: Tensor) -> Equation:
    """floor(floor(x)) = floor(x)"""
    return operation("Floor", operation("Floor", x)) == operation("Floor", x)


@rule
def quantized_after_clipping(x: Tensor, u: Weight, v: Weight) -> Equation:
    """quantize(relu(relu(x)), u, v) = quantize(relu(x), u, v)"""
    return quantize(relu(relu(x)), u, v) == quantize(relu(x), u, v)


def test_rounding_to_integers_hides_no_last_bits() -> None:
    """Regression: whether bytes show a changed last bit depends on the drawn numbers, and one seed of four let the rule pass."""
    drawn = [keeps_rounding(each) for seed in range(4) for each in islice(draws(scaled_before_it_is_rounded, seed, 400), 8)]
    assert drawn.count(False) > len(drawn) // 6
    assert all(objection(scaled_before_it_is_rounded, frozenset(), seed) for seed in range(4))
    for kept in (floored_twice, quantized_after_clipping):
        drawn = [keeps_rounding(instance) for seed in range(4) for instance in islice(draws(kept, seed, 400), 8)]
        assert drawn and all(drawn), kept.name


@pytest.mark.parametrize("each", [r for r in RULES if r.rounding == "exact" and "quant" in str(r.name)], ids=lambda each: str(each.name))
def test_moved_bytes_are_exact_whatever_is_drawn(each: Rule) -> None:
    """The sum of a rounded number and a zero point is a sum of integers, so it does not round the last bits again."""
    assert not any(objection(each, frozenset(), seed) for seed in range(3))


def test_instances_drawn_before_are_tried_instead_of_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = tuple(islice(draws(scaled_before_it_is_rounded, 1, 400), 8))
    monkeypatch.setattr("verify.special_values.draw", lambda *_: pytest.fail("a new instance is drawn"))
    monkeypatch.setattr("verify.rounding.draws", lambda *_: pytest.fail("a new instance is drawn"))
    assert objection(scaled_before_it_is_rounded, frozenset(), 1, drawn)
    assert [each for each in instances(floored_twice, 1, 3, drawn=drawn) if each in drawn] == list(drawn[:3])


def test_a_rule_that_gives_other_sides_for_the_same_match_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Instance] = []

    def unstable(rule: Rule, bindings: Sequence[Binding]) -> Instance:
        made.append(instantiate(rule, bindings))
        return made[-1] if len(made) % 2 else replace(made[-1], right=made[-1].left)

    assert not check_rule(floored_twice).failures
    monkeypatch.setattr("verify.random_testing.instantiate", unstable)
    (failure,) = check_rule(floored_twice).failures
    assert "depends on more than its arguments" in failure
