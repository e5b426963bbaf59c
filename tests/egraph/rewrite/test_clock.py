"""The time of a rule is limited: its own thread's processor time, whatever other threads do."""

from __future__ import annotations

import time
from threading import Event, Thread

import pytest

from egraph.rewrite.clock import OutOfTime, look, within


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_a_limit_ends_with_its_block() -> None:
    with within(0.05):
        look()
        work(0.1)
        with pytest.raises(OutOfTime, match=r"0\.05 s of processor time"):
            look()
    look()


def test_an_outer_limit_still_applies() -> None:
    with within(0.05), within(100.0):
        work(0.1)
        with pytest.raises(OutOfTime, match=r"0\.05 s"):
            look()


def test_the_work_of_another_thread_does_not_count() -> None:
    """Kernels are compiled in another thread while rules are applied.

    Regression: its work used up the time of the rules. Every match was then out of time while the search itself was not, so all its
    iterations went by with nothing done, and none was left for derivations.
    """
    with within(0.2):
        other = Thread(target=work, args=(0.4,))
        other.start()
        other.join()
        look()


def test_a_limit_is_not_one_of_other_threads() -> None:
    is_limited, is_over = Event(), Event()

    def run() -> None:
        with within(0.0):
            is_limited.set()
            is_over.wait(60.0)

    thread = Thread(target=run)
    thread.start()
    assert is_limited.wait(60.0)
    work(0.01)  # this thread has worked for longer than the other one
    look()
    is_over.set()
    thread.join()
