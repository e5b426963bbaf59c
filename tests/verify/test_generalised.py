"""Generalisations of cases: they imply their cases, and many cases share one."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, require_attribute, require_number, rule
from egraph.rule_operators import layer_normalization, pad
from egraph.rules import rule_named
from egraph.tensor.expr.bodies import reads_of
from egraph.tensor.expr.evaluate import evaluate
from egraph.tensor.expr.index import Iterator, RealSymbol, Symbol, index
from egraph.tensor.expr.scope import ONE, ZERO, Apply, Compare, Guarded, IndexNumber, Number, Read, Reduction, Scalar, Scope
from egraph.tensor.expr.scope import Tensor as Operand
from verify.assumptions import Assumptions
from verify.cases import Case, cases
from verify.equality import Equal, prove_equal
from verify.generalised import _without_border, generalised
from verify.isomorphism import Names
from verify.prove import LAWS, Effort, _facts_of, prove

N, M = index(Symbol("n")), index(Symbol("m"))
ROW, COLUMN = Iterator("i", 0, N), Iterator("j", 0, M)
OTHER = Iterator("other", 0, N)
MATRIX = Operand("x", (N, M))
ROW_SUMS = Scope((OTHER,), (Iterator("k", 0, M),), Reduction.SUM, Read(MATRIX, (index(OTHER), index(Iterator("k", 0, M)))))
ROOTS = ROW_SUMS.with_body(Apply("sqrt", (ROW_SUMS.body,)))
"""A sum of roots: undefined if an element is negative."""


def case(left: Scalar, right: Scalar, *conditions: Compare, traversal: Sequence[Iterator] = (ROW, COLUMN)) -> Case:
    sides = (Scope.pointwise(tuple(traversal), body) for body in (left, right))
    first, second = sides
    return Case("", Assumptions().assume(*conditions), (first,), (second,))


def holds(each: Case) -> bool:
    return all(isinstance(prove_equal(left, right, each.assumptions), Equal) for left, right in zip(each.left, each.right, strict=True))


def judged(each: Case) -> bool | None:
    """Return whether a case's generalisation is proved; None if it has none."""
    general = generalised(each)
    return None if general is None else holds(general)


def x(*places: Iterator) -> Read:
    return Read(MATRIX, tuple(map(index, places)))


def call(function: str, *arguments: Scalar) -> Apply:
    return Apply(function, arguments)


SOLVED = (
    "scale_into_layer_normalization", "layer_normalization_from_square", "requantized_to_int8_with_shift", "slice_into_add",
    "transpose_into_pad", "pad_twice", "concat_of_add_with_constants",
)  # fmt: skip


@pytest.mark.parametrize("name", SOLVED)
def test_what_holds_in_general_holds_in_each_case(name: str) -> None:
    """Cases of low ranks whose generalisation is proved are proved by themselves too, and a few generalisations serve many cases."""
    names, general_names, served = Names(), set(), 0
    for each in cases(rule_named(name), ranks=(0, 1, 2)):
        if each.left_out or each.ill_typed or each.failure or (general := generalised(each)) is None or not holds(general):
            continue
        served += 1
        general_names.add(names.of(general.assumptions.conditions, general.left, general.right))
        assert holds(each), each.scope_note
    assert served > len(general_names) > 0


def test_ranks_of_broadcast_operands_do_not_matter() -> None:
    vector, matrix = Operand("s", (M,)), Operand("s", (N, M))
    reads = (Read(Operand("s", ()), ()), Read(vector, (index(COLUMN),)), Read(matrix, (index(ROW), index(COLUMN))))
    generals = [generalised(case(call("mul", x(ROW, COLUMN), s), call("mul", s, x(ROW, COLUMN)))) for s in reads]
    assert all(each is not None and holds(each) for each in generals)
    assert len({(each.left, each.right) for each in generals if each}) == 1


def test_other_elements_and_other_numbers_are_not_equal() -> None:
    square = Operand("y", (N, N))
    i, j = Iterator("i", 0, N), Iterator("j", 0, N)
    turned = case(Read(square, (index(i), index(j))), Read(square, (index(j), index(i))), traversal=(i, j))
    assert judged(turned) is None
    assert judged(case(call("mul", x(ROW, COLUMN), Number(Fraction(2))), call("mul", x(ROW, COLUMN), Number(Fraction(3))))) is False
    assert judged(case(call("add", x(ROW, COLUMN), IndexNumber(N)), call("add", x(ROW, COLUMN), IndexNumber(M)))) is False


