"""Normal forms keep the value: an evaluator of their own agrees with the meanings of the operators and of their compositions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egraph.expr.compose import inline
from egraph.expr.evaluate import evaluate
from egraph.expr.functions import FUNCTIONS, PRIME
from egraph.expr.index import DataIndex, Floor, Iterator, Modulo, Size, Symbol, index
from egraph.expr.scope import Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Tensor, apply, number
from egraph.ops import OPS
from verify.assumptions import Assumptions
from verify.normal import Call, Element, Extremum, IndexFactor, Product, Term, TooLarge, Value, normalise
from verify.normal.tables import grid_of
from verify.normal.terms import Factor

Environment = Mapping[object, int]
Data = Mapping[str, np.ndarray]


class Reals:
    """Floating point; a condition on data is compared as it stands."""

    def number(self, value: Fraction) -> float:
        return float(value)

    def call(self, name: str, arguments: list[float]) -> float:
        match name, arguments:
            case "infinity", []:
                return math.inf
            case "positive", [v]:
                return float(v > 1e-12)
            case "zero", [v]:
                return float(abs(v) <= 1e-12)
        return float(FUNCTIONS[name].real(*(np.asarray(a, float) for a in arguments)))

    def times(self, left: float, right: float) -> float:
        return 0.0 if left == 0 or right == 0 else left * right  # what a condition hides may be infinite


class Residues:
    """The field of PRIME elements, for rational values."""

    def number(self, value: Fraction) -> int:
        return value.numerator * pow(value.denominator, -1, PRIME) % PRIME

    def call(self, name: str, arguments: list[int]) -> int:
        if name == "reciprocal":
            return pow(arguments[0], -1, PRIME)
        raise AssertionError(f"{name} is not rational")

    def times(self, left: int, right: int) -> int:
        return left * right % PRIME


def at(value: Size, where: Environment, data: Data) -> int:
    """Evaluate an index."""
    total = 0
    for monomial, coefficient in index(value).terms:
        product = coefficient
        for atom in monomial:
            match atom:
                case Floor(a, b):
                    product *= at(a, where, data) // at(b, where, data)
                case Modulo(a, b):
                    product *= at(a, where, data) % at(b, where, data)
                case DataIndex(Read(source, indices)):
                    product *= int(data[source.name][tuple(at(i, where, data) for i in indices)])  # type: ignore[union-attr]
                case _:
                    product *= where[atom]
        total += product
    return total


def holds(condition: Compare, where: Environment, data: Data) -> bool:
    left, right = at(condition.left, where, data), at(condition.right, where, data)
    return {"<": left < right, "<=": left <= right, "==": left == right, "!=": left != right}[condition.operator]


class Evaluator:
    """Evaluates normal forms point by point, straight from what their types say."""

    def __init__(self, data: Data, field: Reals | Residues) -> None:
        self.data, self.field = data, field

    def points(self, iterators: tuple[Iterator, ...], conditions: tuple[Compare, ...], where: Environment):
        for point in itertools.product(*(range(at(i.low, where, self.data), at(i.high, where, self.data)) for i in iterators)):
            inner = {**where, **dict(zip(iterators, point, strict=True))}
            if all(holds(c, inner, self.data) for c in conditions):
                yield inner

    def value(self, value: Value, where: Environment):
        total = self.field.number(Fraction(0))
        for term in value.terms:
            for inner in self.points(term.iterators, term.conditions, where):
                total = total + self.term(term, inner)
        return total if isinstance(self.field, Reals) else total % PRIME

    def term(self, term: Term, where: Environment):
        hidden = [f for f in term.factors if isinstance(f, Call) and f.function in ("positive", "zero")]
        product = self.field.number(term.coefficient)
        for factor in (*hidden, *(f for f in term.factors if f not in hidden)):
            if product == 0:
                return product
            product = self.field.times(product, self.factor(factor, where))
        return product

    def factor(self, factor: Factor, where: Environment):
        match factor:
            case Element(tensor, shape, indices):
                grid = grid_of(factor)
                place = tuple(at(i, where, self.data) for i in indices)
                assert all(0 <= p < at(n, where, self.data) for p, n in zip(place, shape, strict=True)), "a read outside its tensor"
                if grid is not None:
                    return self.field.number(Fraction(int(grid.array[place])))
                read = self.data[tensor][place]
                return float(read) if isinstance(self.field, Reals) else int(read)
            case IndexFactor(value):
                return self.field.number(Fraction(at(value, where, self.data)))
            case Call(function, arguments):
                return self.field.call(function, [self.value(a, where) for a in arguments])
            case Product(iterators, conditions, value):
                result = self.field.number(Fraction(1))
                for inner in self.points(iterators, conditions, where):
                    result = self.field.times(result, self.value(value, inner))
                return result
            case Extremum(kind, alternatives):
                values = [self.value(a.value, i) for a in alternatives for i in self.points(a.iterators, a.conditions, where)]
                assert values, "an extremum of nothing"
                return max(values) if kind == "max" else min(values)


def binders(value: Value):
    """Return every iterator that a value binds, once for each binder."""
    for term in value.terms:
        yield from term.iterators
        for factor in term.factors:
            match factor:
                case Call(_, arguments):
                    for argument in arguments:
                        yield from binders(argument)
                case Product(iterators, _, inner):
                    yield from iterators
                    yield from binders(inner)
                case Extremum(_, alternatives):
                    for alternative in alternatives:
                        yield from alternative.iterators
                        yield from binders(alternative.value)


def output_of(scope: Scope) -> tuple[Iterator, ...]:
    return tuple(Iterator(f"o{axis}", 0, size) for axis, size in enumerate(scope.shape))


def normal(scope: Scope, assumptions: Assumptions | None = None) -> Value:
    value = normalise(scope, tuple(index(i) for i in output_of(scope)), assumptions or Assumptions())
    names = [iterator.name for iterator in binders(value)]
    assert len(names) == len(set(names)), "names of iterators must be unique"
    return value


def check(scope: Scope, data: Data, random: Random, symbols: Mapping[Symbol, int] | None = None, *, exact: bool = False) -> None:
    """The normal form of a scope at random places is what the scope denotes there."""
    value = normal(scope)
    symbols = symbols or {}
    expected = evaluate(scope, data, "prime" if exact else "float64", symbols)
    output = output_of(scope)
    evaluator = Evaluator(data, Residues() if exact else Reals())
    for _ in range(4):
        place = [random.randrange(size) for size in expected.shape]
        found = evaluator.value(value, {**symbols, **dict(zip(output, place, strict=True))})
        wanted = expected[tuple(place)]
        if exact:
            assert found == int(wanted), (str(value), place)
        elif np.isfinite(wanted) and np.isfinite(found):
            assert abs(found - wanted) <= 1e-7 * max(1.0, abs(wanted)), (str(value), place, found, wanted)


RATIONAL = (
    "Add", "Sub", "Mul", "Div", "Neg", "Reciprocal", "MatMul", "Conv", "ConvTranspose", "ReduceSum", "ReduceMean", "ReduceProd",
    "AveragePool", "Reshape", "Transpose", "Concat", "Slice", "Pad", "Expand", "Gather",
)  # fmt: skip
LARGE_FORMS = ("Resize",)
"""Interpolation weights of two axes are products of many terms; some samples are refused as too large."""


def sampled(name: str, random: Random) -> tuple[Scope, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the meaning of a sample of an operator, with real data and residues."""
    spec = OPS[name]
    shapes, attributes = spec.sample(random)
    dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
    scope = spec.meaning([Tensor(str(k), s) for k, s in enumerate(shapes)], attributes)
    generator = np.random.default_rng(random.randrange(1 << 30))
    real: dict[str, np.ndarray] = {}
    whole: dict[str, np.ndarray] = {}
    for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        if dtype == "int64":
            limit = shapes[0][attributes["axis"]]
            real[str(k)] = whole[str(k)] = generator.integers(-limit, limit, shape)
        else:
            real[str(k)] = generator.integers(0, 2, shape).astype(float) if dtype == "bool" else generator.normal(size=shape)
            if name in ("Log", "Sqrt", "Pow"):
                real[str(k)] = np.abs(real[str(k)]) + 0.1
            whole[str(k)] = generator.integers(1, PRIME, shape)
    return scope, real, whole


