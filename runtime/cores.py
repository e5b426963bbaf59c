"""How many cores this process may use."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """Return how many logical processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
