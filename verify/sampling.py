"""Compare two expressions at a few output positions, on operands that are a random function of the position.

A difference refutes equality at once; agreement proves nothing. Only the elements that those positions need are evaluated, exactly
in a prime field if all functions are rational, else in float64 with a tolerance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul
from random import Random

import numpy as np

from egraph.tensor.expr.bodies import walked
from egraph.tensor.expr.functions import FUNCTIONS, RATIONAL
from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, Size, Symbol, atoms, bounds, index, substitute
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor
from verify.named_arrays import PRIME, Algebra, Array, Named, Untestable, combined, inverse, reduced, single, whole

POSITIONS = 4
TOLERANCE = 1e-6
"""Largest accepted difference in float64, relative to the largest value. Rounding errors are smaller, real differences hardly ever."""
MOST_TABLES = 32
"""Most operands whose values are cached: those of both sides of a comparison."""
TABLE_SHARE, MOST_TABLED = 4, 1 << 19
"""An operand is drawn as a whole table, once, if it has at most ``TABLE_SHARE`` times as many elements as are read from it together, and
at most ``MOST_TABLED``. Positions of a large result read the same elements repeatedly. A table takes 8 bytes per element."""
Position = tuple[int, ...]
Positions = Sequence[Position] | np.ndarray
"""Positions, or an array with a row for each."""


def drawn(shape: Sequence[Size], seed: int = 0) -> list[Position]:
    """Return some positions in a tensor: the first, the last, and others, including ends of axes."""
    sizes = [bounds(size) for size in shape]
    if any(size is None or size[0] != size[1] for size in sizes):
        return []
    ends = [size[1] for size in sizes if size is not None]
    random = Random(seed)
    inner = [
        tuple(random.choice((0, n - 1, random.randrange(n), random.randrange(n), random.randrange(n))) for n in ends)
        for _ in range(POSITIONS - 2)
    ]
    return [tuple(0 for _ in ends), tuple(n - 1 for n in ends), *inner]


def difference(left: Scope, right: Scope, positions: Positions) -> str:
    """Return a position at which two expressions differ, with both values; '' if none is found or nothing can be tested."""
    try:
        return difference_at(left, right, positions)
    except (Untestable, MemoryError):
        return ""


def difference_at(left: Scope, right: Scope, positions: Positions) -> str:
    """Return the same as ``difference``, but raise ``Untestable`` if the test is impossible or there are too many positions at once."""
    if not len(positions):
        return ""
    output = tuple(Iterator(f"o{axis}", 0, size) for axis, size in enumerate(left.shape))
    columns = np.ascontiguousarray(np.asarray(positions, np.int64).reshape(len(positions), len(output)).T)
    places = dict(zip(output, columns, strict=True))
    algebra = Algebra(is_rational(left.body) and is_rational(right.body))
    with np.errstate(all="ignore"):
        values = [Sampler(algebra, places).at(side, tuple(map(index, output))).values for side in (left, right)]
    first, second = (np.broadcast_to(value, len(positions)) for value in values)
    scale = float(np.abs(first[np.isfinite(first)]).max(initial=0.0))
    apart = first != second if algebra.exact else ~np.isclose(first, second, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True)
    if not apart.any():
        return ""
    number = int(np.argmax(apart))
    where = ", ".join(str(coordinate) for coordinate in positions[number])
    field_of = f" modulo {PRIME}" if algebra.exact else ""
    return f"the sides differ at [{where}]: {first[number]:.12g} and {second[number]:.12g}{field_of}, on random operands"


def is_rational(body: Scalar) -> bool:
    """Return whether a prime field has all of a scalar's functions."""

    def known(part: Scalar) -> bool:
        match part:
            case Apply(function):
                return function in RATIONAL
            case Read(Scope() as inner, _):
                return inner.reduction == "sum" and is_rational(inner.body)
            case Number(value):
                return not isinstance(value, float)
        return True

    return all(map(known, walked(body)))


Places = Mapping[Iterator | Symbol, Size]


