"""Whoever is timed next has the cores: what was timed before answers when its threads have gone to sleep."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from runtime.cores import settle
from runtime.measure import Load, Worker
from tests.support.paths import ROOT

SPINNING_SECONDS = 0.3


def spin(seconds: float) -> threading.Thread:
    def work() -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_threads_that_spin_are_waited_for() -> None:
    thread = spin(SPINNING_SECONDS)
    assert not settle(SPINNING_SECONDS / 4) and thread.is_alive()
    assert settle(20.0) and not thread.is_alive()


SPINS = """
import threading, time
import runtime.worker as worker
def spin():
    ends = time.monotonic() + {seconds}
    while time.monotonic() < ends:
        pass
def load(path, threads, draw):
    threading.Thread(target=spin).start()
    return lambda count: [1] * count
worker.ENGINES["einsat"] = load
worker.main()
"""


def test_a_worker_answers_when_its_threads_sleep(tmp_path: Path) -> None:
    script = tmp_path / "spinning_worker.py"
    script.write_text(SPINS.format(seconds=SPINNING_SECONDS))
    with Worker(command=(sys.executable, str(script)), environment={"PYTHONPATH": str(ROOT)}) as worker:
        started = time.monotonic()
        assert worker.load(Load("einsat", "x", (), threads=1)).status == "ok"
        began = time.monotonic()
        worker.settle(20.0)
        assert time.monotonic() - began > SPINNING_SECONDS / 2 or began - started > SPINNING_SECONDS