@pytest.mark.parametrize("name", sorted(OPS))
def test_the_normal_form_of_every_operator_keeps_its_value(name: str) -> None:
    random = Random(name)
    for _ in range(8 if name.endswith("Normalization") else 5):
        scope, real, whole = sampled(name, random)
        if name in ("InstanceNormalization", "LayerNormalization") and real["0"].size > 60:
            continue  # three nested sums at every point
        try:
            check(scope, real, random)
        except TooLarge:
            assert name in LARGE_FORMS
            continue
        if name in RATIONAL:
            check(scope, whole, random, exact=True)


UNARY = (
    "Relu", "Abs", "Neg", "Sigmoid", "Tanh", "Exp", "HardSwish", "Softplus", "Sign", "Floor", "Ceil", "Round", "LeakyRelu", "Elu", "Clip",
    "Softsign", "Reciprocal", "Sqrt", "Log",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "Less", "LessOrEqual", "Equal", "Div")
KINDS = ("unary", "unary", "binary", "binary", "where", "reduce", "scale", "pool", "pad", "concat", "transpose")
SHAPE = (2, 3, 4)
SIZES = tuple(Symbol(f"n{axis}") for axis in range(3))


@st.composite
def programs(draw: st.DrawFn) -> Scope:
    """Draw a composition of operators over two tensors of one shape, and one of a single row."""
    sizes = [index(s) if draw(st.booleans()) else n for s, n in zip(SIZES, SHAPE, strict=True)]
    tensors: list[Scope | Tensor] = [Tensor("0", tuple(sizes)), Tensor("1", tuple(sizes)), Tensor("2", (1, sizes[1], 1))]
    random = Random(draw(st.integers(0, 1 << 20)))
    for step in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS))
        first = random.choice(tensors[2 * (len(tensors) > 3):])
        second = random.choice(tensors)
        name, attributes, operands = _step(kind, random, first, second, random.choice(tensors))
        if name is None:
            continue
        names = [f"t{step}_{k}" for k in range(len(operands))]
        leaves = [Tensor(n, o.shape) for n, o in zip(names, operands, strict=True)]
        meaning = OPS[name].meaning(leaves, attributes)
        tensors.append(inline(meaning, dict(zip(names, operands, strict=True))))
    last = tensors[-1]
    return last if isinstance(last, Scope) else OPS["Relu"].meaning([last], {})


