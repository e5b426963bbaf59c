"""The sizes of the processor's caches, as the system reports them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNITS = {"K": 10, "M": 20}
FILLER_BYTES = 4 << 20
"""The number of bytes to read if the size of a core's own cache is unknown, and the largest: the cache that all cores share holds more."""


@cache
def cache_bytes(level: int) -> int:
    """Return the size of the first core's cache of data and instructions at a level; 0 if the system reports none.

    The first level has two entries, for data and for instructions, so each level above it has its own number as its index.
    """
    try:
        text = (CACHES / f"index{level}" / "size").read_text().strip()
    except OSError:
        return 0
    return int(text[:-1]) << UNITS[text[-1]] if text[:-1].isdigit() and text[-1] in UNITS else 0


def stay_in_cache(weights_bytes: int) -> bool:
    """Return whether a program's weights are still in the shared cache when it runs again, although its other data share the cache."""
    return 2 * weights_bytes <= cache_bytes(3)


def filler_bytes() -> int:
    """Return how much a core reads to evict its own caches: twice as much as they hold."""
    return min(2 * cache_bytes(2), FILLER_BYTES) or FILLER_BYTES
