"""Memory that lives as long as an executable: on cache lines, and on huge pages if the system gives them on request.

A network reads all its weights once a run. With pages of 4 kB, the processor's cache of page addresses (TLB) does not hold them until the
next run, and looking them up again costs several percent of the time.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

from runtime.storage import pointer

ALIGNMENT_BYTES = 64
HUGE_PAGE_BYTES = 2 << 20
BLOCK_BYTES = 8 << 20
"""Bytes that are requested from the system at a time; pages that are never written take no memory."""


class Allocator:
    """Allocates pieces of large blocks; a block returns to the system with the last array that lies in it."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)
        self._used_bytes = 0

    def allocate(self, size_bytes: int) -> np.ndarray:
        """Return bytes that start on a cache line; their contents are zero."""
        needed = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        if self._used_bytes + needed > len(self._block):
            self._block, self._used_bytes = _block(max(needed, BLOCK_BYTES)), 0
        start = self._used_bytes
        self._used_bytes += needed
        return self._block[start : start + size_bytes]


def _block(size_bytes: int) -> np.ndarray:
    """Return fresh memory that begins where a huge page does."""
    rounded_bytes = -(-size_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    mapping = mmap.mmap(-1, rounded_bytes + HUGE_PAGE_BYTES, **_private())
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # if the system has no huge pages, ordinary ones do as well
            mapping.madvise(mmap.MADV_HUGEPAGE)
    everything = np.frombuffer(mapping, np.uint8)
    start = -pointer(everything) % HUGE_PAGE_BYTES
    return everything[start : start + rounded_bytes]


def _private() -> dict[str, int]:
    """Return the flags of private memory, because shared memory gets no huge pages."""
    return {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
