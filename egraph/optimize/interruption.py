"""Ctrl-C that is not lost: Python drops an exception that arrives inside a finaliser, so the request is also remembered."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class _Request:
    made = False
    is_deferred = False
    is_settling = True


def install() -> None:
    """Have SIGINT and SIGTERM end the run as ``KeyboardInterrupt``, at once or at the next ``heed``."""
    _Request.made = _Request.is_deferred = False
    signal.signal(signal.SIGINT, _ask)
    signal.signal(signal.SIGTERM, _ask)


def heed() -> None:
    """Raise ``KeyboardInterrupt`` where the end was asked for and the exception got lost."""
    if _Request.made:
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Have a request wait for the end of this: an extension module that is interrupted while it is loaded aborts the process."""
    _Request.is_deferred = True
    try:
        yield
    finally:
        _Request.is_deferred = False
    heed()


@contextmanager
def heeded() -> Iterator[None]:
    """Have what fails after a request end as the request: what was cut in two by it may fail in any way."""
    try:
        yield
    except Exception:
        heed()
        raise


def settle() -> None:
    """Ignore requests from now on: results are put in their places, and what is left to do takes moments."""
    heed()
    if not _Request.is_settling:
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _ask:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def unsettled() -> Iterator[None]:
    """Go on heeding requests after ``settle``: the results are put into a folder that goes with an interrupted run."""
    _Request.is_settling = False
    try:
        yield
    finally:
        _Request.is_settling = True


def _ask(number: int, frame: FrameType | None) -> None:
    _Request.made = True
    if not _Request.is_deferred:
        raise KeyboardInterrupt