@dataclass
class Sampler:
    """Evaluates scopes at some values of the output iterators (along axis 0); every summed iterator is an axis of its own."""

    algebra: Algebra
    output: Mapping[Iterator, Array]
    axes: dict[Iterator, int] = field(default_factory=dict)
    known: dict[tuple[int, tuple[Index, ...]], tuple[Scope, Named]] = field(default_factory=dict)
    indices: dict[Index, Named] = field(default_factory=dict)
    tests: Array | None = None
    """The test number of each value along axis 0 if there are several tests; each test has operands of its own."""

    def at(self, scope: Scope, places: tuple[Index, ...]) -> Named:
        """Return scope[places]."""
        key = id(scope), places
        if key not in self.known:
            self.known[key] = scope, self._at(scope, places)
        return self.known[key][1]

    def _at(self, scope: Scope, places: tuple[Index, ...]) -> Named:
        where: dict[Iterator | Symbol, Size] = dict(zip(scope.traversal, places, strict=True))
        lengths: dict[int, int] = {}
        for iterator in scope.summation:
            axis = len(self.axes) + 1
            fresh = Iterator(f"~{axis}", iterator.low, iterator.high)
            self.axes[fresh], where[iterator], lengths[axis] = axis, index(fresh), len(_range(fresh))
        factors = self.factors(scope.body, where)
        if not lengths:
            return self.algebra.product(factors)
        if scope.reduction == "sum":
            return self.algebra.contracted(factors, lengths)
        value = self.algebra.product(factors)
        over = tuple(position for position, axis in enumerate(value.axes) if axis in lengths)
        if scope.reduction == "prod" and len(over) != len(lengths):
            raise Untestable("a product over what nothing depends on")
        reduced = np.asarray(getattr(np, scope.reduction)(value.values, axis=over))
        return Named(tuple(axis for axis in value.axes if axis not in lengths), reduced)

    def factors(self, body: Scalar, where: Places) -> list[Named]:
        """Return arrays whose product is the scalar."""
        match body:
            case Apply("mul", (left, right)):
                return self.factors(left, where) + self.factors(right, where)
            case Guarded(conditions, then, Number(value)) if value == 0:
                parts = self.factors(then, where)
                if self.algebra.exact or all(np.isfinite(part.values).all() for part in parts):  # zero times infinity is not zero
                    return [*(self.condition(c, where) for c in conditions), *parts]
        return [self.scalar(body, where)]

    def scalar(self, body: Scalar, where: Places) -> Named:
        match body:
            case Number(value):
                return single(value if isinstance(value, float) else self.number(value.numerator, value.denominator))
            case IndexNumber(value):
                return combined(lambda v: self.algebra.kept(v.astype(np.float64)), self.index(self.place(value, where)))
            case Read(Scope() as inner, indices):
                return self.at(inner, tuple(self.place(i, where) for i in indices))
            case Read(source, indices):
                assert isinstance(source, Tensor), "a read is of a tensor or of a scope"
                return self.element(source, [self.index(self.place(i, where)) for i in indices])
            case Table(shape, entries, indices):
                flat = np.array([self.number(v.numerator, v.denominator) for v in entries])
                return combined(lambda n: flat[n], self.row_major(shape, [self.index(self.place(i, where)) for i in indices]))
            case Guarded(conditions, then, otherwise):
                holds = self.algebra.product([self.condition(c, where) for c in conditions])
                branches = self.scalar(then, where), self.scalar(otherwise, where)
                return combined(lambda h, a, b: np.asarray(np.where(h != 0, a, b)), holds, *branches)
            case Apply(function, arguments):
                return combined(lambda *a: self.call(function, a), *(self.scalar(a, where) for a in arguments))

    def place(self, value: Index, where: Places) -> Index:
        if any(isinstance(atom, DataIndex) for atom in atoms(value)):
            raise Untestable("an index that is read from a tensor")
        return substitute(value, where)

    def number(self, numerator: int, denominator: int) -> float:
        if not self.algebra.exact:
            return numerator / denominator
        if denominator % PRIME == 0:
            raise Untestable(f"a constant divided by {PRIME}")
        return float(numerator * pow(denominator, -1, PRIME) % PRIME)

    def call(self, function: str, arguments: Sequence[Array]) -> Array:
        if not self.algebra.exact:
            return np.asarray(FUNCTIONS[function].real(*arguments))
        match function, arguments:
            case "add", (a, b):
                return reduced(a + b)
            case "sub", (a, b):
                return reduced(a - b)
            case "mul", (a, b):
                return reduced(a * b)
            case "neg", (a,):
                return reduced(-a)
            case "div", (a, b):
                return reduced(a * inverse(b))
            case "reciprocal", (a,):
                return inverse(a)
        raise Untestable(f"{function} in a prime field")

    def condition(self, condition: Compare, where: Places) -> Named:
        """Return the truth of a condition as ones and zeros."""
        value = self.index(self.place(condition.right - condition.left, where))
        v = value.values
        truth = {"<": v > 0, "<=": v >= 0, "==": v == 0, "!=": v != 0}[condition.operator]
        return Named(value.axes, np.asarray(truth, np.float64))

    def index(self, value: Index) -> Named:
        if value not in self.indices:
            total = whole(0)
            for monomial, coefficient in value.terms:
                product = whole(coefficient)
                for atom in monomial:
                    product = combined(np.multiply, product, self._atom(atom))
                total = combined(np.add, total, product)
            self.indices[value] = total
        return self.indices[value]

    def _atom(self, atom: object) -> Named:
        match atom:
            case Iterator():
                if atom in self.output:
                    return Named((0,), self.output[atom])
                return Named((self.axes[atom],), np.array(_range(atom), np.int64))
            case Floor(a, b):
                return combined(np.floor_divide, self.index(a), self.index(b))
            case Modulo(a, b):
                return combined(np.remainder, self.index(a), self.index(b))
        raise Untestable(f"{atom} in an index")

    def row_major(self, shape: Sequence[Size], places: Sequence[Named]) -> Named:
        """Return the row-major number of a position; if a guard forbids the read, the number is arbitrary.

        Coordinates with few axes are added first, so that only one sum is computed over the array with all axes.
        """
        extents = [index(size).constant for size in shape]
        if None in extents:
            raise Untestable("a symbolic size")
        sizes = [extent for extent in extents if extent is not None]
        strides = [*accumulate(reversed(sizes[1:]), mul, initial=1)][::-1] if sizes else []
        total = whole(0)
        for size, stride, position in sorted(zip(sizes, strides, places, strict=True), key=lambda each: each[2].values.size):
            total = combined(np.add, total, Named(position.axes, np.clip(position.values, 0, size - 1) * stride))
        return total

    def element(self, tensor: Tensor, places: Sequence[Named]) -> Named:
        """Return elements of an operand, a random function of its name and the position."""
        number = self.row_major(tensor.shape, places)
        elements = prod(index(size).constant or 0 for size in tensor.shape)  # row_major has refused symbolic sizes
        if self.tests is not None:
            number = combined(lambda n, t: n + t * elements, number, Named((0,), self.tests))
        elif 0 < elements <= min(MOST_TABLED, TABLE_SHARE * number.values.size):
            return Named(number.axes, _table(tensor.name, tensor.dtype, self.algebra.exact, elements)[number.values])
        return Named(number.axes, _drawn(number.values, tensor.name, tensor.dtype, self.algebra.exact))


def _drawn(number: Array, name: str, dtype: str, exact: bool) -> Array:
    """Return elements of an operand, by their row-major numbers."""
    state = number.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(sum(map(ord, name)) * 2654435761 + 12345)
    state ^= state >> np.uint64(29)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(32)
    if dtype == "bool":
        return (state & np.uint64(1)).astype(np.float64)
    values = (state % np.uint64(PRIME)).astype(np.float64)
    return values if exact else values * (4.0 / PRIME) - 2.0


@lru_cache(maxsize=MOST_TABLES)
def _table(name: str, dtype: str, exact: bool, elements: int) -> Array:
    return _drawn(np.arange(elements), name, dtype, exact)


def _range(iterator: Iterator) -> range:
    low, high = index(iterator.low).constant, index(iterator.high).constant
    if low is None or high is None:
        raise Untestable("a symbolic range")
    return range(low, high)