def _step(kind: str, random: Random, first, second, third):
    attributes: dict[str, object] = {}
    match kind:
        case "unary":
            name = random.choice(UNARY)
            values = {"LeakyRelu": {"alpha": 0.25}, "Elu": {"alpha": 0.5}, "Clip": {"min": -0.5, "max": 0.75}}
            return name, values.get(name, attributes), [first]
        case "binary" if _fits(first, second):
            return random.choice(BINARY), attributes, [first, second]
        case "where" if _fits(first, second) and _fits(first, third) and _fits(second, third):
            return "Where", attributes, [first, second, third]
        case "reduce":
            kinds = ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd")
            return random.choice(kinds), {"axes": random.choice(((0,), (1,), (2,), (1, 2)))}, [first]
        case "scale":
            return random.choice(("Softmax", "LogSoftmax")), {"axis": random.randrange(3)}, [first]
        case "pool":
            window = {"kernel_shape": (2,), "strides": (1,), "pads": (1, 1), "dilations": (1,), "layout": random.choice(("NCHW", "NHWC"))}
            if random.random() < 0.5:
                return "MaxPool", window, [first]
            return "AveragePool", {**window, "count_include_pad": random.randint(0, 1)}, [first]
        case "pad":
            border = tuple(random.randint(0, 1) for _ in range(3)), tuple(random.randint(0, 1) for _ in range(3))
            return "Pad", {"before": border[0], "after": border[1], "mode": "constant", "value": 0.5}, [first]
        case "concat" if first.shape == second.shape:
            return "Concat", {"axis": 1}, [first, second]
        case "transpose":
            return "Transpose", {"perm": (0, 2, 1)}, [first]
    return None, attributes, []


