"""Limits on the processor time of a rule, for its own loops and for its proof; other threads neither count nor are limited."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(Exception):
    """The time for a rule is up."""


class _Clock(threading.local):
    def __init__(self) -> None:
        self.deadline, self.seconds = float("inf"), 0.0


_CLOCK = _Clock()


def look() -> None:
    """Raise ``OutOfTime`` if this thread's time is up."""
    if _CLOCK.deadline < float("inf") and time.thread_time() > _CLOCK.deadline:  # reading the clock costs most of a step
        raise OutOfTime(f"{_CLOCK.seconds:g} s of processor time")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limit this thread's processor time inside the block, in seconds; an outer limit still applies."""
    outer = _CLOCK.deadline, _CLOCK.seconds
    deadline = time.thread_time() + seconds
    if deadline < _CLOCK.deadline:
        _CLOCK.deadline, _CLOCK.seconds = deadline, seconds
    try:
        yield
    finally:
        _CLOCK.deadline, _CLOCK.seconds = outer
