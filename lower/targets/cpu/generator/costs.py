"""Estimate the work of scalar terms in vector code, to decide on threads, on values to keep, and on rows reduced at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from egraph.tensor.expr.index import Index, Iterator, index, length
from egraph.tensor.expr.laws import coefficient
from lower.eoperator.terms import Term, Terms, subterms

ROWS_AT_ONCE = (4, 2)
"""Numbers of rows that may be reduced at once. With 4 rows of 128, softmax takes 0.91 times as long as with one; rows of 1000 read from
memory take 0.94 times, but 1.26 times in layer norm, whose arithmetic does not hide the memory."""
MOST_ELEMENTS = 4096
"""The most elements of rows that are reduced at once: a reduction leaves them in the first-level cache for the next one."""
_COST_NS = {
    "exp": 0.35,
    "log": 0.5,
    "pow": 1.0,
    "tanh": 0.4,
    "erf": 0.4,
    "sin": 0.5,
    "cos": 0.5,
    "div": 0.15,
    "sqrt": 0.2,
    "reciprocal": 0.15,
}


def cost_ns(root: Term) -> float:
    """Estimate the time of one element with vector code, in nanoseconds."""
    total = 0.1
    for term in subterms((root,)):
        if term.kind == "apply":
            total += _COST_NS.get(term.data, 0.03)
        elif term.kind == "read":
            total += 0.1
        elif term.kind == "reduce":
            total += math.prod(length(i) for i in term.data[1]) * 0.08
    return total


def is_costly(term: Term) -> bool:
    """Return whether a term takes long enough that computing it twice should be avoided."""
    return any(t.kind == "apply" and t.data in ("exp", "log", "tanh", "erf", "pow", "sin", "cos") for t in subterms((term,)))


def rows_together(
    outer: Sequence[Iterator], reduces: Sequence[Term], vector: Iterator, threads: int, is_large: Callable[[str], bool]
) -> int:
    """Return how many rows to reduce at once: the latency of one (sums across a vector, quotients, roots) is hidden by the others."""
    if any(t.kind == "read" and is_large(t.data[0]) for t in subterms(reduces)) and not any(map(is_costly, reduces)):
        return 1
    elements = max([length(vector), *(math.prod(map(length, term.data[1])) for term in reduces)])
    rows = math.prod(map(length, outer))
    fitting = [n for n in ROWS_AT_ONCE if n * elements <= MOST_ELEMENTS and n <= length(outer[-1])]
    fit = [n for n in fitting if threads == 1 or rows >= 4 * n * threads]
    return fit[0] if fit else 1


def next_rows(table: Terms, reduction: Term, row: Iterator, is_large: Callable[[str], bool]) -> dict[Term, list[tuple[str, Index]]]:
    """Return what to fetch while a reduction runs: what it reads of large tensors at the next position of ``row``.

    Without it the memory idles during the arithmetic.
    """
    along = reduction.data[1][-1]
    reads = dict.fromkeys(term.data for term in subterms(reduction.children) if term.kind == "read" and {along, row} <= term.free)
    fetched = [(name, offset) for name, offset in reads if coefficient(offset, along) == 1 and is_large(name)]
    return {reduction: [(name, table.index(offset, {row: index(row) + 1})) for name, offset in fetched]} if fetched else {}
