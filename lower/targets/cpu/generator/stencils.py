"""Register blocking of windows: rows of results are computed together, so that what several of them read is loaded once.

Windows along the contiguous axis are read by vectors that begin anywhere, each of which lies in two lines of the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from egraph.tensor.expr.index import Index, Iterator, index, length
from lower.eoperator.terms import Term, Terms, subterms
from lower.eoperator.transforms import loop_order, shifted
from lower.targets.cpu.generator.blocks import Point
from lower.targets.cpu.generator.covering import cover, elements_before_a_line

if TYPE_CHECKING:
    from lower.targets.cpu.generator.nest import Planner

ROWS_AT_ONCE = (4, 2)
"""Numbers of rows that may be computed together, the larger tried first."""
MOST_VALUES = 20
"""The most vectors that rows computed together may load: there are 32 registers."""
MOST_LOADED = 0.6
"""Rows are computed together where they then load at most this part of what they load one by one."""


def rows_sharing(table: Terms, iterators: Sequence[Iterator], root: Term) -> tuple[Iterator, int] | None:
    """Return the loop whose next iterations read most of what one reads, and how many of them to compute together."""
    vector = iterators[-1]
    for row in reversed(iterators[:-1]):
        alone = len(_reads(root, row, vector))
        for count in ROWS_AT_ONCE:
            if alone < 2 or length(row) < count:
                continue
            moved = [table.substitute(root, {row: index(row) * count + k}) for k in range(count)]
            together = len({read for row_term in moved for read in _reads(row_term, row, vector)})
            if together <= min(MOST_VALUES, MOST_LOADED * count * alone):
                return row, count
    return None


def _reads(root: Term, row: Iterator, vector: Iterator) -> set[Term]:
    return {term for term in subterms((root,)) if term.kind == "read" and {row, vector} <= term.free}


def write_stencil(planner: Planner, iterators: Sequence[Iterator], root: Term, offset: Index, *, parallel: bool) -> bool:
    """Write a nest whose guards do not vary with rows together, where they share what they read; return whether it is written."""
    table, emitter, vector = planner.table, planner.emitter, iterators[-1]
    sharing = rows_sharing(table, iterators, root)
    if sharing is None:
        return False
    row, count = sharing
    grouped = length(row) // count * count
    if grouped < length(row):
        for low, high in ((0, grouped), (grouped, length(row))):
            part, meaning = shifted(table, row, low, high)
            kept = tuple(part if i is row else i for i in iterators if i is not row or high - low > 1)
            with emitter.scope():
                planner.pure(kept, table.substitute(root, {row: meaning}), table.index(offset, {row: meaning}), parallel=parallel)
        return True
    group = table.fresh("g", grouped // count)
    positions = [index(group) * count + k for k in range(count)]
    rows = [(table.substitute(root, {row: position}), table.index(offset, {row: position})) for position in positions]
    planner.fetched_with |= dict.fromkeys((row_term for row_term, _ in rows), ()) | {rows[0][0]: tuple(row_term for row_term, _ in rows)}
    outer = [group if i is row else i for i in loop_order(iterators[:-1], root)]
    lead = elements_before_a_line(emitter, rows[0][1], vector)

    def store(points: tuple[Point, ...]) -> None:
        for row_term, where in rows:
            planner.store(row_term, where, points)

    def inner(in_parallel: bool) -> None:
        cover(planner, vector, store, parallel=in_parallel, unroll=1, lead=lead)

    planner.outer(outer, inner, parallel=parallel)
    return True
