"""Transpose square tiles in registers by shuffles of vectors, in blocks that the caches hold.

Within a block, results are written in runs of many lines. What a large tensor has for the next block is fetched meanwhile,
in its own order, because the processor foresees only one of the two orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tvm import tirx
from tvm.tirx import ForKind

from egraph.tensor.expr.index import Index, Iterator, length
from egraph.tensor.expr.laws import coefficient
from lower.eoperator.terms import Term, subterms
from lower.targets.cpu.generator.blocks import LANES, Lanes, Point, shuffle
from lower.targets.cpu.generator.emit import Emitter
from lower.targets.cpu.generator.functions import Expr, lanes, widen
from lower.targets.cpu.generator.streaming import LINE_ELEMENTS, fetch

if TYPE_CHECKING:
    from lower.targets.cpu.generator.nest import Planner

SMALLEST = 4
BLOCK = 16 * LANES
"""Rows and columns of a block: several lines of every row and column are touched while the caches know them."""


def transposed_reads(iterators: Sequence[Iterator], root: Term) -> tuple[Iterator | None, list[Term]]:
    """Return the axis along which reads that stride over the last axis are contiguous, and those reads."""
    along = iterators[-1]
    votes: Counter[Iterator] = Counter()
    reads: dict[Iterator, list[Term]] = {}
    for term in subterms((root,)):
        if term.kind != "read" or coefficient(term.data[1], along) in (None, 0, 1, -1):
            continue
        for iterator in iterators[:-1]:
            if coefficient(term.data[1], iterator) == 1 and length(iterator) >= SMALLEST:
                votes[iterator] += 1
                reads.setdefault(iterator, []).append(term)
    if not votes or length(along) < SMALLEST:
        return None, []
    across = max(votes, key=lambda i: (votes[i], length(i), i.name))
    return across, reads[across]


def transpose_tile(emitter: Emitter, read: Term, across: Iterator, along: Iterator, points: Sequence[Point]) -> None:
    """Load a tile's columns and give every row's vector to the emitter as the read's value there."""
    rows, columns = len(points), points[0][along].count
    if rows == 1 or columns == 1:
        return
    name, offset = read.data
    base = points[0][across].base
    column_base = points[0][along].base
    size = min(rows, columns)
    parts: list[list[Expr]] = [[] for _ in range(rows)]
    for left in range(0, columns, size):
        for top in range(0, rows, size):
            loaded = []
            for j in range(size):
                at = {across: Lanes(base), along: Lanes(column_base + emitter.integer(left + j))}
                start = emitter.index(offset, at) + emitter.integer(top)
                loaded.append(emitter.bind(tirx.BufferLoad(emitter.buffers[name], [tirx.Ramp(start, emitter.integer(1), size)])))
            for j, row in enumerate(transpose(emitter, loaded)):
                parts[top + j].append(row)
    for point, pieces in zip(points, parts, strict=True):
        vector = pieces[0]
        for piece in pieces[1:]:
            vector = emitter.bind(shuffle([vector, piece], range(lanes(vector) + lanes(piece))))
        emitter.give(read, point, emitter.bind(emitter.computed(name, vector)))


def reads_to_swap(iterators: tuple[Iterator, Iterator], root: Term, transposed: int) -> list[Term] | None:
    """Return the reads to transpose beside the result, in place of as many as ``transposed``; None where that saves no transpose.

    They lie as the result does. ``iterators``: the axis along which the ``transposed`` reads are contiguous, and that of the result.
    """
    across, along = iterators
    swapped: list[Term] = []
    for term in subterms((root,)):
        if term.kind == "read" and coefficient(term.data[1], across) not in (0, 1):
            if coefficient(term.data[1], along) != 1:
                return None
            swapped.append(term)
    return swapped if 1 + len(swapped) < transposed and across in root.free else None


def transpose_result(
    emitter: Emitter, root: Term, swapped: Sequence[Term], across: Iterator, along: Iterator, points: Sequence[Point]
) -> None:
    """Compute a tile's columns, transpose them and give every row's vector to the emitter as the value of ``root`` there.

    A window's maximum of nine positions is one transpose in place of nine.
    """
    rows, columns = len(points), points[0][along].count
    if rows == 1 or columns == 1:
        return
    row, column = points[0][across].base, points[0][along].base
    at = tuple({across: Lanes(row, rows), along: Lanes(column + emitter.integer(j) if j else column)} for j in range(columns))
    with emitter.at_points(at):
        for read in swapped:
            transpose_tile(emitter, read, along, across, at)
        vectors = [emitter.bind(widen(emitter.value(root, point), rows)) for point in at]
    for top in range(0, rows, columns):
        part = vectors
        if columns < rows:
            part = [emitter.bind(shuffle([vector], range(top, top + columns))) for vector in vectors]
        for point, vector in zip(points[top : top + columns], transpose(emitter, part), strict=True):
            emitter.give(root, point, vector)


def transpose(emitter: Emitter, rows: Sequence[Expr]) -> list[Expr]:
    """Return the transpose of n vectors of n elements: log n rounds that exchange blocks of halving size."""
    size = len(rows)
    current = list(rows)
    half = size // 2
    while half:
        following: list[Expr | None] = [None] * size
        low = [k if k & half == 0 else size + k - half for k in range(size)]
        high = [k + half if k & half == 0 else size + k for k in range(size)]
        for k in range(size):
            if k & half == 0:
                following[k] = emitter.bind(shuffle([current[k], current[k + half]], low))
                following[k + half] = emitter.bind(shuffle([current[k], current[k + half]], high))
        current = [value for value in following if value is not None]
        half //= 2
    return current


