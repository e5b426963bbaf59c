"""The seconds of a search are attributed: what counts as work, and which part of the program a stack belongs to."""

from __future__ import annotations

import sys
import time

from bench.stages import Row, Watch, page, part_of
from lower.roofline import work
from tests.support.fragments import leaf


def test_sleeping_is_no_work_and_computing_is() -> None:
    with Watch() as watch:
        time.sleep(0.2)
        slept = watch.now()
        started = time.thread_time()
        while time.thread_time() - started < 0.3:
            work(leaf(0, 4))
        computed = watch.now() - slept
    assert slept < 0.15 and 0.29 < computed < 1.0, "no tick loses what the main thread computes while it reads"
    assert sum(watch.parts.values()) > 0.1


def test_a_stack_is_in_the_innermost_part_of_the_program() -> None:
    assert part_of(sys._getframe()) == "other"
    assert part_of(None) == "other"


def test_the_page_has_every_stage() -> None:
    row = Row("net", 30.0, 20.0, 15.0, {"saturate": 9.0, "measure": 6.0}, {"proofs": 4.0, "rules": 0.001}, 3.0, 12, 345.0, "faster")
    text = page([row], {"command": "c", "date": "d", "commit": "e", "cpu": "f", "cores": 2, "python": "3", "versions": {}})
    assert "| net | 9.0 | 6.0 |" in text and "proofs" in text and "rules" not in text
