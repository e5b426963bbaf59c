"""Every law of indices and conditions holds for all integers, and rewriting by them never changes a value."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from itertools import product
from random import Random
from typing import Any

import pytest

from egraph.tensor.expr.conditions import bound_on, lowest, negation, slack, tightest, truth
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, floor_divide, index, known, modulo, substitute
from egraph.tensor.expr.laws import LAWS, Law, affine, coefficient, rejoined, straightened, tidy
from egraph.tensor.expr.scope import Compare
from tests.support.paths import ROOT

z3 = pytest.importorskip("z3")
RESOURCES = 40_000_000
"""Limit of Z3's work for one law, in its resource units."""
ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.GtE: operator.ge, ast.Eq: operator.eq,
}  # fmt: skip


class Formula:
    """Translates a law's text to a formula of Z3; quotients are unknowns with q d <= x < q d + d, as in floor division."""

    def __init__(self) -> None:
        self.meant: list[Any] = []
        self.quotients: dict[str, Any] = {}

    def of(self, text: str) -> Any:
        return self.node(ast.parse(text, mode="eval").body)

    def node(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(name):
                return z3.Int(name)
            case ast.Constant(value):
                return z3.IntVal(value)
            case ast.UnaryOp(ast.USub(), operand):
                return -self.node(operand)
            case ast.BoolOp(ast.And(), values):
                return z3.And([self.node(value) for value in values])
            case ast.Compare(left, [relation], [right]):
                return ARITHMETIC[type(relation)](self.node(left), self.node(right))
            case ast.BinOp(left, ast.FloorDiv() | ast.Mod() as kind, right):
                value, divisor = self.node(left), self.node(right)
                quotient = self.quotient(value, divisor)
                return quotient if isinstance(kind, ast.FloorDiv) else value - divisor * quotient
            case ast.BinOp(left, kind, right):
                return ARITHMETIC[type(kind)](self.node(left), self.node(right))
        raise AssertionError(ast.dump(node))

    def quotient(self, value: Any, divisor: Any) -> Any:
        key = f"{value} // {divisor}"
        if key not in self.quotients:
            quotient = self.quotients[key] = z3.Int(f"q{len(self.quotients)}")
            self.meant += [divisor * quotient <= value, value < divisor * quotient + divisor]
        return self.quotients[key]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_laws_hold_for_all_integers(law: Law) -> None:
    formula = Formula()
    given, left, right = [formula.of(one) for one in law.given], formula.of(law.left), formula.of(law.right)
    solver = z3.Solver()
    solver.set("rlimit", RESOURCES)
    solver.add(*given, *formula.meant, left != right)
    assert solver.check() == z3.unsat, law.name
    satisfiable = z3.Solver()
    satisfiable.add(*given, *formula.meant)
    assert satisfiable.check() == z3.sat, f"nothing is said by {law.name}"


def test_a_false_law_is_refuted() -> None:
    with pytest.raises(AssertionError, match="rounded up"):
        test_laws_hold_for_all_integers(Law("rounded up", "0 <= d * x + c", "0 <= x + (c + d - 1) // d", ("d >= 1",)))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_every_law_is_cited_where_it_is_used(law: Law) -> None:
    root = ROOT
    sources = [path for folder in ("egraph/tensor/expr", "egraph/derive", "verify") for path in (root / folder).rglob("*.py")]
    assert any(f"``{law.name}``" in path.read_text() for path in sources)


def drawn(random: Random, iterators: tuple[Iterator, ...], depth: int = 2) -> Index:
    """Return an index with quotients and remainders, some of them not simplified by their constructors."""
    total = index(random.randint(-3, 3))
    for _ in range(random.randint(1, 3)):
        iterator = random.choice(iterators)
        if not depth or random.random() < 0.4:
            total = total + index(iterator) * random.choice((1, 2, 3, 4, 6, -1, -2))
            continue
        value, by = drawn(random, iterators, depth - 1), index(random.choice((2, 3, 4, 6)))
        kind = random.randrange(5)
        if kind == 4:  # digits of one number
            total = total + floor_divide(value, by) * by * 2 + modulo(value, by) * 2
            continue
        made = (floor_divide(value, by), modulo(value, by), index(Floor(value, by)), index(Modulo(value, by)))[kind]
        total = total + made * random.choice((1, 2, 3, -1))
    return total


def values(value: Index, iterators: tuple[Iterator, ...]) -> list[int]:
    """Return an index's values at every point, computed with Python's integers."""
    points = product(*(range(known(i.low), known(i.high)) for i in iterators))
    return [evaluated(value, dict(zip(iterators, point, strict=True))) for point in points]


def evaluated(value: Index, at: dict[Iterator, int]) -> int:
    total = 0
    for monomial, c in value.terms:
        for atom in monomial:
            match atom:
                case Iterator():
                    c *= at[atom]
                case Floor(numerator, divisor):
                    c *= evaluated(numerator, at) // evaluated(divisor, at)
                case Modulo(numerator, divisor):
                    c *= evaluated(numerator, at) % evaluated(divisor, at)
        total += c
    return total


ITERATORS = (Iterator("i", 0, 7), Iterator("j", 0, 4), Iterator("k", -2, 3))


@pytest.mark.parametrize("rewrite", [tidy, rejoined, straightened], ids=lambda f: f.__name__)
def test_rewriting_an_index_keeps_its_values(rewrite: Callable[[Index], Index]) -> None:
    random, changed = Random(5), 0
    for _ in range(400):
        value = drawn(random, ITERATORS)
        after = rewrite(value)
        changed += after != value
        assert values(after, ITERATORS) == values(value, ITERATORS), value
    assert changed > 20


def test_constructors_and_substitution_keep_values() -> None:
    random = Random(7)
    for _ in range(400):
        value, by = drawn(random, ITERATORS), random.choice((1, 2, 3, 5, 6))
        plain = values(value, ITERATORS)
        assert values(floor_divide(value, index(by)), ITERATORS) == [v // by for v in plain]
        assert values(modulo(value, index(by)), ITERATORS) == [v % by for v in plain]
        assert values(substitute(value, {}), ITERATORS) == plain


def test_linear_parts_are_what_an_index_is_linear_in() -> None:
    random = Random(11)
    for _ in range(300):
        value, (i, *others) = drawn(random, ITERATORS, 1), ITERATORS
        parts, slope = affine(value), coefficient(value, i)
        if parts is not None:
            assert value == sum((index(one) * c for one, c in parts[1].items()), index(parts[0]))
        if slope is not None:
            rest = value - index(i) * slope
            assert all(values(substitute(rest, {i: x}), tuple(others)) == values(substitute(rest, {i: 0}), tuple(others)) for x in range(7))


def true_at(condition: Compare) -> list[bool]:
    compare = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}[condition.operator]
    return [compare(a, b) for a, b in zip(values(condition.left, ITERATORS), values(condition.right, ITERATORS), strict=True)]


def conditions(random: Random, iterators: tuple[Iterator, ...] = ITERATORS, depth: int = 1) -> Compare:
    return Compare(drawn(random, iterators, depth), random.choice(("<", "<=", "==", "!=")), drawn(random, iterators, depth))


def test_forms_of_conditions_say_the_same() -> None:
    random = Random(13)
    for _ in range(400):
        condition = conditions(random)
        plain, form, known = true_at(condition), lowest(condition), truth(condition)
        assert true_at(negation(condition)) == [not each for each in plain]
        assert known is None or set(plain) <= {known}
        if (least := slack(condition)) is not None:
            assert [each >= 0 for each in values(least, ITERATORS)] == plain
        if isinstance(form, bool):
            assert set(plain) == {form}
        else:
            assert true_at(Compare(index(0), *form)) == plain


def test_bounds_on_an_iterator_are_where_a_condition_holds() -> None:
    random, exact = Random(19), 0
    points = list(product(*(range(known(i.low), known(i.high)) for i in ITERATORS)))
    for _ in range(400):
        position, count = random.randrange(len(ITERATORS)), random.choice((1, 3))
        condition = conditions(random, ITERATORS[position : position + count], 0)
        limit = bound_on(condition, ITERATORS[position])
        if limit is None:
            continue
        inside = [limit.low <= point[position] < limit.high for point in points]
        assert all(holds or not within for holds, within in zip(true_at(condition), inside, strict=True)), condition
        if limit.exact:
            assert true_at(condition) == inside
            exact += 1
    assert exact > 40


def test_the_tightest_conditions_say_the_same_as_all() -> None:
    random, dropped = Random(17), 0
    for _ in range(400):
        given = [conditions(random) for _ in range(random.randint(1, 4))]
        given += [Compare(one.left, "<=", one.right + random.randint(0, 5)) for one in given if one.operator == "<="]
        kept, plain = tightest(given), [all(row) for row in zip(*map(true_at, given), strict=True)]
        if kept is None:
            assert not any(plain)
            continue
        dropped += len(kept) < len(given)
        assert plain == [all(row) for row in zip(*map(true_at, kept), strict=True)] if kept else all(plain)
    assert dropped > 40
