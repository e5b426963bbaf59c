"""Divide one long reduction among threads: each reduces a run of the terms, and a last step combines their results.

Few results give threads nothing to share but the lines that they read: of an image with 64 channels, the sums of two threads with half
of the channels each took 1.5 times as long from memory as those of one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm.tirx import ForKind

from egraph.tensor.expr.index import Index, Iterator, index, known, length
from lower.eoperator.request import element_type
from lower.eoperator.terms import Term, Terms, subterms
from lower.eoperator.transforms import shifted
from lower.targets.cpu.generator.blocks import LANES
from lower.targets.cpu.generator.functions import Expr

if TYPE_CHECKING:
    from lower.targets.cpu.generator.nest import Planner

STACK_BYTES = 1024
"""An array of so many bytes is not on a kernel's stack any more: TVM asks the runtime for it."""
ELEMENT_BYTES = 4
MOST_STACK_BYTES = 64 << 10
"""What all arrays of a kernel take of the stack, at most."""


@dataclass(frozen=True)
class Divided:
    """A reduction as one over parts: ``partial`` at ``offset`` of a buffer for every ``part``, and the result from there."""

    part: Iterator
    partial: Term
    offset: Index
    elements: int
    name: str
    result: Term


def divided(table: Terms, root: Term, vector: Iterator | None, threads: int) -> Divided | None:
    """Return the only reduction of ``root`` divided into parts for threads; None where it holds others, or has no such parts."""
    reduces = [term for term in subterms((root,)) if term.kind == "reduce"]
    if len(reduces) != 1 or not reduces[0].free <= ({vector} if vector is not None else frozenset()):
        return None
    (term,) = reduces
    reduction, (first, *others) = term.data
    width = length(vector) if vector is not None and vector in term.free else 1
    terms, left = divmod(length(first), threads)
    if left or terms == 1 or threads * width * ELEMENT_BYTES >= STACK_BYTES:
        return None
    part, within, summed = table.fresh("p", threads), table.fresh("k", terms), table.fresh("p", threads)
    body = table.substitute(term.children[0], {first: index(part) * terms + within + known(first.low)})
    column = index(vector) - known(vector.low) if vector is not None and vector in term.free else index(0)
    name = f"parts{part.name}"
    total = table.reduce(reduction, (summed,), table.read(name, index(summed) * width + column))
    partial = table.reduce(reduction, (within, *others), body)
    return Divided(part, partial, index(part) * width + column, threads * width, name, table.exchange(root, {term: total}))


def write_parts(planner: Planner, iterators: tuple[Iterator, ...], root: Term, offset: Index, vector: Iterator | None) -> bool:
    """Write a reduction whose terms are divided among threads, where possible; return whether it is written."""
    table, emitter, threads = planner.table, planner.emitter, planner.threads
    blocks = [(iterators, root, offset, vector)]
    if vector is not None and any(vector in term.free for term in subterms((root,)) if term.kind == "reduce"):
        ranges = column_blocks(length(vector), threads)
        if len(ranges) != 1 and len(iterators) > 1:
            return False  # blocks of columns of a whole tensor would be written one after the other
        blocks = [_block(table, root, offset, vector, *each) for each in ranges] if len(ranges) != 1 else blocks
    divisions = [division for _, part_root, _, columns in blocks if (division := divided(table, part_root, columns, threads)) is not None]
    if not blocks or len(divisions) < len(blocks):
        return False
    with emitter.scope(barrier=True):  # the parts are read after all are written
        for division in divisions:
            kind = element_type(division.partial, emitter.dtypes) or "float32"
            emitter.buffers[division.name], emitter.dtypes[division.name] = emitter.array(kind, division.elements), kind
        is_streamed, emitter.is_streamed = emitter.is_streamed, False

        def part(number: Expr) -> None:
            for division, (_, _, _, columns) in zip(divisions, blocks, strict=True):
                within = copy.copy(planner)
                within.threads = 1
                within.output, within.output_type = emitter.buffers[division.name], emitter.dtypes[division.name]
                emitter.bind_iterator(division.part, number)
                summed = (columns,) if columns is not None and columns in division.partial.free else ()
                with emitter.scope():
                    within.reduction(summed, division.partial, division.offset, is_whole=False)

        emitter.loop(0, threads, part, kind=ForKind.PARALLEL)
        emitter.is_streamed = is_streamed
        for division, (kept, _, part_offset, _) in zip(divisions, blocks, strict=True):
            with emitter.scope():
                planner.reduction(kept, division.result, part_offset, is_whole=False)
    return True


def _block(
    table: Terms, root: Term, offset: Index, vector: Iterator, low: int, high: int
) -> tuple[tuple[Iterator, ...], Term, Index, Iterator | None]:
    """Return the nest of some columns: its iterators, what it stores and where, and its columns."""
    columns, meaning = shifted(table, vector, low, high)
    moved = table.substitute(root, {vector: meaning}), table.index(offset, {vector: meaning})
    return ((columns,), *moved, columns) if high - low > 1 else ((), *moved, None)


def column_blocks(width: int, threads: int) -> list[tuple[int, int]]:
    """Return columns in blocks of whole vectors whose sums by all threads lie in one array on the stack; none where no vector fits."""
    most = (STACK_BYTES - 1) // (ELEMENT_BYTES * threads)
    if width <= most:
        return [(0, width)]
    step = most // LANES * LANES
    if not step or threads * width * ELEMENT_BYTES > MOST_STACK_BYTES:
        return []
    return [(low, min(low + step, width)) for low in range(0, width, step)]
