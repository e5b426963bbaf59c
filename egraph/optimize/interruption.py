"""Handle Ctrl-C reliably: Python drops an exception that arrives inside a finaliser, so the request is recorded, too."""

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
    """End the run at SIGINT and SIGTERM by ``KeyboardInterrupt``, at once or at the next ``heed``."""
    _Request.made = _Request.is_deferred = False
    signal.signal(signal.SIGINT, _ask)
    signal.signal(signal.SIGTERM, _ask)


def heed() -> None:
    """Raise ``KeyboardInterrupt`` if the end was requested and the exception was lost."""
    if _Request.made:
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Defer requests to the end of this block, because interrupting the loading of an extension module aborts the process."""
    _Request.is_deferred = True
    try:
        yield
    finally:
        _Request.is_deferred = False
    heed()


@contextmanager
def heeded() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` in place of any error after a request, because interrupted code may fail in any way."""
    try:
        yield
    except Exception:
        heed()
        raise


def settle() -> None:
    """Ignore requests from now on: results are moved into place, and the remaining work takes moments."""
    heed()
    if not _Request.is_settling:
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is _ask:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def unsettled() -> Iterator[None]:
    """Go on heeding requests after ``settle``, because these results go into a folder that is deleted with an interrupted run."""
    _Request.is_settling = False
    try:
        yield
    finally:
        _Request.is_settling = True


def _ask(number: int, frame: FrameType | None) -> None:
    _Request.made = True
    if not _Request.is_deferred:
        raise KeyboardInterrupt
