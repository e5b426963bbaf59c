"""The instructions that this machine's processor has."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def x86_flags() -> frozenset[str]:
    """Return the processor's instruction sets by their names on x86 Linux, as ``avx512_vnni``; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())
