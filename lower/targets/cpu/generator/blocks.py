"""Write TIR statements into nested blocks: names, loops, and the points at which values are computed.

A *point* says where some iterators stand: at an element, or at a vector of elements along one of them. Several points
are worked on at once, so that independent chains of instructions interleave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Iterator as Iterating
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from egraph.tensor.expr.index import Iterator
from lower.targets.cpu.generator.functions import Expr, element, lanes, typed
from lower.targets.cpu.generator.streaming import finish

LANES = 16
UNROLL = 4
CHUNKS = 4
"""A thread's share of a parallel loop has so many parts, which idle threads take over; the dispatcher starts as many for each thread."""


@dataclass(frozen=True, eq=False)
class Lanes:
    """The values of an iterator at a point: ``base``, or the ``count`` values from there on as a vector."""

    base: Expr
    count: int = 1


Point = Mapping[Iterator, Lanes]
Body = Callable[[Expr], None]
"""Writes the statements of a loop, given its variable."""


@dataclass
class Block:
    """A statement list under construction with what is bound in it. ``barrier``: nothing may move out of it."""

    bound: dict[Iterator, Expr] = field(default_factory=dict)
    barrier: bool = False
    statements: list[Any] = field(default_factory=list)
    values: dict[Any, Expr] = field(default_factory=dict)


def sequence(statements: Sequence[Any]) -> Any:
    return (
        statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements)) if statements else tirx.Evaluate(tirx.const(0, "int32"))
    )


class Writer:
    """Holds the open blocks, innermost last, and the points at which values are computed."""

    def __init__(self, index_type: str) -> None:
        self.index_type = index_type
        self.threads = 1
        self.blocks = [Block()]
        self.points: tuple[Point, ...] = ({},)
        self.home: dict[Iterator, int] = {}
        self.is_streamed = False
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

    @contextmanager
    def scope(self, *, barrier: bool = False) -> Iterating[None]:
        """Write statements that may bind and hold values of their own, without a loop; with a barrier, none of them is held outside."""
        with self.inside(Block(barrier=barrier)) as block:
            yield
        self.blocks[self._at].statements += block.statements

    @contextmanager
    def outside(self, level: int) -> Iterating[None]:
        """Write into the block at ``level``, with the deeper blocks out of sight."""
        blocks, at = self.blocks, self._at
        self.blocks, self._at = blocks[: level + 1], level
        try:
            yield
        finally:
            self.blocks, self._at = blocks, at

    def loop(
        self, low: Expr | int, high: Expr | int, body: Body, *, kind: Any = ForKind.SERIAL, barrier: bool = False, name: str = "i"
    ) -> None:
        """Append a loop; ``body`` writes into a new block with the loop's variable."""
        if kind == ForKind.PARALLEL:
            assert low == 0 and isinstance(high, int), "iterations are shared out by their number"
            high, body = self.threads * CHUNKS, self._chunk(high, body, name)
        variable = tirx.Var(self.name(name), self.index_type)
        with self.inside(Block(barrier=barrier)) as block:
            body(variable)
        low = self.integer(low) if isinstance(low, int) else low
        count = self.integer(high) - low if isinstance(high, int) else high - low
        self.append(tirx.For(variable, low, count, kind, sequence(block.statements)))

    def _chunk(self, count: int, body: Body, name: str) -> Body:
        """Return what writes a chunk of a loop, which ends when others see what it streamed.

        Threads have about as many iterations each, the first ones one more, as in libraries; a thread's chunks lie behind each other.
        """
        each, more = divmod(count, self.threads)

        def chunk(k: Expr) -> None:
            thread, number = (self.bind(part(k, self.integer(CHUNKS))) for part in (tirx.truncdiv, tirx.truncmod))
            first = thread * self.integer(each) + tirx.Min(thread, self.integer(more))
            share = self.integer(each)
            if more:
                share = self.bind(share + tirx.Select(thread < self.integer(more), self.integer(1), self.integer(0)))
            size, remainder = (self.bind(part(share, self.integer(CHUNKS))) for part in (tirx.truncdiv, tirx.truncmod))
            low = self.bind(first + number * size + tirx.Min(number, remainder))
            high = self.bind(low + size + tirx.Select(number < remainder, self.integer(1), self.integer(0)))
            self.loop(low, high, body, name=name)
            if self.is_streamed:
                self.append(finish())

        return chunk

    def bind_iterator(self, iterator: Iterator, value: Expr) -> None:
        self.blocks[self._at].bound[iterator] = value

    def allocate(self, name: str, count: int) -> Any:
        """Allocate a variable (a vector of ``count``) in the block being written; the code generator keeps it in a register."""
        buffer = tirx.decl_buffer((1,), typed(name, count), name=self.name("t"))
        self.blocks[self._at].statements.append(tirx.AllocBuffer(buffer))
        return buffer

    def array(self, name: str, count: int) -> Any:
        """Allocate memory on the stack in the block being written."""
        buffer = tirx.decl_buffer((count,), name, name=self.name("a"))
        self.blocks[self._at].statements.append(tirx.AllocBuffer(buffer))
        return buffer


def shuffle(vectors: Sequence[Expr], order: Sequence[int]) -> Expr:
    order = list(order)
    if len(order) == 1:
        return tirx.Shuffle(list(vectors), [tirx.const(order[0], "int32")])
    return tirx.Shuffle(list(vectors), [tirx.const(k, "int32") for k in order])
