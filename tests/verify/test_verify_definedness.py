"""An equation that drops a division, a logarithm, a root or a power needs it to be defined, and reports that."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from egraph.tensor.expr.index import Iterator, Symbol, index
from egraph.tensor.expr.scope import ONE, Compare, Guarded, Number, Read, Reduction, Scalar, Scope, Tensor
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.scopes import pointwise, read
from verify.application import _within_budget
from verify.assumptions import Assumptions
from verify.equality import Equal, Open, prove_equal

X, Y = Tensor("0", (index(3),)), Tensor("1", (index(3),))


def _scope(body: Scalar) -> Scope:
    return pointwise("i", (3,), lambda at: body)


def _at(tensor: Tensor) -> Scalar:
    return read(tensor, (index(0),))


@pytest.mark.parametrize(
    ("left", "right", "facts"),
    [
        (call("sub", call("add", _at(X), call("div", ONE, _at(Y))), call("div", ONE, _at(Y))), _at(X), {"nonzero divisor"}),
        (call("mul", call("log", _at(Y)), Number(Fraction(0))), Number(Fraction(0)), {"positive argument of a logarithm"}),
        (call("div", _at(X), Number(Fraction(2))), call("mul", _at(X), Number(Fraction(1, 2))), set()),
        (call("div", _at(X), _at(Y)), call("mul", _at(X), call("reciprocal", _at(Y))), set()),
    ],
)
def test_a_lost_partial_function_is_a_fact(left: Scalar, right: Scalar, facts: set[str]) -> None:
    """Both sides must be defined for the same values, or the rule states that it assumes finite values."""
    outcome = prove_equal(_scope(left), _scope(right), Assumptions())
    assert isinstance(outcome, Equal) and outcome.facts == facts


@pytest.mark.parametrize(
    ("before", "size", "facts"),
    [
        (1, 3, set()), (3, 3, {"nonzero divisor"}), (0, None, set()), (1, 1 << 12, {"nonzero divisor"}),
        (1, Symbol("n", 1), {"nonzero divisor"}),
    ],
)  # fmt: skip
def test_a_count_of_at_least_one_is_no_lost_divisor(before: int, size: int | Symbol | None, facts: set[str]) -> None:
    """sum(k < 2) [0 <= i + k - before < size] is 0 at i = 0 if before is 3. If there are too many positions, they are not tried."""
    position, tap = Iterator("i", 0, index(size) if isinstance(size, Symbol) else size or 3), Iterator("k", 0, 2)
    inside = () if size is None else (Compare(index(before), "<=", index(position) + index(tap)),)
    body = Guarded(inside, ONE, Number(Fraction(0))) if inside else ONE
    count = Read(Scope((position,), (tap,), Reduction.SUM, body), (index(Iterator("at", 0, 3)),))
    for divisor in (count, call("mul", count, Number(Fraction(2)))):
        lost = call("sub", call("add", _at(X), call("div", ONE, divisor)), call("div", ONE, divisor))
        outcome = prove_equal(Scope.pointwise((Iterator("at", 0, 3),), lost), _scope(_at(X)), Assumptions())
        assert isinstance(outcome, Equal) and outcome.facts == facts


def test_a_product_of_conditions_is_no_count() -> None:
    """prod(k < 2) [1 <= i + k] is 0 at i = 0."""
    position, tap = Iterator("i", 0, 3), Iterator("k", 0, 2)
    inside = (Compare(index(1), "<=", index(position) + index(tap)),)
    scope = Scope((position,), (tap,), Reduction.PROD, Guarded(inside, ONE, Number(Fraction(0))))
    divisor = Read(scope, (index(Iterator("at", 0, 3)),))
    lost = call("sub", call("add", _at(X), call("div", ONE, divisor)), call("div", ONE, divisor))
    outcome = prove_equal(Scope.pointwise((Iterator("at", 0, 3),), lost), _scope(_at(X)), Assumptions())
    assert isinstance(outcome, Equal) and outcome.facts == {"nonzero divisor"}


def test_what_one_box_assumes_all_boxes_together_do() -> None:
    pairs = [(_scope(LOST), _scope(_at(X))), (_scope(_at(X)), _scope(_at(X)))]
    for each in (pairs, pairs[::-1]):
        outcome = _within_budget(each)
        assert isinstance(outcome, Equal) and outcome.facts == {"nonzero divisor"}
    assert isinstance(_within_budget([pairs[1], (_scope(_at(X)), _scope(_at(Y))), pairs[1]]), Open)


LOST = call("sub", call("add", _at(X), call("div", ONE, _at(Y))), call("div", ONE, _at(Y)))
ROOTS = call("mul", call("sqrt", _at(X)), call("sqrt", _at(X)))
PART = call("div", _at(X), _at(Y))
LOGARITHMS = call("add", call("log", _at(X)), call("log", _at(Y)))


@pytest.mark.parametrize(
    ("less", "more"),
    [
        (_at(X), LOST),
        (_at(X), call("exp", call("log", _at(X)))),
        (_at(X), ROOTS),
        (call("log", call("mul", _at(X), _at(Y))), LOGARITHMS),
        (call("add", _at(X), PART), call("add", call("div", call("mul", _at(X), _at(X)), _at(X)), PART)),
        *((given, call("add", given, call("sub", asked, asked))) for given, asked in (
            (call("div", _at(Y), _at(X)), call("sqrt", _at(X))),
            (call("add", _at(Y), call("sqrt", _at(X))), call("sqrt", call("mul", _at(X), _at(Y)))),
            (call("sqrt", _at(X)), call("pow", _at(X), Number(Fraction(-1, 2)))),
            (_at(X), call("pow", _at(X), Number(Fraction(-1)))),
            (_at(X), call("div", _at(Y), call("tanh", _at(X)))),
        )),
    ],
)  # fmt: skip
def test_the_right_side_asks_for_no_more_than_the_left(less: Scalar, more: Scalar) -> None:
    """The right side must be defined if the left side is, so an equation may hold in one direction only."""
    assert isinstance(prove_equal(_scope(more), _scope(less), Assumptions()), Equal)
    outcome = prove_equal(_scope(less), _scope(more), Assumptions())
    assert isinstance(outcome, Open) and "and the left side does not" in outcome.obligation


@pytest.mark.parametrize(
    "right",
    [
        call("div", call("mul", _at(X), call("exp", _at(Y))), call("exp", _at(Y))),
        call("log", call("exp", _at(X))),
        call("div", _at(X), Number(Fraction(1))),
        call("add", _at(X), call("sqrt", Number(Fraction(0)))),
    ],
)
def test_what_is_positive_by_its_form_is_not_asked_for(right: Scalar) -> None:
    assert isinstance(prove_equal(_scope(_at(X)), _scope(right), Assumptions()), Equal)


def test_a_magnitude_is_zero_where_its_number_is() -> None:
    """|x / (2y)| = |x| / |2y| holds both ways; x / y = x max(x, y) / (y max(x, y)) does not, as a maximum is no magnitude."""
    twice = call("mul", Number(Fraction(2)), _at(Y))
    whole = _scope(call("abs", call("div", _at(X), twice)))
    apart = _scope(call("div", call("abs", _at(X)), call("abs", twice)))
    assert isinstance(prove_equal(whole, apart, Assumptions()), Equal)
    assert isinstance(prove_equal(apart, whole, Assumptions()), Equal)
    larger = call("max", _at(X), _at(Y))
    for above, below in ((X, Y), (Y, X)):
        more = call("div", call("mul", _at(above), larger), call("mul", _at(below), larger))
        assert isinstance(prove_equal(_scope(call("div", _at(above), _at(below))), _scope(more), Assumptions()), Open)


INFINITE = Number(math.inf)
K = Iterator("k", 0, 3)
SECOND = Guarded((Compare(index(K), "==", index(1)),), Number(-math.inf), Number(Fraction(0)))
CANCELLING = Scope((), (K,), Reduction.SUM, Guarded((Compare(index(K), "==", index(0)),), INFINITE, SECOND))


@pytest.mark.parametrize(
    "meeting",
    [
        call("sub", call("add", _at(X), INFINITE), INFINITE),
        call("div", call("mul", _at(X), INFINITE), INFINITE),
        call("add", _at(X), call("mul", INFINITE, call("sub", _at(Y), _at(Y)))),
        call("add", _at(X), Read(CANCELLING, ())),
        call("where", call("less", _at(Y), ONE), call("sub", call("add", _at(X), INFINITE), INFINITE), _at(X)),
    ],
)
def test_infinities_that_meet_on_the_right_side_alone_are_not_cancelled(meeting: Scalar) -> None:
    outcome = prove_equal(_scope(_at(X)), _scope(meeting), Assumptions())
    assert isinstance(outcome, Open) and "with infinities" in outcome.obligation
    twice = call("mul", meeting, Number(Fraction(1)))
    assert isinstance(prove_equal(_scope(meeting), _scope(twice), Assumptions()), Equal)


@pytest.mark.parametrize(
    "harmless", [call("max", _at(X), Number(-math.inf)), call("min", call("max", _at(X), Number(-math.inf)), INFINITE)]
)
def test_infinities_that_meet_no_other_are_harmless(harmless: Scalar) -> None:
    assert isinstance(prove_equal(_scope(_at(X)), _scope(harmless), Assumptions()), Equal)


def test_an_infinite_power_is_defined_where_both_sides_have_it() -> None:
    power = call("pow", _at(X), INFINITE)
    left, right = call("mul", power, _at(Y)), call("mul", _at(Y), power)
    assert isinstance(prove_equal(_scope(left), _scope(right), Assumptions()), Equal)
    assert isinstance(prove_equal(_scope(_at(Y)), _scope(call("sub", call("add", _at(Y), power), power)), Assumptions()), Open)
