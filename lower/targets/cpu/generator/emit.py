"""Emit terms as TIR values at points, each computed once, at the outermost loop where it does not vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import tirx

from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, bounds
from egraph.tensor.expr.laws import coefficient, iterators_of
from egraph.tensor.expr.scope import Compare, Read, Tensor
from lower.eoperator.terms import Term
from lower.targets.cpu.generator.blocks import Block, Lanes, Point, Writer, sequence, shuffle
from lower.targets.cpu.generator.functions import (
    Expr,
    Functions,
    cast,
    constant,
    element,
    from_bfloat16,
    lanes,
    number,
    select,
    widen,
)
from lower.targets.cpu.generator.reduction import reduce_at
from lower.targets.cpu.generator.streaming import streams

STORAGE = {"bool": "uint8", "float16": "uint16", "bfloat16": "uint16"}
"""The stored element type of types without arithmetic."""


class Emitter(Writer):
    """Emits terms, by ``value``."""

    def __init__(self, buffers: Mapping[str, Any], dtypes: Mapping[str, str], lies_in: Mapping[str, str], index_type: str) -> None:
        super().__init__(index_type)
        self.buffers, self.dtypes, self.lies_in = dict(buffers), dict(dtypes), lies_in
        self.kept: dict[Term, Index] = {}
        """Reductions whose elements are also stored, and where in the output."""
        self.fetched: dict[Term, list[tuple[str, Index]]] = {}
        """What is prefetched for the next rows, while these reductions run."""
        self.functions = Functions(self.bind)

    def is_large(self, name: str) -> bool:
        """Return whether a tensor is float32 and so large that no cache holds it."""
        return self.dtypes[name] == "float32" and name not in self.lies_in and streams(int(self.buffers[name].shape[0]) * 4)

    def give(self, term: Term, point: Point, value: Expr) -> None:
        """State a term's value at a point, computed elsewhere."""
        self.blocks[self._at].values[_key(term, point)] = value

    # Indices

    def _iterator(self, iterator: Iterator, point: Point) -> Expr:
        if iterator in point:
            lanes = point[iterator]
            return lanes.base if lanes.count == 1 else tirx.Ramp(lanes.base, self.integer(1), lanes.count)
        for block in reversed(self.blocks):
            if iterator in block.bound:
                return block.bound[iterator]
        raise AssertionError(f"{iterator} is not bound")

    def index(self, value: Index, point: Point) -> Expr:
        """Return an index as an integer expression (a vector where the point's vector iterator occurs)."""
        total: Expr | None = None
        fixed = 0
        for monomial, c in value.terms:
            if not monomial:
                fixed = c
                continue
            product: Expr | None = None
            for atom in monomial:
                match atom:
                    case Iterator():
                        part = self._iterator(atom, point)
                    case Floor(a, b) | Modulo(a, b):
                        part = self._divide(a, b, point, remainder=isinstance(atom, Modulo))
                    case DataIndex(read):
                        part = self._data(read, point)
                    case _:
                        raise AssertionError(f"{atom} in an index")
                product = part if product is None else _mul(product, part)
            assert product is not None
            product = product if c == 1 else _mul(product, self.integer(c))
            total = product if total is None else _add(total, product)
        if total is None:
            return self.integer(fixed)
        return total if fixed == 0 else _add(total, self.integer(fixed))

    def _divide(self, a: Index, b: Index, point: Point, *, remainder: bool) -> Expr:
        numerator, divisor = self.index(a, point), self.index(b, point)
        divisor = widen(divisor, lanes(numerator))
        limits = bounds(a)
        if limits is not None and limits[0] >= 0:
            return tirx.truncmod(numerator, divisor) if remainder else tirx.truncdiv(numerator, divisor)
        by = b.constant
        if limits is not None and by is not None:  # shifted by a multiple of the divisor to where truncation is the floor
            steps = -(limits[0] // by)
            positive = _add(numerator, self.integer(steps * by))
            return tirx.truncmod(positive, divisor) if remainder else _add(tirx.truncdiv(positive, divisor), self.integer(-steps))
        modulus = self.bind(tirx.truncmod(numerator, divisor))
        negative = self.bind(modulus < constant(0, modulus))
        if remainder:
            return select(negative, modulus + divisor, modulus)
        return tirx.truncdiv(numerator, divisor) - cast(negative, self.index_type)

    def _data(self, read: Read, point: Point) -> Expr:
        return cast(self._number(read, point), self.index_type)

    def _number(self, read: Read, point: Point) -> Expr:
        assert isinstance(read.source, Tensor)
        return self._load(read.source.name.removeprefix("flat "), read.indices[0], point)

    # Values

    def _level(self, free: frozenset[Iterator]) -> int:
        """Return the outermost block where a value over these iterators can stand."""
        level = max((k for k in range(self._at + 1) if self.blocks[k].barrier), default=0)
        for k in range(self._at, level, -1):
            if any(i in self.blocks[k].bound or self.home.get(i) == k for i in free):
                return k
        return level

    def value(self, term: Term, point: Point) -> Expr:
        """Return a term's value at a point, computed in the outermost block possible."""
        point_of_term = {i: point[i] for i in term.free if i in point}
        if term.kind == "number":
            return tirx.const(float(term.data), "float32")
        key = _key(term, point_of_term)
        for block in reversed(self.blocks[: self._at + 1]):
            if key in block.values:
                return block.values[key]
        level = self._level(term.free)
        with self.outside(level):
            if term.kind == "reduce":
                distinct = {_key(term, at): {i: at[i] for i in term.free if i in at} for at in (*self.points, point)}
                results = reduce_at(self, term, tuple(distinct.values()))
                self.blocks[level].values.update(zip(distinct, results, strict=True))
            else:
                self.blocks[level].values[key] = self.bind(self._compute(term, point_of_term))
        return self.blocks[level].values[key]

    def _compute(self, term: Term, point: Point) -> Expr:
        match term.kind:
            case "index":
                alone = term.data.atom
                if isinstance(alone, DataIndex):  # of its own type: it need not fit into an index
                    return cast(self._number(alone.read, point), "float32")
                return cast(self.index(term.data, point), "float32")
            case "read":
                name, offset = term.data
                value = self._load(name, offset, point)
                return tirx.NE(value, constant(0, value)) if self.dtypes[name] == "bool" else value
            case "apply":
                return self._apply(term, point)
            case "guard":
                return self._guard(term, point)
        raise AssertionError(term.kind)

    def _apply(self, term: Term, point: Point) -> Expr:
        function, children = term.data, term.children
        if function == "pow" and children[1].kind == "number" and children[0].kind != "number":
            return self.functions.power(self.value(children[0], point), children[1].data)
        return self.functions.call(function, self._operands(function, children, point))

    def _operands(self, function: str, children: Sequence[Term], point: Point) -> list[Expr]:
        """Return the operands' values with one element type and one number of lanes."""
        values = [self.value(child, point) for child in children]
        logical = function in ("and_", "or_", "not_")
        start = 1 if function == "where" else 0
        types = [element(v) for v, child in zip(values[start:], children[start:], strict=True) if child.kind != "number"]
        common = "bool" if logical else next((t for t in types if t != "bool"), "float32")
        converted = []
        for position, (value, child) in enumerate(zip(values, children, strict=True)):
            dtype = "bool" if position < start else common
            if child.kind == "number" and dtype != "float32":
                value = number(child.data, dtype)
            elif dtype == "bool" and element(value) != "bool":
                value = tirx.NE(value, constant(0, value))
            elif element(value) != dtype:
                value = cast(value, dtype)
            converted.append(value)
        count = max(lanes(v) for v in converted)
        return [widen(v, count) for v in converted]

    def load(self, read: Term, point: Point) -> Expr:
        """Return the value of a read at a point."""
        name, offset = read.data
        return self._load(name, offset, point)

    def computed(self, name: str, loaded: Expr) -> Expr:
        """Return what was loaded of a tensor as it is computed with."""
        return from_bfloat16(loaded) if name in self.lies_in else loaded

    def _load(self, name: str, offset: Index, point: Point) -> Expr:
        return self.computed(name, self._as_it_lies(name, offset, point))

    def _as_it_lies(self, name: str, offset: Index, point: Point) -> Expr:
        buffer = self.buffers[name]
        vector = next((i for i, lanes in point.items() if lanes.count > 1), None)
        if vector is None or vector not in iterators_of(offset):
            return tirx.BufferLoad(buffer, [self.index(offset, point)])
        c = coefficient(offset, vector)
        lanes = point[vector]
        if c is None:
            return tirx.BufferLoad(buffer, [self.index(offset, point)])
        base = self.index(offset, {**point, vector: Lanes(lanes.base)})
        if abs(c) == 1 or not 2 <= c <= 4:
            if c == -1:
                forward = self.bind(
                    tirx.BufferLoad(buffer, [tirx.Ramp(base - self.integer(lanes.count - 1), self.integer(1), lanes.count)])
                )
                return shuffle([forward], range(lanes.count - 1, -1, -1))
            return tirx.BufferLoad(buffer, [tirx.Ramp(base, self.integer(c), lanes.count)])
        return self._strided(buffer, base, c, lanes.count)

    def _strided(self, buffer: Any, base: Expr, stride: int, count: int) -> Expr:
        """Load every stride-th element from whole vectors, the last of which ends with the last element wanted."""
        last = stride * (count - 1) - (count - 1)
        starts = [*range(0, last, count), last]
        parts = [self.bind(tirx.BufferLoad(buffer, [tirx.Ramp(base + self.integer(s), self.integer(1), count)])) for s in starts]
        total: Expr | None = None
        for part, (start, end) in enumerate(zip(starts, [*starts[1:], last + count], strict=True)):
            lanes_of_part = [k for k in range(count) if start <= k * stride < end]
            if total is None:
                total = shuffle([parts[0]], [k * stride if k in lanes_of_part else 0 for k in range(count)])
            else:
                order = [count + k * stride - start if k in lanes_of_part else k for k in range(count)]
                total = shuffle([self.bind(total), parts[part]], order)
        return total

    # Guards

    def condition(self, conditions: Sequence[Compare], point: Point) -> Expr:
        """Return whether all conditions hold, as one truth value: they do not vary along a vector."""
        total: Expr | None = None
        for c in conditions:
            left, right = self.index(c.left, point), self.index(c.right, point)
            test = {"<": tirx.LT, "<=": tirx.LE, "==": tirx.EQ, "!=": tirx.NE}[c.operator](left, right)
            total = test if total is None else tirx.And(total, test)
        return total

    def _guard(self, term: Term, point: Point) -> Expr:
        """Compute a guarded value by branching, so that nothing is read where the guard fails."""
        branches = []
        with self.at_points((point,)):
            for child in term.children:
                with self.inside(Block(barrier=True)) as block:
                    branches.append((block, self.value(child, point)))
        count = max(lanes(value) for _, value in branches)
        numbers = [child.kind == "number" for child in term.children]
        dtype = element(branches[1 if numbers[0] else 0][1])
        result = self.allocate(dtype, count)
        for (block, value), child in zip(branches, term.children, strict=True):
            value = number(child.data, dtype) if child.kind == "number" else cast(value, dtype)
            block.statements.append(tirx.BufferStore(result, widen(value, count), [tirx.const(0, "int32")]))
        then, otherwise = (sequence(block.statements) for block, _ in branches)
        self.blocks[self._at].statements.append(tirx.IfThenElse(self.condition(term.data, point), then, otherwise))
        return tirx.BufferLoad(result, [tirx.const(0, "int32")])


def _key(term: Term, point: Point) -> tuple[Term, frozenset[tuple[Iterator, Lanes]]]:
    """Return the memo key of a value: the term, and the positions of its iterators."""
    return term, frozenset((i, lanes) for i, lanes in point.items() if i in term.free)


def _mul(a: Expr, b: Expr) -> Expr:
    count = max(lanes(a), lanes(b))
    if isinstance(a, tirx.Ramp) and lanes(b) == 1:
        return tirx.Ramp(a.base * b, a.stride * b, a.lanes)
    return widen(a, count) * widen(b, count)


def _add(a: Expr, b: Expr) -> Expr:
    count = max(lanes(a), lanes(b))
    if isinstance(b, tirx.Ramp):
        a, b = b, a
    if isinstance(a, tirx.Ramp) and lanes(b) == 1:
        return tirx.Ramp(a.base + b, a.stride, a.lanes)
    return widen(a, count) + widen(b, count)
