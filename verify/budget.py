"""Work that a proof may do, counted where proofs spend their time: the same on every machine, however busy it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from egraph.rewrite.clock import look

PATH = 50
"""Units of a run of a rule's function; a bound of a polynomial, a conjunction and a paired term are one each, a question to Z3 none."""

BETWEEN_LOOKS = 200
"""Units between two looks at the clock."""

GENERAL_WORK = 4_000_000
"""Units after which the proof of a shipped rule for all sizes is given up; no rule that ships gets there."""


class Exhausted(Exception):
    """The work that was allowed is done and the question is open."""


class _Meter:
    def __init__(self) -> None:
        self.left, self.unseen = math.inf, 0


_METER = _Meter()


def spend(units: int = 1) -> None:
    """Count work; raise ``Exhausted`` when more is done than allowed, ``OutOfTime`` when the clock says so."""
    _METER.left -= units
    _METER.unseen += units
    if _METER.unseen > BETWEEN_LOOKS:
        _METER.unseen = 0
        look()
    if _METER.left < 0:
        raise Exhausted


@contextmanager
def at_most(units: float) -> Iterator[None]:
    """Allow so much work inside the block; an outer limit goes on counting."""
    outer = _METER.left
    start = _METER.left = min(outer, units)
    try:
        yield
    finally:
        _METER.left = outer if outer == math.inf else outer - (start - _METER.left)  # infinity less infinity is no number
