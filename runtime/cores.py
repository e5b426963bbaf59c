"""The cores of this process: how many it may use, and whether its threads have left them to others.

A pool that has just worked goes on spinning, on a core that whoever is timed next needs.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
"""Where Linux shows control groups, and those that this process is in."""
TASKS = Path("/proc/self/task")
LOOK_SECONDS = 0.002
"""Between two looks at the threads."""
UNSEEN_SECONDS = 0.05
"""Waited for where the system does not show threads."""


def usable_cores() -> int:
    """Return how many logical processors this process may use: those it may run on, or fewer if a quota limits its processor time.

    A container with ``--cpus=2`` may run on all processors of its machine. A thread on each of them would be stopped for most of the time.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    quota = processor_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def processor_quota(groups: Path = GROUPS, membership: Path = MEMBERSHIP) -> float | None:
    """Return how many processors' time the control groups of this process may take (cgroups v1 and v2), None if it is not limited."""
    quotas = (_quota(folder) for folder in _folders(groups, membership))
    return min((quota for quota in quotas if quota is not None), default=None)


def _folders(groups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the groups that limit the processor time of this process, and of those around them.

    A container may see its group as the root, and be told its path on the machine.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = groups / controllers
        inner = root / path.lstrip("/")
        yield from (folder for folder in (inner, *inner.parents) if folder == root or root in folder.parents)


def _quota(folder: Path) -> float | None:
    """Return the processors' time that a group may take, in a file of version 2 (``max`` where it has no limit) or two of version 1."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join((folder / name).read_text(encoding="utf-8") for name in names).split()
            if int(quota) > 0 and int(period) > 0:
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    return None


def settle(most_seconds: float) -> bool:
    """Return whether all threads but this one are seen to sleep; wait for so many seconds at most.

    onnxruntime's threads spin for 30 ms of processor time after a run. Whoever is timed meanwhile, in another process, has a core less,
    and takes up to twice as long.
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
    """Return whether a thread of this process runs, or would if it had a core, beside the one that asks."""
    asking = str(threading.get_native_id())
    return any(_state(task) == "R" for task in TASKS.iterdir() if task.name != asking)


def _state(task: Path) -> str:
    """Return the letter for what a thread does; empty where it has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""
