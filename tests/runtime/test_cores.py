"""The next model to be timed has the cores: the model timed before answers only after its threads have gone to sleep."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.cores import default_threads, physical_cores, settle, usable_cores
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


@pytest.mark.parametrize(
    ("siblings", "processors", "cores"),
    [
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0, 1, 2, 3}, 2),
        ({0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, {0, 2}, 1),
        ({0: "0", 1: "1"}, {0, 1}, 2),
        ({}, {0, 1, 2}, 3),
    ],
)
@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_logical_processors_of_one_core_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, siblings: dict[int, str], processors: set[int], cores: int
) -> None:
    for number, text in siblings.items():
        (tmp_path / f"cpu{number}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{number}" / "topology" / name).write_text(text + "\n")
    assert physical_cores(processors, tmp_path) == cores
    monkeypatch.setattr("os.sched_getaffinity", lambda process: processors, raising=False)
    monkeypatch.setattr("runtime.cores.physical_cores", lambda numbers: physical_cores(numbers, tmp_path))
    monkeypatch.setattr("runtime.cores.processor_quota", lambda: None)
    assert default_threads() == cores and usable_cores() == len(processors)
    monkeypatch.setattr("runtime.cores.processor_quota", lambda: 1.0)
    assert default_threads() == usable_cores() == 1


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (0.5, 1), (1.5, 2), (2.0, 2), (64.0, 8)])
def test_a_process_uses_no_more_cores_than_its_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    """Regression: with ``--cpus=2`` on a machine of 64 cores, each of 64 threads was stopped for most of the time."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("runtime.cores.processor_quota", lambda: quota)
    assert usable_cores() == cores
