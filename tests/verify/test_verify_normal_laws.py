"""Laws of scalar functions and of sums give equal expressions one normal form; without a law, the forms stay different."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from egraph.tensor.expr.index import Iterator, Symbol, index
from egraph.tensor.expr.scope import Compare, Guarded, IndexNumber, Number, Read, Reduction, Scalar, Scope, Tensor, apply, number
from tests.support.normal_values import normal
from verify.assumptions import Assumptions
from verify.normal import TooLarge, normalise

X, Y, Z = (Read(Tensor(name, ()), ()) for name in "xyz")
ONE_ = Number(Fraction(1))


def scalar(body: Scalar, assumptions: Assumptions | None = None) -> str:
    """Return the normal form of a scalar expression over x, y and z as text."""
    return str(normal(Scope.pointwise((), body), assumptions))


def sigmoid(x: Scalar) -> Scalar:
    return apply("div", ONE_, apply("add", ONE_, apply("exp", apply("neg", x))))


LAWS: tuple[tuple[Scalar, Scalar], ...] = (
    (apply("mul", apply("exp", X), apply("exp", Y)), apply("exp", apply("add", Y, X))),
    (apply("exp", apply("log", X)), X),
    (apply("log", apply("exp", X)), X),
    (apply("mul", apply("sqrt", X), apply("sqrt", X)), X),
    (apply("div", ONE_, apply("sqrt", number(2))), apply("sqrt", number(0.5))),
    (apply("div", X, apply("div", Y, Z)), apply("div", apply("mul", X, Z), Y)),
    (apply("pow", X, number(3)), apply("mul", apply("mul", X, X), X)),
    (apply("pow", X, number(0.5)), apply("sqrt", X)),
    (apply("tanh", apply("neg", X)), apply("neg", apply("tanh", X))),
    (apply("cos", apply("sub", X, Y)), apply("cos", apply("sub", Y, X))),
    (apply("floor", apply("floor", X)), apply("floor", X)),
    (apply("ceil", apply("neg", X)), apply("neg", apply("floor", X))),
    (apply("sub", ONE_, sigmoid(X)), sigmoid(apply("neg", X))),
    (apply("max", apply("max", X, Y), Z), apply("max", Y, apply("max", Z, X))),
    (apply("max", X, apply("min", X, Y)), X),
    (apply("add", apply("max", X, Y), apply("min", X, Y)), apply("add", X, Y)),
    (apply("max", apply("add", X, Z), apply("add", Y, Z)), apply("add", apply("max", X, Y), Z)),
    (apply("max", apply("exp", X), apply("exp", Y)), apply("exp", apply("max", Y, X))),
    (apply("max", apply("mul", number(-2), X), apply("mul", number(-2), Y)), apply("mul", number(-2), apply("min", X, Y))),
    (apply("abs", apply("mul", number(-3), X)), apply("mul", number(3), apply("abs", X))),
    (apply("mul", apply("sign", X), X), apply("abs", X)),
    (apply("where", apply("less", X, Number(Fraction(0))), apply("neg", X), X), apply("abs", X)),
    (apply("where", apply("less", X, Y), X, Y), apply("min", X, Y)),
    (apply("where", apply("not_", Z), X, Y), apply("where", Z, Y, X)),
    (apply("where", Z, X, X), X),
    (apply("less", X, X), Number(Fraction(0))),
    (apply("less_equal", X, Y), apply("not_", apply("greater", X, Y))),
    (apply("and_", apply("less", X, number(1)), apply("less", X, number(2))), apply("less", X, number(1))),
    (apply("or_", apply("less", X, Y), apply("less_equal", Y, X)), ONE_),
    (apply("not_", apply("and_", X, Y)), apply("or_", apply("not_", X), apply("not_", Y))),
    (apply("max", apply("min", X, number(6)), number(0)), apply("min", apply("max", X, number(0)), number(6))),
)


@pytest.mark.parametrize(("left", "right"), LAWS)
def test_laws_of_scalar_functions(left: Scalar, right: Scalar) -> None:
    assert scalar(left) == scalar(right)


UNEQUAL: tuple[tuple[Scalar, Scalar], ...] = (
    (apply("sqrt", apply("mul", X, X)), X),
    (apply("max", apply("mul", X, Z), apply("mul", Y, Z)), apply("mul", Z, apply("max", X, Y))),
    (apply("max", apply("min", X, number(0)), number(6)), apply("min", apply("max", X, number(6)), number(0))),
    (apply("less", X, Y), apply("less_equal", X, Y)),
    (apply("where", apply("less", X, Y), X, Z), apply("where", apply("less_equal", X, Y), X, Z)),
    (apply("floor", apply("add", X, number(0.5))), apply("round", X)),
    (apply("max", apply("reciprocal", X), apply("reciprocal", Y)), apply("reciprocal", apply("min", X, Y))),
    (apply("abs", apply("add", X, Y)), apply("add", apply("abs", X), apply("abs", Y))),
)


@pytest.mark.parametrize(("left", "right"), UNEQUAL)
def test_what_is_no_law_stays_apart(left: Scalar, right: Scalar) -> None:
    assert scalar(left) != scalar(right)


def test_laws_that_ask_for_more_than_real_numbers_are_named() -> None:
    facts: set[str] = set()
    normalise(Scope.pointwise((), apply("mul", X, apply("reciprocal", X))), (), Assumptions(), facts)
    assert facts == {"nonzero divisor"}
    facts.clear()
    normalise(Scope.pointwise((), apply("div", X, apply("add", apply("abs", X), ONE_))), (), Assumptions(), facts)
    assert not facts
    third = Scope.pointwise((), apply("mul", X, number(1 / 3)))
    assert str(normalise(third, (), Assumptions(), facts)) == "1/3 * $x[]" and facts == {"constants are rounded"}


def test_what_a_float_stands_for() -> None:
    """A float stands for the exact number that it rounds, such as a signed root, and for no fraction that is only close."""
    root, near, infinite = number(2**0.5), number(0.3333333), number(float("inf"))
    assert scalar(apply("mul", root, root)) == "2" and scalar(apply("mul", number(-(2**0.5)), root)) == "-2"
    assert scalar(apply("mul", X, near)) != scalar(apply("mul", X, number(1 / 3)))
    assert scalar(infinite) != scalar(number(float("-inf")))
    facts: set[str] = set()
    normalise(Scope.pointwise((), apply("sub", infinite, infinite)), (), Assumptions(), facts)
    assert facts == {"arithmetic with infinite constants"}


def test_sums_fold() -> None:
    """mean(1) = 1, a one-point sum is its term, and a constant sums to the size of the range."""
    n = index(Symbol("n"))
    i, k = Iterator("i", 0, n), Iterator("k", 0, n)
    row = Tensor("x", (n,))
    mean = apply("div", Read(Scope((), (k,), Reduction.SUM, ONE_), ()), Read(Scope((), (k,), Reduction.SUM, ONE_), ()))
    assert scalar(mean) == "1"
    picked = Scope((i,), (k,), Reduction.SUM, Guarded((Compare(index(k), "==", index(i)),), Read(row, (index(k),)), Number(Fraction(0))))
    assert str(normal(picked)) == "$x[o0]"
    assert scalar(Read(Scope((), (k,), Reduction.SUM, X), ())) == "<n> * $x[]"


def test_a_size_and_an_iterator_may_have_one_name() -> None:
    size, i = Symbol("o0"), Iterator("o0", 0, 5)
    difference = apply("sub", IndexNumber(index(size)), IndexNumber(index(i)))
    assert normalise(Scope.pointwise((i,), difference), (index(i),), Assumptions()).terms


def test_a_variance_has_one_form() -> None:
    """mean((x - mean x)^2) = mean(x^2) - mean(x)^2, for all sizes"""
    n = index(Symbol("n"))
    k, j = Iterator("k", 0, n), Iterator("j", 0, n)
    row = Tensor("x", (n,))

    def mean(body: Callable[[Iterator], Scalar], over: Iterator) -> Scalar:
        return apply("div", Read(Scope((), (over,), Reduction.SUM, body(over)), ()), IndexNumber(index(n)))

    average = mean(lambda i: Read(row, (index(i),)), j)

    def deviation(i: Iterator) -> Scalar:
        return apply("sub", Read(row, (index(i),)), average)

    left = mean(lambda i: apply("mul", deviation(i), deviation(i)), k)
    squares = mean(lambda i: apply("mul", Read(row, (index(i),)), Read(row, (index(i),))), k)
    difference = apply("sub", left, apply("sub", squares, apply("mul", average, average)))
    assert scalar(difference) == "0"


def test_a_product_that_grows_without_bound_is_refused() -> None:
    total: Scalar = X
    for k in range(40):
        total = apply("add", total, Read(Tensor(f"t{k}", ()), ()))
    with pytest.raises(TooLarge):
        scalar(apply("mul", total, apply("mul", total, total)))
