"""Measure how near to each other the cores are, by the time to write memory that another core has read.

A virtual machine's cores may be moved while it runs. If two cores share a cache, a line passes between them in a few nanoseconds, otherwise
in several times as many. Programs whose kernels divide tensors differently then take up to a quarter longer, while a kernel timed alone,
whose lines stay where they are, takes the same.
"""

from __future__ import annotations

import ctypes
import statistics

from runtime.cores import usable_cores
from runtime.devices.cpu import dispatcher

SHARE_BYTES = 1 << 19
"""Bytes that each thread writes: less than a core's own cache holds."""
LINE_BYTES = 64
REPEATS = 7
ONE_CORE_NS = 2.5
"""Transfers of a cache line that take less stayed in one core's own caches, because both threads run on it: 0.9 to 1.5 ns there, from 4 ns
between two cores."""


def line_ns(threads: int | None = None) -> float | None:
    """Return the nanoseconds a line and core for writing what another core has read; None if there is only one thread."""
    team = min(threads or usable_cores(), usable_cores())
    if team < 2:
        return None
    library = dispatcher.load().library
    memory = (ctypes.c_char * (team * SHARE_BYTES + LINE_BYTES))()
    start = -(-ctypes.addressof(memory) // LINE_BYTES) * LINE_BYTES
    times_ns: list[int] = [library.einsat_pass(start, SHARE_BYTES, team) for _ in range(REPEATS)]
    return statistics.median(times_ns) / (SHARE_BYTES / LINE_BYTES)


def share_one_core(threads: int) -> bool:
    """Return whether a virtual machine's cores are hardware threads of one core, so that computing takes up to twice as long."""
    transfer_ns = line_ns(threads)
    return transfer_ns is not None and transfer_ns < ONE_CORE_NS