def _fits(left: Scope | Tensor, right: Scope | Tensor) -> bool:
    return all(index(a) == index(b) or 1 in (a, b) for a, b in zip(left.shape, right.shape, strict=True))


@given(programs(), st.integers(0, 1 << 20))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_the_normal_form_of_a_composition_keeps_its_value(scope: Scope, seed: int) -> None:
    generator = np.random.default_rng(seed)
    data = {"0": generator.normal(size=SHAPE), "1": generator.normal(size=SHAPE), "2": generator.normal(size=(1, 3, 1))}
    try:
        with np.errstate(all="ignore"):
            check(scope, data, Random(seed), dict(zip(SIZES, SHAPE, strict=True)))
    except TooLarge:
        return


X, Y, Z = (Read(Tensor(name, ()), ()) for name in "xyz")
ONE_ = Number(Fraction(1))


def scalar(body: Scalar, assumptions: Assumptions | None = None) -> str:
    """Return the normal form of a scalar expression over x, y and z as text."""
    return str(normal(Scope((), (), "sum", body), assumptions))


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
    normalise(Scope((), (), "sum", apply("mul", X, apply("reciprocal", X))), (), Assumptions(), facts)
    assert facts == {"nonzero divisor"}
    facts.clear()
    normalise(Scope((), (), "sum", apply("div", X, apply("add", apply("abs", X), ONE_))), (), Assumptions(), facts)
    assert not facts
    third = Scope((), (), "sum", apply("mul", X, number(1 / 3)))
    assert str(normalise(third, (), Assumptions(), facts)) == "1/3 * $x[]" and facts == {"constants are rounded"}


def test_sums_fold() -> None:
    """mean(1) = 1, a one-point sum is its term, and a constant sums to the size of the range."""
    n = index(Symbol("n"))
    i, k = Iterator("i", 0, n), Iterator("k", 0, n)
    row = Tensor("x", (n,))
    mean = apply("div", Read(Scope((), (k,), "sum", ONE_), ()), Read(Scope((), (k,), "sum", ONE_), ()))
    assert scalar(mean) == "1"
    picked = Scope((i,), (k,), "sum", Guarded((Compare(index(k), "==", index(i)),), Read(row, (index(k),)), Number(Fraction(0))))
    assert str(normal(picked)) == "$x[o0]"
    assert scalar(Read(Scope((), (k,), "sum", X), ())) == "<n> * $x[]"


def test_a_size_and_an_iterator_may_have_one_name() -> None:
    size, i = Symbol("o0"), Iterator("o0", 0, 5)
    difference = apply("sub", IndexNumber(index(size)), IndexNumber(index(i)))
    assert normalise(Scope((i,), (), "sum", difference), (index(i),), Assumptions()).terms


def test_a_variance_has_one_form() -> None:
    """mean((x - mean x)^2) = mean(x^2) - mean(x)^2, for all sizes"""
    n = index(Symbol("n"))
    k, j = Iterator("k", 0, n), Iterator("j", 0, n)
    row = Tensor("x", (n,))

    def mean(body: Callable[[Iterator], Scalar], over: Iterator) -> Scalar:
        return apply("div", Read(Scope((), (over,), "sum", body(over)), ()), IndexNumber(index(n)))

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
