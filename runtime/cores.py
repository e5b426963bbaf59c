"""The cores of this process: how many it may use, and whether its threads have left them to others.

The threads of a pool spin for a while after work, on cores that the next timed process needs.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection
from pathlib import Path

from runtime.control_groups import processor_quota

TASKS = Path("/proc/self/task")
TOPOLOGY = Path("/sys/devices/system/cpu")
LOOK_SECONDS = 0.002
"""Seconds between two looks at the threads."""
UNSEEN_SECONDS = 0.05
"""Seconds to wait if the system does not show threads."""


def usable_cores() -> int:
    """Return how many logical processors this process may use: those it may run on, or fewer if a quota limits its processor time.

    A container with ``--cpus=2`` may run on all processors of its machine. A thread on each of them would be stopped for most of the time.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = processor_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def default_threads() -> int:
    """Return how many threads a program has if nobody says: one a core, as in onnxruntime, though a core may be two logical processors.

    Two threads on one core share its arithmetic units. A kernel that keeps these busy gains nothing from the second one, and waits for the
    slower of both.
    """
    if not hasattr(os, "sched_getaffinity"):
        return usable_cores()
    return min(usable_cores(), physical_cores(os.sched_getaffinity(0)))


def physical_cores(processors: Collection[int], topology: Path = TOPOLOGY) -> int:
    """Return on how many cores these logical processors are; each counts as one if the system does not say."""
    return len({_siblings(topology / f"cpu{number}" / "topology") or str(number) for number in processors})


def _siblings(folder: Path) -> str:
    """Return the logical processors of a core as the system writes them: ``0,4``, or nothing."""
    for name in ("core_cpus_list", "thread_siblings_list"):
        try:
            return (folder / name).read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return ""


def settle(most_seconds: float) -> bool:
    """Wait until all threads but this one sleep, for so many seconds at most; return whether they were seen to sleep.

    onnxruntime's threads spin for 30 ms of processor time after a run. A program that is timed meanwhile, in another process, has a core
    less, and takes up to twice as long.
    """
    if not TASKS.exists():
        time.sleep(min(UNSEEN_SECONDS, most_seconds))
        return False
    deadline = time.monotonic() + most_seconds
    while others_run():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def others_run() -> bool:
    """Return whether another thread of this process runs, or waits for a core."""
    asking = str(threading.get_native_id())
    return any(_state(task) == "R" for task in TASKS.iterdir() if task.name != asking)


def _state(task: Path) -> str:
    """Return the letter for a thread's state; empty if the thread has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
