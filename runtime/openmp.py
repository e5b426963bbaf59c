"""The OpenMP runtime that oneDNN uses, found once a process: generated kernels run on the same threads."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from runtime.errors import LibraryMissing
from runtime.native.build import build_openmp

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


STAND_IN = "openmp.so"
SPINS = 10000
"""Times a waiting thread looks before it sleeps: about a millisecond."""
_folders: list[Path] = []


def look_in(folder: Path) -> None:
    """Remember a folder that may hold a stand-in for libgomp, for machines that have none."""
    _folders.append(folder)


def _load() -> ctypes.CDLL:
    """Load libgomp, or the stand-in: it bears the same name, so that oneDNN, loaded next, finds it."""
    chosen = os.environ.get("EINSAT_OPENMP", "")
    if not chosen:
        try:
            return _load_patient_libgomp()
        except OSError:
            pass
    found = next((folder / STAND_IN for folder in _folders if (folder / STAND_IN).exists()), None)
    path = chosen if chosen not in ("", "own") else found or build_openmp()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryMissing(f"{path} cannot be loaded: {error}", fix="install the system package libgomp1 (Debian) or libgomp") from error


def _load_patient_libgomp() -> ctypes.CDLL:
    """Load libgomp; it reads how long to spin from the environment, once, and its default is 15 ms.

    A thread that spins so long on a busy machine keeps the core from the very thread it waits for.
    """
    if "GOMP_SPINCOUNT" in os.environ or "OMP_WAIT_POLICY" in os.environ:
        return ctypes.CDLL(NAME)
    os.environ["GOMP_SPINCOUNT"] = str(SPINS)
    try:
        return ctypes.CDLL(NAME)
    finally:
        del os.environ["GOMP_SPINCOUNT"]


@functools.cache
def functions() -> tuple[int, ...]:
    """Return the addresses of ``FUNCTIONS``; called before oneDNN is loaded."""
    library = _load()
    return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in FUNCTIONS)


def get_threads() -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(functions()[4])())


def set_threads(count: int) -> None:
    """Set the calling thread's team size: oneDNN plans its primitives for the number that holds at creation."""
    ctypes.CFUNCTYPE(None, ctypes.c_int)(functions()[6])(count)
