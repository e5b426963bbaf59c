"""What the system reports about this machine's processor."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def cpuinfo() -> tuple[str, ...]:
    """Return the lines of Linux's description of all processors; none elsewhere."""
    try:
        return tuple(Path("/proc/cpuinfo").read_text().splitlines())
    except OSError:
        return ()


@lru_cache(maxsize=1)
def x86_flags() -> frozenset[str]:
    """Return the processor's instruction sets by their names on x86 Linux, as ``avx512_vnni``; none elsewhere."""
    return frozenset(next((line for line in cpuinfo() if line.startswith("flags")), "").split())
