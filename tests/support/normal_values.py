"""An independent evaluator of normal forms, in floating point and in a prime field."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Mapping
from fractions import Fraction
from random import Random
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from egraph.tensor.expr.evaluate import evaluate
from egraph.tensor.expr.functions import FUNCTIONS, PRIME
from egraph.tensor.expr.index import DataIndex, Floor, Iterator, Modulo, Size, Symbol, index
from egraph.tensor.expr.scope import Compare, Read, Scope, Tensor
from verify.assumptions import Assumptions
from verify.normal import Call, Element, Extremum, IndexFactor, Product, Term, Value, normalise
from verify.normal.tables import grid_of
from verify.normal.terms import Factor

Environment: TypeAlias = Mapping[object, int]
Data: TypeAlias = Mapping[str, np.ndarray]
Number = TypeVar("Number", int, float)


class Field(Protocol[Number]):
    """Number systems of values."""

    def number(self, value: Fraction) -> Number: ...

    def read(self, element: np.generic) -> Number: ...

    def call(self, name: str, arguments: list[Number]) -> Number: ...

    def plus(self, left: Number, right: Number) -> Number: ...

    def times(self, left: Number, right: Number) -> Number: ...


class Reals:
    """Floating point; conditions on data are compared as they are written."""

    def number(self, value: Fraction) -> float:
        return float(value)

    def read(self, element: np.generic) -> float:
        return float(element)

    def call(self, name: str, arguments: list[float]) -> float:
        match name, arguments:
            case "infinity", []:
                return math.inf
            case "positive", [v]:
                return float(v > 1e-12)
            case "zero", [v]:
                return float(abs(v) <= 1e-12)
        return float(FUNCTIONS[name].real(*(np.asarray(a, float) for a in arguments)))

    def plus(self, left: float, right: float) -> float:
        return left + right

    def times(self, left: float, right: float) -> float:
        return 0.0 if left == 0 or right == 0 else left * right  # the value under a false condition may be infinite


class Residues:
    """The field of PRIME elements, for rational values."""

    def number(self, value: Fraction) -> int:
        return value.numerator * pow(value.denominator, -1, PRIME) % PRIME

    def read(self, element: np.generic) -> int:
        return int(element)

    def call(self, name: str, arguments: list[int]) -> int:
        if name == "reciprocal":
            return pow(arguments[0], -1, PRIME)
        raise AssertionError(f"{name} is not rational")

    def plus(self, left: int, right: int) -> int:
        return (left + right) % PRIME

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
                case DataIndex(Read(Tensor() as source, indices)):
                    product *= int(data[source.name][tuple(at(i, where, data) for i in indices)])
                case _:
                    product *= where[atom]
        total += product
    return total


def holds(condition: Compare, where: Environment, data: Data) -> bool:
    left, right = at(condition.left, where, data), at(condition.right, where, data)
    return {"<": left < right, "<=": left <= right, "==": left == right, "!=": left != right}[condition.operator]


class Evaluator(Generic[Number]):
    """Evaluates normal forms point by point, following the definitions of their types."""

    def __init__(self, data: Data, field: Field[Number]) -> None:
        self.data = data
        self.field: Field[Number] = field

    def points(
        self, iterators: tuple[Iterator, ...], conditions: tuple[Compare, ...], where: Environment
    ) -> Generator[Environment, None, None]:
        for point in itertools.product(*(range(at(i.low, where, self.data), at(i.high, where, self.data)) for i in iterators)):
            inner: dict[object, int] = dict(where)
            inner.update(zip(iterators, point, strict=True))
            if all(holds(c, inner, self.data) for c in conditions):
                yield inner

    def value(self, value: Value, where: Environment) -> Number:
        total = self.field.number(Fraction(0))
        for term in value.terms:
            for inner in self.points(term.iterators, term.conditions, where):
                total = self.field.plus(total, self.term(term, inner))
        return total

    def term(self, term: Term, where: Environment) -> Number:
        hidden: list[Factor] = [f for f in term.factors if isinstance(f, Call) and f.function in ("positive", "zero")]
        product = self.field.number(term.coefficient)
        for factor in (*hidden, *(f for f in term.factors if f not in hidden)):
            if product == 0:
                return product
            product = self.field.times(product, self.factor(factor, where))
        return product

    def factor(self, factor: Factor, where: Environment) -> Number:
        match factor:
            case Element(tensor, shape, indices):
                grid = grid_of(factor)
                place = tuple(at(i, where, self.data) for i in indices)
                assert all(0 <= p < at(n, where, self.data) for p, n in zip(place, shape, strict=True)), "a read outside its tensor"
                if grid is not None:
                    return self.field.number(Fraction(int(grid.array[place])))
                return self.field.read(self.data[tensor][place])
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


def binders(value: Value) -> Generator[Iterator, None, None]:
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
    """Check that the normal form of a scope has the scope's value at random positions."""
    value = normal(scope)
    symbols = symbols or {}
    expected = evaluate(scope, data, "prime" if exact else "float64", symbols)
    output = output_of(scope)
    of_value: Callable[[Value, Environment], float] = Evaluator(data, Residues()).value if exact else Evaluator(data, Reals()).value
    for _ in range(4):
        place = [random.randrange(size) for size in expected.shape]
        where: dict[object, int] = dict(symbols.items())
        where.update(zip(output, place, strict=True))
        found = of_value(value, where)
        wanted = expected[tuple(place)]
        if exact:
            assert found == int(wanted), (str(value), place)
        elif np.isfinite(wanted) and np.isfinite(found):
            assert abs(found - wanted) <= 1e-7 * max(1.0, abs(wanted)), (str(value), place, found, wanted)