def write_tiles(
    planner: Planner,
    outer: tuple[Iterator, ...],
    across: Iterator,
    along: Iterator,
    root: Term,
    offset: Index,
    reads: list[Term],
    *,
    parallel: bool,
) -> None:
    """Write square tiles: read along one axis, transposed in registers, written along the other."""
    emitter = planner.emitter
    fetched = [read for read in reads if emitter.is_large(read.data[0])]
    swapped = reads_to_swap((across, along), root, len(reads)) if planner.output_type in ("float32", "bfloat16") else None

    # Of the two sides, the one with longer steps is traversed in runs of many lines; the other stays in the caches. What is
    # prefetched is in the caches, in whichever order it is read.
    in_runs = bool(fetched) or all(abs(coefficient(read.data[1], along) or 0) <= abs(coefficient(offset, across) or 0) for read in reads)

    def tile(rows: int, columns: int, row: Expr, column: Expr) -> None:
        points = tuple({across: Lanes(row + emitter.integer(j) if j else row), along: Lanes(column, columns)} for j in range(rows))
        with emitter.at_points(points):
            if swapped is not None:
                transpose_result(emitter, root, swapped, across, along, points)
            for read in reads if swapped is None else ():
                transpose_tile(emitter, read, across, along, points)
            planner.store(root, offset, points)

    def prefetch(number: Expr, lines: int, row: Expr, column: Expr) -> None:
        """Fetch a tile's share of the block at a row and column, of which every column has so many lines."""
        for line in range(LINE_ELEMENTS):
            if LINE_ELEMENTS % lines == 0:
                run = number * emitter.integer(LINE_ELEMENTS // lines) + emitter.integer(line // lines)
                within = emitter.integer(line % lines)
            else:
                position = number * emitter.integer(LINE_ELEMENTS) + emitter.integer(line)
                run, within = tirx.truncdiv(position, emitter.integer(lines)), tirx.truncmod(position, emitter.integer(lines))
            at = {across: Lanes(row + within * emitter.integer(LINE_ELEMENTS)), along: Lanes(column + run)}
            for read in fetched:
                emitter.append(fetch(emitter.buffers[read.data[0]], emitter.index(read.data[1], at)))

    def block(rows: int, height: int, columns: int, width: int, row: Expr, column: Expr) -> None:
        """Write a block of tiles, and fetch the next while they are whole."""
        following = (row + emitter.integer(rows), column) if length(along) <= columns else (row, column + emitter.integer(columns))

        def write_tile(r: Expr, c: Expr) -> None:
            tile(height, width, emitter.bind(row + r * emitter.integer(height)), emitter.bind(column + c * emitter.integer(width)))
            if fetched and height == width == LANES:
                number = r * emitter.integer(columns // width) + c if in_runs else c * emitter.integer(rows // height) + r
                prefetch(number, rows // LANES, *following)

        if in_runs:
            _loop(emitter, rows // height, lambda r: _loop(emitter, columns // width, lambda c: write_tile(r, c)))
        else:
            _loop(emitter, columns // width, lambda c: _loop(emitter, rows // height, lambda r: write_tile(r, c)))

    def shared(among_threads: bool, blocks: int) -> bool:
        return among_threads and blocks >= planner.threads

    def strips(rows: int, height: int, among_threads: bool, row: Expr) -> None:
        for first, columns, width, blocks in _pieces(length(along), height):
            body = _blocks(emitter, first, columns, partial(block, rows, height, columns, width, row))
            _loop(emitter, blocks, body, parallel=shared(among_threads, blocks))

    def inner(inner_parallel: bool) -> None:
        for first, rows, height, blocks in _pieces(length(across), LANES):
            by_rows = shared(inner_parallel, blocks)
            body = _blocks(emitter, first, rows, partial(strips, rows, height, inner_parallel and not by_rows))
            _loop(emitter, blocks, body, parallel=by_rows)

    planner.outer(outer, inner, parallel=parallel)


def _pieces(size: int, largest: int) -> list[tuple[int, int, int, int]]:
    """Cover a range by (start, size of a block, size of its tiles, number of blocks): blocks of many tiles, then ever smaller tiles."""
    pieces: list[tuple[int, int, int, int]] = []
    start = 0

    def add(step: int, tile: int) -> None:
        nonlocal start
        blocks = (size - start) // step if step else 0
        if blocks:
            pieces.append((start, step, tile, blocks))
            start += blocks * step

    if largest == LANES:
        add(BLOCK, LANES)
        add((size - start) // LANES * LANES, LANES)
    for step in (8, 4, 1):
        if step <= largest:
            add(step, step)
    return pieces


def _blocks(emitter: Emitter, first: int, step: int, body: Callable[[Expr], None]) -> Callable[[Expr], None]:
    return lambda block: body(emitter.bind(block * emitter.integer(step) + emitter.integer(first)))


def _loop(emitter: Emitter, count: int, body: Callable[[Expr], None], *, parallel: bool = False) -> None:
    """Write a loop, or its body where it runs once."""
    if count == 1:
        with emitter.scope():
            body(emitter.integer(0))
    else:
        emitter.loop(0, count, body, kind=ForKind.PARALLEL if parallel else ForKind.SERIAL)
