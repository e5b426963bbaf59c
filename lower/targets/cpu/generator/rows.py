"""Reduce several rows at once: what one waits for (sums across a vector, quotients, roots) is hidden behind the others.

Rows together are also fetched together, while those before are worked on: else the memory idles during the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from egraph.tensor.expr.index import Index, Iterator, index, length
from egraph.tensor.expr.laws import coefficient
from lower.eoperator.terms import Term, Terms, subterms
from lower.targets.cpu.generator.costs import dear

COUNTS = (4, 2)
"""Of rows at once: of rows of 128, softmax takes 0.91 times as long with 4 as with one. From memory, rows of 1000: 0.94 times;
but layer norm, whose arithmetic does not hide the memory, 1.26 times."""
MOST_ELEMENTS = 4096
"""Of rows that are reduced at once: a reduction leaves them in the first-level cache for the next."""


def rows_together(
    outer: Sequence[Iterator], reduces: Sequence[Term], vector: Iterator, threads: int, is_large: Callable[[str], bool]
) -> int:
    """Return how many rows to reduce at once."""
    if any(t.kind == "read" and is_large(t.data[0]) for t in subterms(reduces)) and not any(map(dear, reduces)):
        return 1
    elements = max([length(vector), *(math.prod(map(length, term.data[1])) for term in reduces)])
    rows = math.prod(map(length, outer))
    fit = [n for n in COUNTS if n * elements <= MOST_ELEMENTS and n <= length(outer[-1]) and (threads == 1 or rows >= 4 * n * threads)]
    return fit[0] if fit else 1


def next_rows(table: Terms, reduction: Term, row: Iterator, is_large: Callable[[str], bool]) -> dict[Term, list[tuple[str, Index]]]:
    """Return what to fetch while a reduction runs: what it reads of large tensors at the next place of ``row``."""
    along = reduction.data[1][-1]
    places = dict.fromkeys(term.data for term in subterms(reduction.children) if term.kind == "read" and {along, row} <= term.free)
    found = [(name, offset) for name, offset in places if coefficient(offset, along) == 1 and is_large(name)]
    return {reduction: [(name, table.index(offset, {row: index(row) + 1})) for name, offset in found]} if found else {}
