"""Choose loops for a kernel: order, vectors, tiles and threads, from the strides its terms read with.

Elementwise and movement: contiguous axes are merged, loops split where guards change, the innermost axis runs in
vectors, a transpose in square tiles held in registers. Reductions: values that whole rows share are computed once a
row; the reduced axis, or the innermost output axis where the reduction keeps it, runs in vectors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tvm import tirx
from tvm.tirx import ForKind

from egraph.errors import LowerError
from egraph.tensor.expr.index import Index, Iterator, Size, Symbol, index, length
from egraph.tensor.expr.laws import coefficient, iterators_of
from lower.eoperator.tabled import has_tables, spelled_out
from lower.eoperator.terms import Term, Terms, indices_of, subterms
from lower.eoperator.transforms import (
    breakpoints,
    interleaved,
    loop_order,
    merge,
    shifted,
    simplify_reductions,
    split_digits,
    with_reciprocals,
)
from lower.targets.cpu.generator.blocks import Lanes, Point
from lower.targets.cpu.generator.costs import cost_ns, is_costly, next_rows, rows_together
from lower.targets.cpu.generator.covering import cover, elements_before_a_line
from lower.targets.cpu.generator.emit import Emitter
from lower.targets.cpu.generator.functions import Expr, cast, widen
from lower.targets.cpu.generator.reduction import along_memory, vectorizes
from lower.targets.cpu.generator.split_reductions import write_parts
from lower.targets.cpu.generator.stencils import rows_sharing, write_stencil
from lower.targets.cpu.generator.streaming import LINE_ELEMENTS, fetch, prefetched, stream, streams
from lower.targets.cpu.generator.transpose import transposed_reads, write_tiles
from lower.targets.cpu.generator.unrolled import write_tile

SERIAL_NS = 20_000.0
"""Nanoseconds of work below which waking other threads does not pay."""
MAXIMUM_PARTS = 8
LEAST_PLACES = 5
"""Reads of large tensors from which prefetching pays: of windows of nine, averages take 0.6 times as long, sums of slices 0.7."""


class Planner:
    """Writes one kernel's loops into an emitter."""

    def __init__(
        self, table: Terms, emitter: Emitter, output: Any, output_type: str, threads: int, most_terms: float = math.inf
    ) -> None:
        """Begin a kernel; ``most_terms``: how many terms one of its reductions may have, in all loops around it."""
        emitter.buffers["out"], emitter.dtypes["out"] = output, output_type
        self.table, self.emitter, self.output, self.output_type, self.threads = table, emitter, output, output_type, threads
        self.most_terms = most_terms
        self.fetched_with: dict[Term, tuple[Term, ...]] = {}
        """Whose reads are fetched where a term is stored, if not its own."""
        emitter.threads = threads
        emitter.is_streamed = output_type == "float32" and streams(int(output.shape[0]) * 4)

    def kernel(self, iterators: Sequence[Iterator], root: Term, offset: Index) -> None:
        """Write the loops that store ``root`` at ``offset`` for all values of the iterators."""
        iterators, root, offset = split_digits(self.table, tuple(iterators), root, offset)
        if has_tables(root):
            if write_tile(self, iterators, root, offset):
                return
            root = spelled_out(self.table, root)
        root = with_reciprocals(self.table, simplify_reductions(self.table, root, along_memory))
        if any(term.kind == "reduce" for term in subterms((root,))):
            self._reductions(iterators, root, offset)
        else:
            self._movement(iterators, root, offset, parallel=True)

    def _replace(self, root: Term, offset: Index, replace: dict[Iterator | Symbol, Size]) -> tuple[Term, Index]:
        return self.table.substitute(root, replace), self.table.index(offset, replace)

    def _merge(self, iterators: tuple[Iterator, ...], root: Term, offset: Index) -> tuple[tuple[Iterator, ...], Term, Index]:
        merged, replace = merge(self.table, iterators, [offset, *indices_of((root,))])
        return (merged, *self._replace(root, offset, replace)) if replace else (iterators, root, offset)

    def _work_ns(self, iterators: Sequence[Iterator], root: Term) -> float:
        """Estimate the time of a nest on one thread."""
        return math.prod(length(i) for i in iterators) * cost_ns(root)

    # Elementwise and movement

    def _movement(self, iterators: tuple[Iterator, ...], root: Term, offset: Index, *, parallel: bool) -> None:
        iterators, root, offset = self._merge(iterators, root, offset)
        parallel = parallel and self.threads > 1 and self._work_ns(iterators, root) > SERIAL_NS
        if not iterators:
            self.store(root, offset, ({},))
            return
        decided = [breakpoints(i, root, frozenset(iterators)) for i in iterators]
        if all(len(points) == 2 for points in decided):
            self.pure(iterators, root, offset, parallel=parallel)
            return
        shared = rows_sharing(self.table, iterators, root)
        if shared is not None and shared[0] is iterators[0] and len(decided[0]) == 2 and length(iterators[0]) > shared[1]:
            self._movement_of_groups(iterators, root, offset, shared[1], parallel=parallel)
            return
        together = shared is not None and shared[0] is iterators[0]
        at = next(k for k, guards in enumerate(decided) if len(guards) > 2) if together else 0
        points, varied = decided[at], iterators[at]
        if len(points) > 2 and len(points) - 1 <= MAXIMUM_PARTS:
            for low, high in itertools.pairwise(points):
                part, meaning = shifted(self.table, varied, low, high)
                inner = tuple(part if i is varied else i for i in iterators if i is not varied or high - low > 1)
                self._movement(inner, *self._replace(root, offset, {varied: meaning}), parallel=parallel)
            return
        if len(iterators) > 1:
            self._movement_of_each(iterators[0], iterators[1:], root, offset, parallel=parallel)
        else:
            self.pure(iterators, root, offset, parallel=parallel)

    def _movement_of_each(self, first: Iterator, inner: tuple[Iterator, ...], root: Term, offset: Index, *, parallel: bool) -> None:
        """Write a loop over the first iterator, and in it a nest over the others."""
        wide = parallel and length(first) >= self.threads

        def body(variable: Expr) -> None:
            self.emitter.bind_iterator(first, variable)
            self._movement(inner, root, offset, parallel=parallel and not wide)

        self.emitter.loop(0, length(first), body, kind=ForKind.PARALLEL if wide else ForKind.SERIAL)

    def _movement_of_groups(self, iterators: tuple[Iterator, ...], root: Term, offset: Index, count: int, *, parallel: bool) -> None:
        """Write a nest by groups of rows that share what they read, so that each group is split at its guards; then the rows left."""
        row, *inner = iterators
        grouped = length(row) // count * count
        group, lane = self.table.fresh("g", grouped // count), self.table.fresh("r", count)
        together = self._replace(root, offset, {row: index(group) * count + lane})
        self._movement_of_each(group, (lane, *inner), *together, parallel=parallel)
        if grouped < length(row):
            part, meaning = shifted(self.table, row, grouped, length(row))
            left = (part, *inner) if length(row) - grouped > 1 else tuple(inner)
            self._movement(left, *self._replace(root, offset, {row: meaning}), parallel=parallel)

    def pure(self, iterators: tuple[Iterator, ...], root: Term, offset: Index, *, parallel: bool) -> None:
        """Write a nest whose guards do not vary: tiles for transposes, else vectors along the last axis."""
        vector = iterators[-1] if self._vector(iterators[-1], root, offset) else None
        across, reads = transposed_reads(iterators, root) if coefficient(offset, iterators[-1]) == 1 else (None, [])
        if across is not None and not _guarded_by(root, {across, iterators[-1]}):
            outer = tuple(i for i in iterators[:-1] if i is not across)
            write_tiles(self, outer, across, iterators[-1], root, offset, reads, parallel=parallel)
            return

        if vector is not None and iterators[:-1] and self._gathers_shared(root, vector, iterators):

            def lanes_first(points: tuple[Point, ...]) -> None:
                for term in subterms((root,)):  # gathered once, before the loops that share them
                    if term.kind == "read" and term.free & frozenset(iterators) == {vector}:
                        for point in points:
                            self.emitter.value(term, point)
                self._loops(iterators[:-1], lambda: self.store(root, offset, points))

            cover(self, vector, lanes_first, parallel=parallel, unroll=2)
            return

        if vector is not None and write_stencil(self, iterators, root, offset, parallel=parallel):
            return
        between = interleaved(iterators, root) if vector is not None else ()

        def inner(base_parallel: bool) -> None:
            if vector is None:
                self._scalars(iterators[-1], root, offset)
            else:
                lead = 0 if between else elements_before_a_line(self.emitter, offset, vector)

                def each(points: tuple[Point, ...]) -> None:
                    self._loops(between, lambda: self.store(root, offset, points))

                cover(self, vector, each, parallel=base_parallel, lead=lead)

        self.outer([i for i in loop_order(iterators[:-1], root) if i not in between], inner, parallel=parallel)

    def _vector(self, last: Iterator, root: Term, offset: Index) -> bool:
        if coefficient(offset, last) != 1 or length(last) < 4:
            return False
        return last not in root.free or vectorizes(root, last)

    def _gathers_shared(self, root: Term, vector: Iterator, iterators: tuple[Iterator, ...]) -> bool:
        """Return whether vectors are gathered element by element that the outer loops could share (depthwise weights)."""
        return any(
            term.kind == "read" and term.free & frozenset(iterators) == {vector} and abs(coefficient(term.data[1], vector) or 99) > 4
            for term in subterms((root,))
        )

    def _scalars(self, iterator: Iterator, root: Term, offset: Index) -> None:
        def body(variable: Expr) -> None:
            self.emitter.bind_iterator(iterator, variable)
            self.store(root, offset, ({},))

        self.emitter.loop(0, length(iterator), body)

    def outer(self, iterators: Sequence[Iterator], inner: Callable[[bool], None], *, parallel: bool) -> None:
        """Write loops over the outer iterators; in parallel, as many are fused as give every thread its share."""
        if not parallel:
            self._loops(iterators, lambda: inner(False))
            return
        fused, count = 0, 1
        while fused < len(iterators) and count < 4 * self.threads:
            count *= length(iterators[fused])
            fused += 1
        if count < 2 * self.threads and count % self.threads:
            self._loops(iterators, lambda: inner(True))
            return
        chosen, sequential = iterators[:fused], iterators[fused:]

        def body(variable: Expr) -> None:
            remaining = variable
            for position, iterator in reversed(list(enumerate(chosen))):
                if position == 0:
                    self.emitter.bind_iterator(iterator, remaining)
                else:
                    size = self.emitter.integer(length(iterator))
                    self.emitter.bind_iterator(iterator, self.emitter.bind(tirx.truncmod(remaining, size)))
                    remaining = self.emitter.bind(tirx.truncdiv(remaining, size))
            self._loops(sequential, lambda: inner(False))

        self.emitter.loop(0, count, body, kind=ForKind.PARALLEL)

    def _loops(self, iterators: Sequence[Iterator], inner: Callable[[], None]) -> None:
        if not iterators:
            inner()
            return

        def body(variable: Expr) -> None:
            self.emitter.bind_iterator(iterators[0], variable)
            self._loops(iterators[1:], inner)

        self.emitter.loop(0, length(iterators[0]), body)

    def store(self, root: Term, offset: Index, points: tuple[Point, ...]) -> None:
        """Compute ``root`` at points and store it."""
        for point in points:
            self.store_one(root, offset, point)

    def store_one(self, root: Term, offset: Index, point: Point) -> None:
        """Compute ``root`` at a point and store it."""
        emitter = self.emitter
        value = emitter.value(root, point)
        vector = next((i for i, lanes in point.items() if lanes.count > 1), None)
        if vector is None:
            where = emitter.index(offset, point)
        else:
            lanes = point[vector]
            step = coefficient(offset, vector)
            assert step is not None
            where = tirx.Ramp(emitter.index(offset, {**point, vector: Lanes(lanes.base)}), emitter.integer(step), lanes.count)
            value = widen(value, lanes.count)
            if lanes.count == LINE_ELEMENTS:
                self._prefetch(root, point, vector)
            if emitter.is_streamed and step == 1 and lanes.count == LINE_ELEMENTS:
                emitter.append(stream(self.output, where.base, self._stored(value)))
                return
        emitter.append(tirx.BufferStore(self.output, self._stored(value), [where]))

    def _prefetch(self, root: Term, point: Point, vector: Iterator) -> None:
        """Prefetch what later iterations read of large tensors, where there are more streams than the processor's prefetcher follows."""
        emitter = self.emitter
        terms = subterms(self.fetched_with.get(root, (root,)))
        reads = [t for t in terms if t.kind == "read" and coefficient(t.data[1], vector) == 1 and emitter.is_large(t.data[0])]
        if len(reads) < LEAST_PLACES:
            return
        start = {**point, vector: Lanes(point[vector].base)}
        for name in dict.fromkeys(read.data[0] for read in reads):
            for offset in prefetched([read.data[1] for read in reads if read.data[0] == name], vector):
                emitter.append(fetch(emitter.buffers[name], emitter.index(offset, start)))

    def _stored(self, value: Expr) -> Expr:
        if self.output_type == "bfloat16":
            return self.emitter.functions.to_bfloat16(cast(value, "float32"))
        return cast(value, self.output_type)

    # Reductions

    def _reductions(self, iterators: tuple[Iterator, ...], root: Term, offset: Index) -> None:
        """Split at guards first, so that the interior runs without them; then write each part."""
        parts = [(iterators, root, offset)]
        for position in range(len(iterators)):
            iterator = iterators[position]
            split = []
            for its, term, where in parts:
                if iterator not in its:
                    split.append((its, term, where))
                    continue
                points = breakpoints(iterator, term, frozenset(iterators))
                if len(points) == 2 or len(points) - 1 > MAXIMUM_PARTS:
                    split.append((its, term, where))
                    continue
                for low, high in itertools.pairwise(points):
                    part, meaning = shifted(self.table, iterator, low, high)
                    kept = (
                        tuple(part if i is iterator else i for i in its) if high - low > 1 else tuple(i for i in its if i is not iterator)
                    )
                    split.append((kept, *self._replace(term, where, {iterator: meaning})))
            parts = split
        for its, term, where in parts:
            its, term, where = self._merge(its, simplify_reductions(self.table, term, along_memory), where)
            with self.emitter.scope():
                if any(t.kind == "reduce" for t in subterms((term,))):
                    self.reduction(its, term, where, is_whole=len(parts) == 1)  # parts share reductions, not rows
                else:
                    self._movement(its, term, where, parallel=True)

    def _keep_powers(
        self, root: Term, reduces: list[Term], rows: frozenset[Iterator], row: Iterator | None, vector: Iterator, offset: Index
    ) -> Term:
        """Keep what a reduction computes at high cost in the output's row where the result needs it again (softmax)."""
        for term in reduces:
            reduction_iterators, body = term.data[1], term.children[0]
            if len(reduction_iterators) != 1 or length(reduction_iterators[0]) != length(vector) or term.free != rows:
                continue
            recomputed = self.table.substitute(body, {reduction_iterators[0]: index(vector)})
            if self.output_type != "float32" or not is_costly(body) or recomputed not in subterms((root,)):
                continue
            self.emitter.is_streamed = False  # the row is read again while the caches have it
            kept_offset = self.table.index(offset, {vector: index(reduction_iterators[0])})
            self.emitter.kept[term] = kept_offset
            if row is not None and term in self.emitter.fetched and self.emitter.is_large("out"):  # a line is read before it is written
                self.emitter.fetched[term].append(("out", self.table.index(kept_offset, {row: index(row) + 1})))
            return self.table.exchange(root, {recomputed: self.table.read("out", offset)})
        return root

    def reduction(self, iterators: tuple[Iterator, ...], root: Term, offset: Index, *, is_whole: bool) -> None:
        """Write a reduction at all values of the iterators; ``is_whole``: it is the kernel, and not one of several parts."""
        reduces = [term for term in subterms((root,)) if term.kind == "reduce"]
        rows = frozenset().union(*(term.free for term in reduces)) & frozenset(iterators)
        terms = max(math.prod(map(length, (*(term.free & frozenset(iterators)), *term.data[1]))) for term in reduces)
        if terms > self.most_terms:
            raise LowerError(f"a reduction of {terms:.0e} terms in all would compute the same sums again and again")
        parallel = self.threads > 1 and self._work_ns(iterators, root) > SERIAL_NS
        vector = iterators[-1] if iterators and coefficient(offset, iterators[-1]) == 1 and length(iterators[-1]) >= 4 else None
        if vector is not None and not all(vectorizes(body, vector) for body in [root, *reduces] if vector in body.free):
            vector = None
        inner = tuple(i for i in iterators if i not in rows and i is not vector)
        outer = tuple(i for i in iterators if i in rows and i is not vector)
        if parallel and not outer and write_parts(self, iterators, root, offset, vector):
            return
        shared = tuple(i for i in iterators if i not in rows)
        if vector not in rows and shared and coefficient(offset, shared[-1]) == 1 and transposed_reads(shared, root)[0] is not None:
            self.outer(outer, lambda in_parallel: self.pure(shared, root, offset, parallel=in_parallel), parallel=parallel)
            return
        together: tuple[Iterator, ...] = ()
        if vector is not None and vector not in rows and outer:
            count = rows_together(outer, reduces, vector, self.threads if parallel else 1, self.emitter.is_large)
            whole_groups = length(outer[-1]) // count * count
            if whole_groups < length(outer[-1]):
                for low, high in ((0, whole_groups), (whole_groups, length(outer[-1]))):
                    part, meaning = shifted(self.table, outer[-1], low, high)
                    kept = tuple(part if i is outer[-1] else i for i in iterators if i is not outer[-1] or high - low > 1)
                    with self.emitter.scope():
                        self.reduction(kept, *self._replace(root, offset, {outer[-1]: meaning}), is_whole=is_whole)
                return
            group, lane = self.table.fresh("i", whole_groups // count), self.table.fresh("r", count)
            if count > 1:
                root, offset = self._replace(root, offset, {outer[-1]: index(group) * count + lane})
                reduces = [term for term in subterms((root,)) if term.kind == "reduce"]
                rows = rows - {outer[-1]} | {group, lane}
                together, outer = (lane,), (*outer[:-1], group)
            self.emitter.fetched |= next_rows(self.table, reduces[-1], outer[-1], self.emitter.is_large)
        if is_whole and vector is not None and vector not in rows and not inner:
            root = self._keep_powers(root, reduces, rows, outer[-1] if outer else None, vector, offset)
        bound = frozenset((*outer, *together)) | ({vector} if vector is not None else frozenset())
        emitter = self.emitter

        def values(points: tuple[Point, ...]) -> None:
            for term in reduces:
                if bound.issuperset(term.free):  # a reduction inside another one's loop is computed there
                    for point in points:
                        emitter.value(term, point)

        def body(inner_parallel: bool) -> None:
            if vector is None:
                values(({},))
                self._loops(inner, lambda: self.store(root, offset, ({},)))
            elif vector in rows:

                def lane(points: tuple[Point, ...]) -> None:
                    values(points)
                    self._loops(inner, lambda: self.store(root, offset, points))

                cover(self, vector, lane, parallel=inner_parallel)
            else:
                points = tuple({i: Lanes(emitter.integer(r))} for i in together for r in range(length(i))) or ({},)
                with emitter.at_points(points):
                    values(points)
                    for point in points:
                        self._loops(inner, partial(self._row, root, offset, vector, point))

        self.outer(outer, body, parallel=parallel)

    def _row(self, root: Term, offset: Index, vector: Iterator, point: Point) -> None:
        """Write a row of the result, in vectors."""
        cover(self, vector, lambda covered: self.store(root, offset, tuple({**point, **lanes} for lanes in covered)))


def _guarded_by(root: Term, iterators: set[Iterator]) -> bool:
    return any(t.kind == "guard" and any(iterators_of(c.left - c.right) & iterators for c in t.data) for t in subterms((root,)))