def test_conditions_about_the_numbers_in_the_sides_are_kept() -> None:
    """x * n = x * m for n = m, and x * u / u = x for u > 0, hold only by their conditions."""
    same = Compare(N, "==", M)
    assert judged(case(call("mul", x(ROW, COLUMN), IndexNumber(N)), call("mul", x(ROW, COLUMN), IndexNumber(M)), same)) is True
    u = index(RealSymbol("u"))
    quotient = case(call("div", call("mul", x(ROW, COLUMN), IndexNumber(u)), IndexNumber(u)), x(ROW, COLUMN), Compare(index(0), "<", u))
    general = generalised(quotient)
    assert general is not None and general.assumptions.conditions == (Compare(index(0), "<", u),) and holds(general)
    unrelated = case(x(ROW, COLUMN), call("add", x(ROW, COLUMN), ZERO), Compare(index(1), "<", M))
    general = generalised(unrelated)
    assert general is not None and general.assumptions.conditions == ()


def test_shapes_have_to_be_equal() -> None:
    left, right = Scope.pointwise((ROW,), ONE), Scope.pointwise((COLUMN,), ONE)
    assert generalised(Case("", Assumptions(), (left,), (right,))) is None
    general = generalised(Case("", Assumptions().assume(Compare(N, "==", M)), (left,), (right,)))
    assert general is not None and holds(general)


def test_inner_scopes_are_equal_whatever_their_iterators_are_called() -> None:
    k = Iterator("another", 0, M)
    renamed = Scope((ROW,), (k,), Reduction.SUM, Read(MATRIX, (index(ROW), index(k))))
    first, second = Read(ROW_SUMS, (index(ROW),)), Read(renamed, (index(ROW),))
    assert judged(case(call("sub", x(ROW, COLUMN), first), call("sub", x(ROW, COLUMN), second))) is True
    product = renamed.with_body(call("mul", renamed.body, renamed.body))
    assert judged(case(call("sub", x(ROW, COLUMN), first), call("sub", x(ROW, COLUMN), Read(product, (index(ROW),))))) is None


def test_what_may_be_undefined_is_read_on_both_sides_and_unconditionally() -> None:
    """x = x + 0 * r holds for all numbers r, and not where r is undefined."""
    root = Read(ROOTS, (index(ROW),))
    nothing = call("mul", ZERO, root)
    assert judged(case(x(ROW, COLUMN), call("add", x(ROW, COLUMN), nothing))) is None, "the right side alone reads it"
    assert judged(case(call("add", x(ROW, COLUMN), nothing), x(ROW, COLUMN))) is None, "the left side alone reads it"
    assert judged(case(call("add", x(ROW, COLUMN), root), call("add", root, x(ROW, COLUMN)))) is True
    positive = call("less", ZERO, x(ROW, COLUMN))
    chosen = call("where", positive, root, ONE)
    assert judged(case(chosen, call("where", positive, root, call("add", ONE, nothing)))) is None, "a choice may leave it out"
    guard = (Compare(index(0), "<", index(ROW)),)
    assert judged(case(Guarded(guard, root, ONE), Guarded(guard, root, call("add", ONE, nothing)))) is None, "so may a condition"


def test_sides_that_reduce_and_constants_that_are_no_numbers_have_no_generalisation() -> None:
    whole = Scope(ROW_SUMS.traversal, ROW_SUMS.summation, Reduction.MAX, ROW_SUMS.body)
    assert generalised(Case("", Assumptions(), (ROW_SUMS,), (whole,))) is None
    nan = Number(float("nan"))
    assert judged(case(call("add", x(ROW, COLUMN), nan), call("add", x(ROW, COLUMN), nan))) is None


def test_the_only_position_of_an_axis_is_zero() -> None:
    single, vector = Iterator("single", 0, 1), Operand("v", (1, M))
    left, right = (Read(vector, (index(place), index(COLUMN))) for place in (single, 0))
    assert judged(case(left, right, traversal=(single, COLUMN))) is True


def test_elements_keep_their_types() -> None:
    """A proof about bytes may use how large they are."""
    element = call("to_float32", Read(Operand("w", (N,), "int8"), (index(ROW),)))
    general = generalised(case(call("add", element, x(ROW, COLUMN)), call("add", x(ROW, COLUMN), element)))
    assert general is not None
    sources = [read.source for read in reads_of(general.left[0].body)]
    assert [source.dtype for source in sources if isinstance(source, Operand)] == ["int8", "float32"]


def test_conditions_about_other_unknowns_are_left_out() -> None:
    other = index(Symbol("other"))
    conditions = (Compare(index(2), "<", N), Compare(N, "<", other))
    general = generalised(case(call("add", x(ROW, COLUMN), IndexNumber(N)), call("add", IndexNumber(N), x(ROW, COLUMN)), *conditions))
    assert general is not None and general.assumptions.conditions == conditions[:1]


