"""Divide one long reduction among threads: each reduces a run of the terms, and a last step combines their results.

Few results give threads nothing to share but the lines that they read: of an image with 64 channels, the sums of two threads with half
of the channels each took 1.5 times as long from memory as those of one.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from egraph.tensor.expr.index import Index, Iterator, index, known, length
from lower.eoperator.request import element_type
from lower.eoperator.terms import Term, Terms, subterms

if TYPE_CHECKING:
    from lower.targets.cpu.generator.nest import Planner

STACK_BYTES = 1024
"""An array of so many bytes is not on a kernel's stack any more: TVM asks the runtime for it."""
ELEMENT_BYTES = 4


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
    division = divided(planner.table, root, vector, planner.threads)
    if division is None:
        return False
    emitter = planner.emitter
    columns = (vector,) if vector is not None and vector in division.partial.free else ()
    with emitter.scope(barrier=True):  # the parts are read after all are written
        within = copy.copy(planner)
        kind = element_type(division.partial, emitter.dtypes) or "float32"
        within.output, within.output_type = emitter.array(kind, division.elements), kind
        emitter.buffers[division.name], emitter.dtypes[division.name] = within.output, kind
        is_streamed, emitter.is_streamed = emitter.is_streamed, False
        with emitter.scope():
            within.reduction((division.part, *columns), division.partial, division.offset, is_whole=False)
        emitter.is_streamed = is_streamed
        planner.reduction(iterators, division.result, offset, is_whole=False)
    return True
