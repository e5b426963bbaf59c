"""The work budget of a proof, counted where proofs spend their time; it is the same on every machine under any load."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from egraph.rewrite.clock import look

PATH = 50
"""Units of a run of a rule's function. A bound of a polynomial, a conjunction and a paired term cost one each, a question to Z3 none."""

BETWEEN_LOOKS = 200
"""Units between two checks of the clock."""

GENERAL_WORK = 4_000_000
"""Units after which the proof of a shipped rule for all sizes stops; no shipped rule reaches this limit."""


class Exhausted(Exception):
    """The budget is used up and the question is open."""


class _Meter:
    def __init__(self) -> None:
        self.left, self.unseen = math.inf, 0


_METER = _Meter()


def spend(units: int = 1) -> None:
    """Count work; raise ``Exhausted`` if the budget is exceeded, ``OutOfTime`` if the time is."""
    _METER.left -= units
    _METER.unseen += units
    if _METER.unseen > BETWEEN_LOOKS:
        _METER.unseen = 0
        look()
    if _METER.left < 0:
        raise Exhausted


@contextmanager
def at_most(units: float) -> Iterator[None]:
    """Limit the work inside the block; an outer limit also counts it."""
    outer = _METER.left
    start = _METER.left = min(outer, units)
    try:
        yield
    finally:
        _METER.left = outer if outer == math.inf else outer - (start - _METER.left)  # inf - inf is NaN
