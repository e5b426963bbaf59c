"""Whoever is timed next has the cores: what was timed before answers when its threads have gone to sleep."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.cores import processor_quota, settle, usable_cores
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
    ("membership", "files", "processors"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5),
        ("0::/", {"cpu.max": "max 100000"}, None),
        ("0::/", {}, None),
        ("0::/", {"cpu.max": "a text"}, None),
        ("0::/a/b", {"a/b/cpu.max": "max 100000", "a/cpu.max": "200000 100000", "cpu.max": "300000 100000"}, 2.0),
        ("0::/of/the/machine", {"cpu.max": "50000 100000"}, 0.5),
        ("0::/../..", {"cpu.max": "50000 100000"}, 0.5),
        ("4:cpu,cpuacct:/pod", {"cpu,cpuacct/pod/cpu.cfs_quota_us": "250000", "cpu,cpuacct/pod/cpu.cfs_period_us": "100000"}, 2.5),
        ("4:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("4:cpuset:/\n3:memory:/", {"cpuset/cpu.max": "100000 100000"}, None),
    ],
)
def test_the_quota_of_a_container_is_read(tmp_path: Path, membership: str, files: dict[str, str], processors: float | None) -> None:
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(text + "\n")
    (tmp_path / "cgroup").write_text(membership + "\n")
    assert processor_quota(tmp_path / "groups", tmp_path / "cgroup") == processors
    assert processor_quota(tmp_path / "groups", tmp_path / "missing") is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (0.5, 1), (1.5, 2), (2.0, 2), (64.0, 8)])
def test_a_process_uses_no_more_cores_than_its_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    """With ``--cpus=2`` on a machine of 64, each of 64 threads was stopped for most of the time."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr("runtime.cores.processor_quota", lambda: quota)
    assert usable_cores() == cores
