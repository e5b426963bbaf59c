"""Transpose square tiles in registers by shuffles of vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tvm import tirx

from egraph.expr.index import Iterator
from lower.eoperator.blocks import Place, Point, shuffle
from lower.eoperator.emit import Emitter
from lower.eoperator.functions import Expr, lanes
from lower.eoperator.terms import Term, coefficient, extent, subterms

SMALLEST = 4


def transposed_reads(iterators: Sequence[Iterator], root: Term) -> tuple[Iterator | None, list[Term]]:
    """Return the axis along which reads that stride over the last axis are contiguous, and those reads."""
    along = iterators[-1]
    votes: Counter[Iterator] = Counter()
    reads: dict[Iterator, list[Term]] = {}
    for term in subterms((root,)):
        if term.kind != "read" or coefficient(term.data[1], along) in (None, 0, 1, -1):
            continue
        for iterator in iterators[:-1]:
            if coefficient(term.data[1], iterator) == 1 and extent(iterator) >= SMALLEST:
                votes[iterator] += 1
                reads.setdefault(iterator, []).append(term)
    if not votes or extent(along) < SMALLEST:
        return None, []
    across = max(votes, key=lambda i: (votes[i], extent(i), i.name))
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
                at = {across: Place(base), along: Place(column_base + emitter.integer(left + j))}
                start = emitter.index(offset, at) + emitter.integer(top)
                loaded.append(emitter.bind(tirx.BufferLoad(emitter.buffers[name], [tirx.Ramp(start, emitter.integer(1), size)])))
            for j, row in enumerate(transpose(emitter, loaded)):
                parts[top + j].append(row)
    for point, pieces in zip(points, parts, strict=True):
        vector = pieces[0]
        for piece in pieces[1:]:
            vector = emitter.bind(shuffle([vector, piece], range(lanes(vector) + lanes(piece))))
        emitter.give(read, point, vector)


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
