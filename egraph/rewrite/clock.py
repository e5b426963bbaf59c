"""Limits on the processor time of a rule, for its own loops and for its proof."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(Exception):
    """The time for a rule is up."""


class _Clock:
    def __init__(self) -> None:
        self.deadline, self.seconds = float("inf"), 0.0


_CLOCK = _Clock()


def look() -> None:
    """Raise ``OutOfTime`` if the time is up."""
    if _CLOCK.deadline < float("inf") and time.process_time() > _CLOCK.deadline:  # reading the clock costs most of a step
        raise OutOfTime(f"{_CLOCK.seconds:g} s of processor time")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit the processor time inside the block, in seconds; an outer limit still applies."""
    outer = _CLOCK.deadline, _CLOCK.seconds
    deadline = time.process_time() + seconds
    if deadline < _CLOCK.deadline:
        _CLOCK.deadline, _CLOCK.seconds = deadline, seconds
    try:
        yield
    finally:
        _CLOCK.deadline, _CLOCK.seconds = outer
