"""An equation that loses a division, a logarithm, a root or a power needs it defined, and says so."""

from __future__ import annotations

from fractions import Fraction

import pytest

from egraph.expr.index import index
from egraph.expr.scope import ONE, Number, Scalar, Scope, Tensor
from egraph.expr.scope import apply as call
from egraph.ops.scopes import pointwise, read
from verify.assumptions import Assumptions
from verify.equality import Equal, prove_equal

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
    """Both sides must be defined for the same values, or the rule says that it assumes them finite."""
    outcome = prove_equal(_scope(left), _scope(right), Assumptions())
    assert isinstance(outcome, Equal) and outcome.facts == facts
