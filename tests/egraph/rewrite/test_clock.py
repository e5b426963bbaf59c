"""The time of a rule is limited: its own thread's processor time, whatever other threads do."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from egraph.rewrite.clock import OutOfTime, look, within


def work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def in_another_thread(seconds: float) -> list[BaseException]:
    """Work in another thread and look there; return what was raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work(seconds)
            look()
        except OutOfTime as error:
            raised.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return raised


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
        in_another_thread(0.4)
        look()


def test_a_limit_is_not_one_of_other_threads() -> None:
    with within(0.05):
        work(0.1)
        assert not in_another_thread(0.1)
        with pytest.raises(OutOfTime):
            look()
