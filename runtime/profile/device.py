"""Name the device that a measurement belongs to: processor, cores, library versions, threads."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata
from pathlib import Path

from runtime.cores import usable_cores

LIBRARIES = ("onednn-cpu-gomp", "apache-tvm", "onnxruntime")
"""Packages whose version changes what a kernel costs."""
GENERATOR_REVISION = 5
"""Raised when generated kernels become faster or slower: what was measured of earlier ones is then measured again."""


def processor_name() -> str:
    """Return the processor's marketing name, or the architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return " ".join(line.split(":", 1)[1].split())
    except OSError:
        return platform.processor() or platform.machine()
    return platform.processor() or platform.machine()


def library_version(package: str) -> str:
    """Return an installed package's version, or '-' when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "-"


SHARED_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
LEAST_FROM_MEMORY_BYTES = 64 << 10
"""Constants of a kernel below this are read so quickly that it does not matter from where."""


@cache
def shared_cache_bytes() -> int:
    """Return the size of the cache that all cores share; 0 where there is none or the system does not tell."""
    try:
        text = SHARED_CACHE.read_text().strip()
    except OSError:
        return 0
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[:-1].isdigit() and text[-1] in "KM" else 0


def stay_in_cache(weights_bytes: int) -> bool:
    """Return whether a program's weights are still in the shared cache when it runs again: they share it with what the program makes."""
    return 2 * weights_bytes <= shared_cache_bytes()


def from_memory(device: str) -> str:
    """Return the name that kernels are filed under which were timed with their constants in no cache."""
    return f"{device}, weights from memory"


def in_place(device: str, model: str) -> str:
    """Return the name that kernels are filed under which were timed where they run, inside a program for a model."""
    return f"{device}, in {model}"


@cache
def device_key(threads: int) -> str:
    """Return ``cpu | <processor> | <n> cores | <library> <version>, ... | threads=<n> evicted``: equal only where times are comparable.

    The code generator of this package counts as a library, ``generated code``.

    ``evicted`` is how kernels are timed: with their operands outside the cores' own caches.
    """
    libraries = ", ".join([*(f"{name} {library_version(name)}" for name in LIBRARIES), f"generated code {GENERATOR_REVISION}"])
    return f"cpu | {processor_name()} | {usable_cores()} cores | {libraries} | threads={threads} evicted"
