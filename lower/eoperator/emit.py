"""Emit terms as TIR: values at a set of points, each computed once, at the outermost loop where it does not vary.

The nest planner (``nest``) opens blocks (loop bodies) and asks for values at *points*: an element, a vector of
elements along one iterator, or several of either, so that independent chains of instructions interleave.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator as Iterating, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from egraph.expr.index import DataIndex, Floor, Index, Iterator, Modulo, bounds, index
from egraph.expr.scope import Compare, Read, Tensor
from lower.eoperator.functions import Expr, Functions, cast, constant, element, lanes, select, typed, widen
from lower.eoperator.terms import Term, coefficient, extent, iterators_of, low_of
from lower.eoperator.transforms import IDENTITY

STORAGE = {"bool": "uint8", "float16": "uint16", "bfloat16": "uint16"}
"""How element types without arithmetic lie in memory."""
LANES = 16
UNROLL = 4


@dataclass(frozen=True, eq=False)
class Place:
    """Where an iterator stands at a point: ``base``, or the ``count`` values from there on as a vector."""

    base: Expr
    count: int = 1


Point = Mapping[Iterator, Place]


@dataclass
class Block:
    """A statement list under construction with what is bound in it. ``barrier``: nothing may move out of it."""

    bound: dict[Iterator, Expr] = field(default_factory=dict)
    barrier: bool = False
    statements: list[Any] = field(default_factory=list)
    values: dict[Any, Expr] = field(default_factory=dict)


def sequence(statements: Sequence[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements)) if statements else tirx.Evaluate(tirx.const(0, "int32"))


class Emitter:
    """Holds the open blocks and the points; ``value`` is the way in."""

    def __init__(self, buffers: Mapping[str, Any], dtypes: Mapping[str, str], index_type: str) -> None:
        self.buffers, self.dtypes, self.index_type = buffers, dtypes, index_type
        self.blocks = [Block()]
        self.points: tuple[Point, ...] = ({},)
        self.home: dict[Iterator, int] = {}
        self.functions = Functions(self.bind)
        self._names = 0
        self._named: dict[int, Expr] = {}
        self._at = 0

    # Statements

    def integer(self, value: int) -> Expr:
        return tirx.IntImm(self.index_type, value)

    def name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def bind(self, value: Expr) -> Expr:
        """Name a value in the block that is being written, unless it is a name, a constant or a truth value.

        Floats and vectors are named through memory that the code generator keeps in registers: TVM's analyser would
        expand nested bindings, which takes exponential time.
        """
        if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm) or id(value) in self._named:
            return value
        kind = element(value)
        if kind == "bool":
            return value
        if kind == self.index_type and lanes(value) == 1:
            variable = tirx.Var(self.name("v"), value.ty)
            self.append(tirx.Bind(variable, value))
            return variable
        held = self.allocate(kind, lanes(value))
        zero = tirx.const(0, "int32")
        self.append(tirx.BufferStore(held, value, [zero]))
        result = tirx.BufferLoad(held, [zero])
        self._named[id(result)] = result
        return result

    @contextmanager
    def inside(self, block: Block) -> Iterating[Block]:
        """Open a block below the innermost."""
        del self.blocks[self._at + 1 :]
        self.blocks.append(block)
        self._at += 1
        try:
            yield block
        finally:
            self.blocks.pop()
            self._at -= 1

    @contextmanager
    def at_points(self, points: tuple[Point, ...]) -> Iterating[None]:
        """Compute at these points, which belong to the innermost block."""
        before = self.points, self.home
        self.points, self.home = points, {**{i: self._at for point in points for i in point}, **self.home}
        try:
            yield
        finally:
            self.points, self.home = before

    def append(self, statement: Any) -> None:
        self.blocks[self._at].statements.append(statement)

    def give(self, term: Term, point: Point, value: Expr) -> None:
        """State a term's value at a point, computed elsewhere."""
        self.blocks[self._at].values[_key(term, point)] = value

    @contextmanager
    def scope(self) -> Iterating[None]:
        """Write statements that may bind and hold values of their own, without a loop."""
        with self.inside(Block()) as block:
            yield
        self.blocks[self._at].statements += block.statements

    @contextmanager
    def _outside(self, level: int) -> Iterating[None]:
        """Write into the block at ``level``, with the deeper blocks out of sight."""
        blocks, at = self.blocks, self._at
        self.blocks, self._at = blocks[: level + 1], level
        try:
            yield
        finally:
            self.blocks, self._at = blocks, at

    def loop(self, low: Expr | int, high: Expr | int, body: Callable[[Expr], None], *, kind: Any = ForKind.SERIAL, barrier: bool = False, name: str = "i") -> None:
        """Append a loop; ``body`` writes into a new block with the loop's variable."""
        variable = tirx.Var(self.name(name), self.index_type)
        with self.inside(Block(barrier=barrier)) as block:
            body(variable)
        low = self.integer(low) if isinstance(low, int) else low
        count = self.integer(high) - low if isinstance(high, int) else high - low
        self.blocks[self._at].statements.append(tirx.For(variable, low, count, kind, sequence(block.statements)))

    def bind_iterator(self, iterator: Iterator, value: Expr) -> None:
        self.blocks[self._at].bound[iterator] = value

    # Indices

    def _iterator(self, iterator: Iterator, point: Point) -> Expr:
        if iterator in point:
            place = point[iterator]
            return place.base if place.count == 1 else tirx.Ramp(place.base, self.integer(1), place.count)
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
        rest = self.bind(tirx.truncmod(numerator, divisor))
        negative = self.bind(rest < constant(0, rest))
        if remainder:
            return select(negative, rest + divisor, rest)
        return tirx.truncdiv(numerator, divisor) - cast(negative, self.index_type)

    def _data(self, read: Read, point: Point) -> Expr:
        assert isinstance(read.source, Tensor)
        name = read.source.name.removeprefix("flat ")
        return cast(self._load(name, read.indices[0], point), self.index_type)

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
        own = {i: point[i] for i in term.free if i in point}
        if term.kind == "number":
            return tirx.const(float(term.data), "float32")
        key = _key(term, own)
        for block in reversed(self.blocks[: self._at + 1]):
            if key in block.values:
                return block.values[key]
        level = self._level(term.free)
        with self._outside(level):
            if term.kind == "reduce":
                distinct = {_key(term, at): {i: at[i] for i in term.free if i in at} for at in (*self.points, point)}
                results = self._reduce(term, tuple(distinct.values()))
                self.blocks[level].values.update(zip(distinct, results, strict=True))
            else:
                self.blocks[level].values[key] = self.bind(self._compute(term, own))
        return self.blocks[level].values[key]

    def _compute(self, term: Term, point: Point) -> Expr:
        match term.kind:
            case "index":
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
            wanted = "bool" if position < start else common
            if child.kind == "number" and wanted != "float32":
                number = bool(child.data) if wanted == "bool" else float(child.data) if wanted.startswith("float") else int(child.data)
                value = tirx.const(number, wanted)
            elif wanted == "bool" and element(value) != "bool":
                value = tirx.NE(value, constant(0, value))
            elif element(value) != wanted:
                value = cast(value, wanted)
            converted.append(value)
        count = max(lanes(v) for v in converted)
        return [widen(v, count) for v in converted]

    def _load(self, name: str, offset: Index, point: Point) -> Expr:
        buffer = self.buffers[name]
        vector = next((i for i, place in point.items() if place.count > 1), None)
        if vector is None or vector not in iterators_of(offset):
            return tirx.BufferLoad(buffer, [self.index(offset, point)])
        c = coefficient(offset, vector)
        place = point[vector]
        if c is None:
            return tirx.BufferLoad(buffer, [self.index(offset, point)])
        base = self.index(offset, {**point, vector: Place(place.base)})
        if abs(c) == 1 or not 2 <= c <= 4:
            if c == -1:
                forward = self.bind(tirx.BufferLoad(buffer, [tirx.Ramp(base - self.integer(place.count - 1), self.integer(1), place.count)]))
                return shuffle([forward], range(place.count - 1, -1, -1))
            return tirx.BufferLoad(buffer, [tirx.Ramp(base, self.integer(c), place.count)])
        return self._strided(buffer, base, c, place.count)

    def _strided(self, buffer: Any, base: Expr, stride: int, count: int) -> Expr:
        """Load every stride-th element from whole vectors, the last of which ends with the last element wanted."""
        last = stride * (count - 1) - (count - 1)
        starts = [*range(0, last, count), last]
        parts = [self.bind(tirx.BufferLoad(buffer, [tirx.Ramp(base + self.integer(s), self.integer(1), count)])) for s in starts]
        total: Expr | None = None
        for part, (start, end) in enumerate(zip(starts, [*starts[1:], last + count], strict=True)):
            mine = [k for k in range(count) if start <= k * stride < end]
            if total is None:
                total = shuffle([parts[0]], [k * stride if k in mine else 0 for k in range(count)])
            else:
                total = shuffle([self.bind(total), parts[part]], [count + k * stride - start if k in mine else k for k in range(count)])
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
        wanted = element(branches[1 if numbers[0] else 0][1])
        result = self.allocate(wanted, count)
        for block, value in branches:
            block.statements.append(tirx.BufferStore(result, widen(cast(value, wanted), count), [tirx.const(0, "int32")]))
        then, otherwise = (sequence(block.statements) for block, _ in branches)
        self.blocks[self._at].statements.append(tirx.IfThenElse(self.condition(term.data, point), then, otherwise))
        return tirx.BufferLoad(result, [tirx.const(0, "int32")])

    def allocate(self, name: str, count: int) -> Any:
        """Allocate a variable (a vector of ``count``) in the block being written; the code generator keeps it in a register."""
        buffer = tirx.decl_buffer((1,), typed(name, count), name=self.name("t"))
        self.blocks[self._at].statements.append(tirx.AllocBuffer(buffer))
        return buffer

    # Reductions

    def _reduce(self, term: Term, points: tuple[Point, ...]) -> list[Expr]:
        """Return a reduction's value at every point: vectors along the points, or along a contiguous reduced axis."""
        reduction, iterators = term.data
        body = term.children[0]
        vector = iterators[-1] if self._vectorizes(body, iterators[-1], points) else None
        slots: list[list[Any]] = [[] for _ in points]
        zero = tirx.const(0, "int32")
        identity = float(IDENTITY[reduction])

        def accumulate(at: tuple[Point, ...], width: int) -> None:
            """Add the body's values at each inner point to the accumulator of each outer one."""
            for p, outer in enumerate(points):
                for q, inner in enumerate(at):
                    value = self.value(body, {**outer, **inner})
                    store = slots[p][q]
                    count = lanes(tirx.BufferLoad(store, [zero]))
                    old = tirx.BufferLoad(store, [zero])
                    self.blocks[self._at].statements.append(tirx.BufferStore(store, combine(reduction, old, widen(cast(value, "float32"), count)), [zero]))

        def nest(remaining: tuple[Iterator, ...], inner: Callable[[], None]) -> None:
            if not remaining:
                inner()
                return
            iterator, rest = remaining[0], remaining[1:]
            low, high, narrowed = self._range(term, iterator)

            def inside(variable: Expr) -> None:
                self.bind_iterator(iterator, variable)
                nest(rest, inner)

            self.loop(low, high, inside, barrier=narrowed, name="k")

        def all_points(at: tuple[Point, ...], width: int) -> None:
            combined = tuple({**outer, **inner} for outer in points for inner in at)
            with self.at_points(combined):
                accumulate(at, width)

        def prepare(count: int, width: int) -> None:
            for p, outer in enumerate(points):
                held = max([width, *(place.count for i, place in outer.items() if i in term.free)])
                slots[p] = [self.allocate("float32", held) for _ in range(count)]
                for store in slots[p]:
                    start = tirx.const(identity, "float32")
                    self.blocks[self._at].statements.append(tirx.BufferStore(store, widen(start, held), [zero]))

        if vector is None:
            prepare(1, 1)
            nest(iterators, lambda: all_points(({},), 1))
            return [self.bind(tirx.BufferLoad(s[0], [zero])) for s in slots]
        size = extent(vector)
        results: list[Expr | None] = [None] * len(points)
        start = 0
        for step, count in ((LANES * UNROLL, UNROLL), (LANES, 1), (8, 1), (4, 1), (1, 1)):
            blocks = (size - start) // step
            if not blocks:
                continue
            width = step // count
            prepare(count, width)
            first = start

            def steps(blocks: int = blocks, step: int = step, count: int = count, width: int = width, first: int = first) -> None:
                def one(base: Expr) -> None:
                    at = tuple({vector: Place(base + self.integer(first + u * width) if first + u else base, width)} for u in range(count))
                    all_points(at, width)

                self.loop(0, blocks, lambda k: one(_mul(k, self.integer(step))), name="k")

            nest(iterators[:-1], steps)
            for p in range(len(points)):
                parts = [self.bind(tirx.BufferLoad(s, [zero])) for s in slots[p]]
                while len(parts) > 1:
                    parts = [self.bind(combine(reduction, a, b)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
                total = self.horizontal(reduction, parts[0])
                before = results[p]
                results[p] = self.bind(total if before is None else combine(reduction, before, total))
            start += blocks * step
        return [r for r in results if r is not None]

    def horizontal(self, reduction: str, value: Expr) -> Expr:
        """Reduce a vector to one number by halves."""
        while lanes(value) > 1:
            value = self.bind(value)
            half = lanes(value) // 2
            value = combine(reduction, shuffle([value], range(half)), shuffle([value], range(half, 2 * half)))
        return value

    def _vectorizes(self, body: Term, iterator: Iterator, points: tuple[Point, ...]) -> bool:
        """Return whether a reduction can run along a vector: single points, contiguous reads, no guard that varies."""
        if any(place.count > 1 for point in points for place in point.values()) or extent(iterator) < 4:
            return False
        return vectorizes(body, iterator)

    def _range(self, term: Term, iterator: Iterator) -> tuple[Expr | int, Expr | int, bool]:
        """Return the iterator's loop bounds."""
        return low_of(iterator), low_of(iterator) + extent(iterator), False


def _key(term: Term, point: Point) -> tuple[Term, frozenset[tuple[Iterator, Place]]]:
    """Return what a value depends on: the term, and where its iterators stand."""
    return term, frozenset((i, place) for i, place in point.items() if i in term.free)


def vectorizes(body: Term, iterator: Iterator) -> bool:
    """Return whether values along an iterator can be computed as vectors at a gain."""
    from lower.eoperator.terms import subterms

    good = bad = 0
    for term in subterms((body,)):
        if iterator not in term.free:
            continue
        match term.kind:
            case "guard" if any(iterator in iterators_of(c.left - c.right) for c in term.data):
                return False
            case "read":
                c = coefficient(term.data[1], iterator)
                if c is not None and abs(c) <= 4:
                    good += 1
                else:
                    bad += 1
    return good > 0 and good >= bad


def combine(reduction: str, a: Expr, b: Expr) -> Expr:
    match reduction:
        case "sum":
            return a + b
        case "prod":
            return a * b
        case "max":
            return select(a < b, b, a)
        case _:
            return select(b < a, b, a)


def shuffle(vectors: Sequence[Expr], order: Sequence[int]) -> Expr:
    order = list(order)
    if len(order) == 1:
        return tirx.Shuffle(list(vectors), [tirx.const(order[0], "int32")])
    return tirx.Shuffle(list(vectors), [tirx.const(k, "int32") for k in order])


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


__all__ = ["LANES", "STORAGE", "UNROLL", "Block", "Emitter", "Fraction", "Place", "Point", "combine", "math", "sequence", "shuffle", "vectorizes"]
