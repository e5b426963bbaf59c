"""Every law of the normal form has a test that it holds, the normal form applies it, and nothing is rewritten without a law."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

from egraph.tensor.expr.functions import FUNCTIONS
from egraph.tensor.expr.scope import Read, Scalar, Scope, Tensor, apply, number
from tests.support.laws import HOW, LAWS, PASSING, Law
from tests.support.paths import ROOT
from verify.assumptions import Assumptions
from verify.normal import normalise

z3 = pytest.importorskip("z3")
FOLDER = ROOT / "verify/normal"
RESOURCES = 50_000_000
"""Z3's budget for one law, in units of work."""
OPERATIONS: Mapping[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


# For all real numbers and integers


class Formula:
    """A law's text for Z3, in which roots, exponentials and floors are unknowns constrained by their definitions."""

    def __init__(self, sort: Callable[[str], Any]) -> None:
        self.sort = sort
        self.meant: list[Any] = []

    def of(self, text: str) -> Any:
        return self.node(ast.parse(text, mode="eval").body)

    def node(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(name):
                return self.sort(name)
            case ast.Constant(bool() as value):
                return z3.BoolVal(value)
            case ast.Constant(value):
                return z3.IntVal(value) if self.sort is z3.Int else z3.RealVal(value)
            case ast.UnaryOp(ast.USub(), operand):
                return -self.node(operand)
            case ast.UnaryOp(ast.Not(), operand):
                return z3.Not(self.node(operand))
            case ast.BoolOp(ast.And(), values):
                return z3.And([self.node(value) for value in values])
            case ast.Compare(left, [relation], [right]):
                return OPERATIONS[type(relation)](self.node(left), self.node(right))
            case ast.BinOp(left, kind, right):
                first, second = self.node(left), self.node(right)
                if isinstance(kind, ast.Div):
                    self.meant.append(second != 0)
                return OPERATIONS[type(kind)](first, second)
            case ast.Call(ast.Name("pow"), [base, exponent]):
                return self.power(self.node(base), float(ast.literal_eval(exponent)))
            case ast.Call(ast.Name(name), arguments):
                return self.call(name, [self.node(each) for each in arguments])
        raise AssertionError(ast.dump(node))

    def power(self, base: Any, exponent: float) -> Any:
        result = z3.RealVal(1)
        for _ in range(math.floor(abs(exponent))):
            result = result * base
        result = result if exponent % 1 == 0 else result * self.call("sqrt", [base])
        if exponent < 0:
            self.meant.append(base != 0)
        return result if exponent >= 0 else 1 / result

    def call(self, name: str, values: list[Any]) -> Any:
        first, last = values[0], values[-1]
        match name:
            case "max":
                return z3.If(first >= last, first, last)
            case "min":
                return z3.If(first <= last, first, last)
            case "abs":
                return z3.If(first >= 0, first, -first)
            case "sign":
                return z3.If(first > 0, 1.0, z3.If(first < 0, -1.0, z3.RealVal(0)))
            case "floor":
                return z3.ToReal(z3.ToInt(first))
            case "round":  # the nearest integer; ties go to the even one
                whole = z3.FreshInt()
                off = first - z3.ToReal(whole)
                self.meant += [off <= 0.5, off >= -0.5, z3.Implies(z3.Or(off == 0.5, off == -0.5), whole % 2 == 0)]
                return z3.ToReal(whole)
            case "where":
                return z3.If(first != 0, values[1], last)
            case "sqrt":
                root = z3.FreshReal()
                self.meant += [root >= 0, root * root == first]
                return root
            case "exp":
                return self.exponential(first)
            case "tanh":  # (e^2 - 1) / (e^2 + 1) for e = exp(v)
                square = self.exponential(first) * self.exponential(first)
                return (square - 1) / (square + 1)
        truths = {
            "positive": lambda: first > 0, "zero": lambda: first == 0, "less": lambda: first < last, "less_equal": lambda: first <= last,
            "equal": lambda: first == last, "and_": lambda: z3.And(first != 0, last != 0), "or_": lambda: z3.Or(first != 0, last != 0),
            "not_": lambda: first == 0,
        }  # fmt: skip
        return z3.If(truths[name](), z3.RealVal(1), z3.RealVal(0))

    def exponential(self, value: Any) -> Any:
        """Return e > 0 with e > 1 if the exponent is positive; the negated exponent gives the reciprocal."""
        named = z3.Function("exp", z3.RealSort(), z3.RealSort())
        positive, opposite = named(z3.simplify(value)), named(z3.simplify(-value))
        self.meant += [positive > 0, opposite > 0, positive * opposite == 1, (positive > 1) == (value > 0), (positive == 1) == (value == 0)]
        return positive


def by_z3(law: Law) -> None:
    formula = Formula(z3.Int if law.way == "integers" else z3.Real)
    given, left, right = [formula.of(condition) for condition in law.given], formula.of(law.left), formula.of(law.right)
    solver = z3.Solver()
    solver.set("rlimit", RESOURCES)
    solver.add(*given, *formula.meant, left != right)
    assert solver.check() == z3.unsat, solver.model() if solver.check() == z3.sat else law.name
    satisfiable = z3.Solver()
    satisfiable.add(*given, *formula.meant)
    assert satisfiable.check() != z3.unsat, f"nothing is said by {law.name}"


# Exponentials and logarithms

FIELDS = ((23, 2), (47, 2))
"""Primes p = 2 q + 1 with q prime, and a generator of the q squares, in which every element has one root."""


class Exponent:
    """An exponent modulo q."""

    def __init__(self, value: int, q: int) -> None:
        self.value, self.q = value % q, q

    def __add__(self, other: Exponent) -> Exponent:
        return Exponent(self.value + other.value, self.q)

    def __sub__(self, other: Exponent) -> Exponent:
        return Exponent(self.value - other.value, self.q)

    def __neg__(self) -> Exponent:
        return Exponent(-self.value, self.q)

    def __rmul__(self, factor: int) -> Exponent:
        return Exponent(factor * self.value, self.q)

    def __truediv__(self, divisor: int) -> Exponent:
        return Exponent(self.value * pow(divisor, -1, self.q), self.q)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exponent) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


class Element:
    """An element of F_p."""

    def __init__(self, value: int, p: int) -> None:
        self.value, self.p = value % p, p

    def __add__(self, other: Element) -> Element:
        return Element(self.value + other.value, self.p)

    def __mul__(self, other: Element) -> Element:
        return Element(self.value * other.value, self.p)

    def __rtruediv__(self, number: int) -> Element:
        return Element(number * pow(self.value, -1, self.p), self.p)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Element) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


