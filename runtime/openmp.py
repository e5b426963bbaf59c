"""The OpenMP runtime that oneDNN uses, found once a process: generated kernels run on the same threads."""

from __future__ import annotations

import ctypes
import functools
import os

from runtime.errors import LibraryMissing

NAME = "libgomp.so.1"
FUNCTIONS = (
    "GOMP_parallel",
    "GOMP_barrier",
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_get_max_threads",
    "omp_in_parallel",
    "omp_set_num_threads",
)
"""In the order of ``openmp`` in dispatch.c."""


@functools.cache
def functions() -> tuple[int, ...]:
    """Return the addresses of ``FUNCTIONS``."""
    try:
        library = ctypes.CDLL(NAME)
    except OSError as error:
        raise LibraryMissing(f"{NAME} cannot be loaded: {error}", fix="install the system package libgomp1 (Debian) or libgomp") from error
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS)


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def get_threads() -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(functions()[4])())


def set_threads(count: int) -> None:
    """Set the calling thread's team size: oneDNN plans its primitives for the number that holds at creation."""
    ctypes.CFUNCTYPE(None, ctypes.c_int)(functions()[6])(count)
