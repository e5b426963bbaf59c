"""Cover a row of results with vectors: groups of them, single ones, and ever smaller ones for the remainder."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tvm.tirx import ForKind

from egraph.tensor.expr.index import Index, Iterator, length
from egraph.tensor.expr.laws import coefficient, iterators_of
from lower.targets.cpu.generator.blocks import LANES, UNROLL, Lanes, Point
from lower.targets.cpu.generator.emit import Emitter
from lower.targets.cpu.generator.functions import Expr
from lower.targets.cpu.generator.streaming import LINE_ELEMENTS

if TYPE_CHECKING:
    from lower.targets.cpu.generator.nest import Planner

SHORT = ((8, 1), (4, 1), (1, 1))
"""Vectors, by elements, for what is less than a whole one."""
Body: TypeAlias = Callable[[tuple[Point, ...]], None]


def cover(planner: Planner, vector: Iterator, body: Body, *, parallel: bool = False, unroll: int = UNROLL, lead: int = 0) -> None:
    """Run ``body`` at points that cover the iterator: groups of vectors, vectors, and ever smaller ones for the rest.

    ``parallel``: groups are divided among threads; smaller ones, where there are too few of them. ``lead``: elements before the first
    whole vector.
    """

    def divides(blocks: int) -> bool:
        """Return whether so many blocks divide evenly among threads."""
        return parallel and (blocks >= 2 * planner.threads or (blocks > 0 and blocks % planner.threads == 0))

    size, start = length(vector), 0
    if parallel:
        unroll = next((count for count in (unroll, unroll // 2, 1) if count and divides(size // (LANES * count))), unroll)
    for end, steps in ((min(lead, size), SHORT), (size, ((LANES * unroll, unroll), (LANES, 1), *SHORT))):
        for step, count in steps:
            blocks = (end - start) // step
            if blocks:
                is_much = step >= LANES or not start
                _steps(planner.emitter, vector, start, step, blocks, count, body, parallel=is_much and divides(blocks))
                start += blocks * step


def elements_before_a_line(emitter: Emitter, offset: Index, vector: Iterator) -> int:
    """Return how many elements of a row lie before its first whole line, where results are streamed, line by line."""
    if not emitter.is_streamed or coefficient(offset, vector) != 1:
        return 0
    strides = [coefficient(offset, i) for i in iterators_of(offset) - {vector}]
    aligned = all(step is not None and step % LINE_ELEMENTS == 0 for step in strides)
    return -offset.constant_part % LINE_ELEMENTS if aligned else 0


def _steps(emitter: Emitter, vector: Iterator, start: int, step: int, blocks: int, count: int, body: Body, *, parallel: bool) -> None:
    width = step // count

    def write_vectors(base: Expr) -> None:
        points = tuple({vector: Lanes(base + emitter.integer(start + u * width) if start + u else base, width)} for u in range(count))
        with emitter.at_points(points):
            body(points)

    if blocks == 1:
        with emitter.scope():
            write_vectors(emitter.integer(0))
    else:
        emitter.loop(0, blocks, lambda k: write_vectors(k * emitter.integer(step)), kind=ForKind.PARALLEL if parallel else ForKind.SERIAL)
