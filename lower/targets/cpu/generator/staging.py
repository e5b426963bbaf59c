"""Find reads whose addresses fall into few sets of the cache.

Channels, tiles and rows are often powers of two, and so are the distances between what one tile reads: such lines evict
each other before their neighbours are read. Taken a few lines at a time, each place in turn, into a buffer, they do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from egraph.tensor.expr.index import Index, Iterator
from egraph.tensor.expr.laws import coefficient
from lower.eoperator.terms import Term

PAGE_BYTES = 4096
"""First-level caches choose the set by bits within a page, so that they need not wait for its address."""
LINE_BYTES = 64
MOST_LINES = 16
"""Lines in one set from which buffers are faster: measured with 36 places, where 9 in a set lose by them and 18 gain a quarter."""
VECTORS = 4
"""Vectors of one place that are moved together: as fast as 8 in half the space."""


def crowded(offsets: Sequence[Index], element_bytes: int) -> bool:
    """Return whether lines at these offsets fall into so few sets that they do not fit."""
    forms: dict[Index, set[int]] = {}
    for offset in offsets:
        constant = offset.constant_part
        forms.setdefault(offset - constant, set()).add(constant)
    for constants in forms.values():
        sets = Counter(constant * element_bytes % PAGE_BYTES // LINE_BYTES for constant in constants)
        if max(sets.values()) > MOST_LINES:
            return True
    return False


def crowded_reads(roots: Sequence[Term], vector: Iterator, element_bytes: int) -> list[Term]:
    """Return the contiguous reads, outside of guards, of tensors that are read at crowded places."""
    found: dict[Term, None] = {}
    seen: set[Term] = set()
    stack = [*reversed(roots)]
    while stack:
        term = stack.pop()
        if term in seen or term.kind in ("guard", "reduce"):
            continue
        seen.add(term)
        if term.kind == "read" and coefficient(term.data[1], vector) == 1:
            found[term] = None
        stack += reversed(term.children)
    names: dict[str, list[Term]] = {}
    for read in found:
        names.setdefault(read.data[0], []).append(read)
    return [read for reads in names.values() if crowded([r.data[1] for r in reads], element_bytes) for read in reads]