def test_an_infinite_border_that_is_computed_with_stays() -> None:
    """inf + (x - inf) is no number."""
    guarded = Guarded((Compare(index(0), "<", index(ROW)),), x(ROW, COLUMN), Number(float("inf")))
    side = Scope.pointwise((ROW, COLUMN), call("mul", guarded, Number(Fraction(2))))
    assert _without_border(side) == side


def test_borders_of_any_number_are_one_case() -> None:
    """Two borders of infinity are one, as are two of zero; borders of two numbers are not."""

    def bordered(first: Scalar, second: Scalar, third: Scalar) -> Case:
        outer, inner = (Compare(index(0), "<=", index(ROW)),), (Compare(index(1), "<=", index(ROW)),)
        return case(Guarded(outer, Guarded(inner, x(ROW, COLUMN), first), second), Guarded((*outer, *inner), x(ROW, COLUMN), third))

    infinity, two = Number(float("inf")), Number(Fraction(2))
    same = [bordered(border, border, border) for border in (ZERO, two, infinity)]
    assert all(map(judged, same))
    generals = [generalised(each) for each in same]
    assert len({(each.left, each.right) for each in generals if each}) == 1
    assert judged(bordered(two, two, infinity)) is False
    computed = case(call("mul", x(ROW, COLUMN), two), call("add", x(ROW, COLUMN), x(ROW, COLUMN)))
    assert judged(computed) is True, "a number that is computed with keeps its value"


@rule
def scale_added_to_layer_normalization(x: Tensor, s: Weight, b: Weight, c: Weight, a: Attributes) -> Steps:
    """layer_normalization(x, s, b) * c = layer_normalization(x, s * c, b), were it so"""
    yield layer_normalization(x, s, b, a) * c
    yield layer_normalization(x, s * c, b, a)


@rule
def another_border(x: Tensor, p: Attributes) -> Steps:
    """pad(x, 0) = pad(x, 1), were it so"""
    yield pad(x, p)
    require_attribute(p, "value", 0.0)
    yield pad(x, p, value=1.0)


@rule
def halves(x: Tensor, y: Tensor, two: Weight) -> Steps:
    """(x + y) / 2 = x / 2 + y, were it so"""
    yield (x + y) / two
    require_number(two, 2.0)
    yield x / two + y


@rule
def swapped(x: Tensor, y: Tensor) -> Equation:
    """x - y = y - x, were it so"""
    return x - y == y - x


FALSE = (scale_added_to_layer_normalization, another_border, halves, swapped)


@pytest.mark.parametrize("false", FALSE, ids=lambda each: str(each.name))
def test_no_false_rule_is_proved_by_its_cases_alone(false: Rule) -> None:
    proof = prove(false, Effort(tests=0))
    assert not proof.is_proved
    assert proof.failure != "rounding", "the proof itself finds it, not the test of the rounding class"


BORDERS = {"number": Number(Fraction(-3, 2)), "size": IndexNumber(index(2)), "read": Read(Operand("b", ()), ())}


@pytest.mark.parametrize("border", BORDERS.values(), ids=BORDERS)
def test_a_border_outside_of_its_conditions_keeps_the_value(border: Scalar) -> None:
    row, column = Iterator("i", 0, 4), Iterator("j", 0, 5)
    element = Read(Operand("x", (4, 5)), (index(row), index(column)))
    inner = Guarded((Compare(index(column), "<", index(row)),), call("mul", element, element), border)
    outer = Guarded((Compare(index(1), "<=", index(row)), Compare(index(column), "!=", index(3))), inner, border)
    side = Scope.pointwise((row, column), call("mul", call("neg", outer), element))
    changed = _without_border(side)
    assert changed != side and "otherwise=Number(value=Fraction(0, 1))" in repr(changed)
    operands = {"x": np.arange(20.0).reshape(4, 5) - 7, "b": np.asarray(0.75)}
    np.testing.assert_array_equal(evaluate(changed, operands), evaluate(side, operands))


def test_laws_that_a_generalisation_rests_on_count_for_the_rounding_class() -> None:
    """exp(x) * exp(x) = exp(x + x): one side may overflow when the other does not."""
    element = x(ROW, COLUMN)
    general = generalised(case(call("mul", call("exp", element), call("exp", element)), call("exp", call("add", element, element))))
    assert general is not None
    assert LAWS in (_facts_of(general, "reassociates") or ())
    assert LAWS not in (_facts_of(general, "assumes finite") or ())
