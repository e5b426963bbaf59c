"""Band products, which no library has: G2BMM and GBMM of sparse attention, recognised so that search and reports can speak of them.

    G2BMM  out[b,m,w] = sum(k) A[b,m,k] * B[b, m + d*w - o, k]      each row with the rows of a band around it
    GBMM   out[b,m,n] = sum(w) A[b,m,w] * B[b, m + d*w - o, n]      each row times the band's rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from egraph.derive.matching.form import Form, form
from egraph.derive.matching.laws import affine
from egraph.derive.matching.products import occurring, roles_of, two_reads
from egraph.tensor.expr.index import Iterator, length
from egraph.tensor.expr.scope import Read, Scope, Tensor


@dataclass(frozen=True, slots=True)
class Band:
    """A band product: ``taps`` rows around each of ``rows``, ``dilation`` apart, the first ``offset`` above it.

    ``inner`` is the size of k in G2BMM, of n in GBMM; ``left`` and ``right`` are the positions of A and B.
    """

    name: Literal["G2BMM", "GBMM"]
    batch: int
    rows: int
    taps: int
    inner: int
    dilation: int
    offset: int
    left: int
    right: int


def band(scope: Scope) -> Band | None:
    """Return a scope as a band product, or None."""
    whole = form(scope)
    reads = two_reads(whole)
    if reads is None:
        return None
    return _band(whole, reads[0], reads[1]) or _band(whole, reads[1], reads[0])


def _band(form: Form, left: Read, right: Read) -> Band | None:
    """Look for the one axis of B that a row and a tap share."""
    roles = roles_of(form, left, right)
    assert isinstance(left.source, Tensor) and isinstance(right.source, Tensor)
    if roles is None or roles.left or len(roles.summed) != 1 or len(roles.right) != 1:
        return None
    shared: list[tuple[int, Iterator, Iterator, int]] = []
    for place in right.indices:
        parts = affine(place)
        if parts is None:
            return None
        if len(parts[1]) > 1:
            row = [i for i, c in parts[1].items() if i in roles.batch and c == 1]
            tap = [i for i in parts[1] if i not in roles.batch]
            if len(row) != 1 or len(tap) != 1 or len(parts[1]) != 2:
                return None
            shared.append((parts[0], row[0], tap[0], parts[1][tap[0]]))
    if len(shared) != 1 or any(len(parts[1]) > 1 for parts in map(affine, left.indices) if parts is not None):
        return None
    ((constant, row_iterator, tap_iterator, dilation),) = shared
    rows = length(row_iterator)
    batch = 1
    for i in roles.batch:
        batch *= length(i)
    summed, column = roles.summed[0], roles.right[0]
    product = tap_iterator == column
    if {row_iterator, tap_iterator} - occurring(left) != ({tap_iterator} if product else set()) or dilation < 1:
        return None
    return Band(
        "G2BMM" if product else "GBMM", batch // rows, rows, length(tap_iterator), length(summed if product else column), dilation,
        -constant, int(left.source.name), int(right.source.name),
    )  # fmt: skip
