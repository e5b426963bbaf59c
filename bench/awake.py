"""Keep the cores awake while something is timed: a virtual machine's cores are woken wherever there is room, a sleeping one anew each time.

On a busy host two cores that sleep between turns come back on one core's two threads (where everything takes twice as long), near each
other or far apart, and stay where they are while they have work. So every core gets a process that does nothing, which the system runs
only while nobody else wants the core; where the cores lie badly, they are put to sleep and woken again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import TracebackType

from bench.environment import ROOT
from runtime.worker import die_with_parent

ASLEEP_SECONDS = 0.3
SETTLED_SECONDS = 0.7
"""So long after waking the host has found its places."""


class Awake:
    """An idle process on each usable core, from beginning to end of a ``with`` block; none where the system has no idle priority."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Awake:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def move(self) -> None:
        """Let the cores sleep and wake, maybe somewhere else."""
        self._stop()
        time.sleep(ASLEEP_SECONDS)
        self._start()
        time.sleep(SETTLED_SECONDS)

    def _start(self) -> None:
        if hasattr(os, "SCHED_IDLE"):
            command = [sys.executable, "-m", "bench.awake"]
            self.processes = [subprocess.Popen([*command, str(core)], cwd=ROOT) for core in sorted(os.sched_getaffinity(0))]

    def _stop(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self.processes = []


def keep_awake(core: int) -> None:
    """Do nothing on a core, at the least priority that there is, until this process is ended."""
    die_with_parent()
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass


if __name__ == "__main__":
    keep_awake(int(sys.argv[1]))