def by_exponents(law: Law) -> None:
    for p, generator in FIELDS:
        q = (p - 1) // 2
        powers = [pow(generator, k, p) for k in range(q)]
        assert len(set(powers)) == q
        functions = {
            "exp": lambda a, p=p, powers=powers: Element(powers[a.value], p),
            "log": lambda x, q=q, powers=powers: Exponent(powers.index(x.value), q),
            "sqrt": lambda x, p=p, q=q: Element(pow(x.value, (q + 1) // 2, p), p),
        }  # fmt: skip
        for a, b in product(range(q), repeat=2):
            names = {"a": Exponent(a, q), "b": Exponent(b, q), "p": Element(powers[a], p), "q": Element(powers[b], p), **functions}
            assert eval(law.left, {}, names) == eval(law.right, {}, names), (p, a, b)


# Power series

LENGTH = 40


class Series:
    """The first coefficients of a power series in x."""

    def __init__(self, coefficients: list[Fraction]) -> None:
        self.coefficients = coefficients

    def __neg__(self) -> Series:
        return Series([-c for c in self.coefficients])

    def __mul__(self, other: Series) -> Series:
        mine, others = self.coefficients, other.coefficients
        return Series([sum((mine[k] * others[n - k] for k in range(n + 1)), Fraction(0)) for n in range(LENGTH)])

    def __rsub__(self, number: int) -> Series:
        return Series([number - self.coefficients[0], *(-c for c in self.coefficients[1:])])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Series) and self.coefficients == other.coefficients

    __hash__ = None  # type: ignore[assignment]


def series(coefficient: Callable[[int], Fraction]) -> Callable[[int], Series]:
    """Return f where f(1) is f(x) and f(-1) is f(-x)."""
    return lambda sign: Series([coefficient(n) * sign**n for n in range(LENGTH)])


def odd_part(n: int, coefficient: Fraction) -> Fraction:
    return coefficient * (-1) ** (n // 2) if n % 2 else Fraction(0)


SERIES = {
    "sin": series(lambda n: odd_part(n, Fraction(1, math.factorial(n)))),
    "cos": series(lambda n: Fraction(0) if n % 2 else Fraction((-1) ** (n // 2), math.factorial(n))),
    "erf": series(lambda n: odd_part(n, Fraction(1, math.factorial(n // 2) * n) if n else Fraction(0))),  # times 2 / sqrt(pi)
}


def by_series(law: Law) -> None:
    assert eval(law.left, {}, {**SERIES, "x": 1}) == eval(law.right, {}, {**SERIES, "x": 1})


# Order


def by_order(law: Law) -> None:
    function = FUNCTIONS[law.name.split()[0]].real
    assert law.left == f"max({law.name.split()[0]}(x), {law.name.split()[0]}(y))"
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
    ordered = np.sort(numbers[~np.isnan(numbers)])
    with np.errstate(all="ignore"):
        values = np.asarray(function(ordered))
    values = values[~np.isnan(values)]  # points at which the function is NaN are skipped
    assert len(values) > 30_000 and (values[:-1] <= values[1:]).all()


# Small domains

SMALL: Mapping[str, tuple[Any, ...]] = {
    "x": (*(Fraction(k, 6) for k in range(-9, 10)), Fraction(5, 2), Fraction(-7, 2)), "c": (False, True), "d": (False, True),
    "i": tuple(range(-2, 5)), "k": tuple(range(3)), "n": tuple(range(4)),
    "f": ((5, -7, 11, 13), (0, 3, 0, 1), (-2, -2, 4, 0)), "g": ((2, 17, -3, 1), (1, 0, 0, 8)), "h": (tuple(range(3, 30)),),
}  # fmt: skip
NAMES = {"floor": math.floor, "ceil": math.ceil, "prod": math.prod, "inf": math.inf, "math": math, "Fraction": Fraction}


def by_small_numbers(law: Law) -> None:
    texts = [compile(text, law.name, "eval") for text in (law.left, law.right, *law.given)]
    names = sorted({each for text in texts for each in names_of(text)} & SMALL.keys())
    compared = 0
    for values in product(*(SMALL[name] for name in names)):
        at = {**NAMES, **dict(zip(names, values, strict=True))}
        if all(eval(text, at) for text in texts[2:]):
            assert eval(texts[0], at) == eval(texts[1], at), dict(zip(names, values, strict=True))
            compared += 1
    assert compared


def names_of(code: Any) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_cellvars
    for inner in code.co_consts:
        if hasattr(inner, "co_names"):
            yield from names_of(inner)


WAYS: Mapping[str, Callable[[Law], None]] = {
    "reals": by_z3, "integers": by_z3, "exponents": by_exponents, "series": by_series, "order": by_order, "finite": by_small_numbers,
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_law_holds(law: Law) -> None:
    WAYS[law.way](law)


FALSE = (
    Law("root", "reals", "sqrt(x * x)", "x", ()), Law("maximum", "reals", "max(a * x, a * y)", "a * max(x, y)", ()),
    Law("floor", "reals", "positive(floor(x) - 2)", "positive(x - 2)", ()),
    Law("tanh", "reals", "positive(tanh(x) - 1)", "positive(x)", ()),
    Law("bounds", "integers", "not 0 <= v", "0 <= -v", ()), Law("exponential", "exponents", "exp(a - b)", "exp(a) * exp(b)", ()),
    Law("logarithm", "exponents", "log(p * q)", "log(p) - log(q)", ()), Law("cosine", "series", "cos(-x)", "-cos(x)", ()),
    Law("sin rises", "order", "max(sin(x), sin(y))", "sin(max(x, y))", ()), Law("round", "finite", "round(x + i)", "round(x) + i", ()),
    Law("sum", "finite", "sum(f[j] for j in range(n) if j == i)", "f[i]", ()),
)  # fmt: skip


@pytest.mark.parametrize("law", FALSE, ids=lambda law: f"{law.way}: {law.name}")
def test_a_false_law_is_refuted(law: Law) -> None:
    with pytest.raises(AssertionError):
        WAYS[law.way](law)


# The normal form applies the laws


def scalar(text: str, given: tuple[str, ...]) -> Scalar:
    """Return a law's side as an expression: positive names become exponentials, nonnegative ones magnitudes."""
    bounds: dict[str, str] = dict(condition.split(" ", 1) for condition in given if re.fullmatch(r"\w (>|>=|!=) 0", condition))

    def of(node: ast.expr) -> Scalar:
        match node:
            case ast.Name(name):
                read = Read(Tensor(name, ()), ())
                relation = bounds.get(name, "> 0" if name in "pq" and "exponents" in given else "")
                return apply("exp", read) if relation == "> 0" else apply("abs", read) if relation == ">= 0" else read
            case ast.Constant(int() | float() as value):
                return number(value)
            case ast.UnaryOp(ast.USub(), operand):
                return apply("neg", of(operand))
            case ast.BinOp(left, kind, right):
                name = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div"}[type(kind)]
                return apply(name, of(left), of(right))
            case ast.Call(ast.Name("positive"), [value]):
                return apply("less", number(0), of(value))
            case ast.Call(ast.Name("zero"), [value]):
                return apply("equal", of(value), number(0))
            case ast.Call(ast.Name(name), arguments):
                return apply(name, *map(of, arguments))
        raise AssertionError(ast.dump(node))

    return of(ast.parse(text, mode="eval").body)


ELSEWHERE = ("condition by a factor", "common bound", "condition on a quotient")
"""Laws that apply only to reductions, their results or sizes; operators and programs test them (test_verify_normal.py)."""


def applicable(law: Law) -> bool:
    plain = all(re.fullmatch(r"\w (>|>=|!=) 0", condition) for condition in law.given)
    return law.way in ("reals", "exponents", "series") and plain and not re.search("[<=>]", law.left) and law.name not in ELSEWHERE


@pytest.mark.parametrize("law", [law for law in LAWS if applicable(law)], ids=lambda law: law.name)
def test_the_normal_form_applies_a_law_and_records_what_it_asks(law: Law) -> None:
    facts: set[str] = set()
    given = (*law.given, "exponents") if law.way == "exponents" and not law.asks else law.given if not law.asks else ()
    left, right = (str(normalise(Scope.pointwise((), scalar(each, given)), (), Assumptions(), facts)) for each in (law.left, law.right))
    assert left == right
    assert facts == ({law.asks} if law.asks else set())


# The table is complete

RESULTS = re.compile(
    r"\b(Value|Term|Factor|Call|Candidate|Conditions|Compare|Extremum|Product|Corner|Element|Substitution)\b|^(int|bool) \| None$"
)


def rewriting() -> set[str]:
    """Return the functions of the normal form that return values, conditions or facts about them."""
    functions = set()
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.returns is not None and RESULTS.search(ast.unparse(node.returns)):
                functions.add(f"{path.stem}.{node.name}")
    return functions


def test_what_rewrites_has_a_law() -> None:
    named = {name for law in LAWS for name in law.used}
    assert named | set(PASSING) == rewriting() and not named & set(PASSING)


def test_facts_are_those_of_laws() -> None:
    recorded = {fact for path in FOLDER.glob("*.py") for fact in re.findall(r'context\.use\("([^"]+)"\)', path.read_text())}
    without_law = {"arithmetic with infinite constants"}  # not a law: the fact states that none is used for them
    assert recorded == {law.asks for law in LAWS if law.asks} | without_law


def test_names_are_unique_and_every_way_is_described() -> None:
    assert len({law.name for law in LAWS}) == len(LAWS) and HOW.keys() == WAYS.keys() == {law.way for law in LAWS}
