"""Name the device that a measurement belongs to: processor, cores, library versions, threads."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

LIBRARIES = ("onednn-cpu-gomp", "apache-tvm", "onnxruntime")
"""Packages whose version changes what a kernel costs."""


def processor_name() -> str:
    """Return the processor's marketing name, or the architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return how many logical processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def library_version(package: str) -> str:
    """Return an installed package's version, or '-' when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


@cache
def device_key(threads: int) -> str:
    """Return ``cpu | <processor> | <n> cores | <library> <version>, ... | threads=<n> evicted``: equal only where times are comparable.

    ``evicted`` is how kernels are timed: with their operands outside the cores' own caches.
    """
    libraries = ", ".join(f"{name} {library_version(name)}" for name in LIBRARIES)
    return f"cpu | {processor_name()} | {usable_cores()} cores | {libraries} | threads={threads} evicted"
