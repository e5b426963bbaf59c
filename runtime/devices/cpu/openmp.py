"""The pool of threads (native/openmp.c) that oneDNN and generated kernels share, loaded once a process.

oneDNN is linked with libgomp. The process may need libgomp for other libraries, so oneDNN's calls of it are redirected to the pool in
oneDNN's own table of imported functions, and libgomp does not change. The pool's threads belong to it alone: they may flush subnormal
numbers (denormals), receive no signals, and are made anew in a forked child, where libgomp waits for threads that are gone.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from runtime.devices.cpu.native.build import build_openmp
from runtime.errors import LibraryMissing

NAME = "libgomp.so.1"
INTERFACE = 3
"""The version that openmp.c's ``einsat_pool_interface`` must return."""
FUNCTIONS = (
    "GOMP_parallel",
    "GOMP_barrier",
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_get_max_threads",
    "omp_in_parallel",
    "omp_set_num_threads",
    "einsat_pool_run",
    "einsat_pool_shared",
    "einsat_pool_late",
)
"""The functions that the dispatcher calls, in the order of ``openmp`` in dispatch.c."""
IMPORTED = (
    *FUNCTIONS,
    "GOMP_parallel_start",
    "GOMP_parallel_end",
    "GOMP_loop_static_start",
    "GOMP_loop_static_next",
    "GOMP_loop_end_nowait",
)
"""The functions of the pool; oneDNN imports no others of OpenMP."""
STAND_IN = "openmp.so"
RTLD_DI_LINKMAP = 2
DYNAMIC_END, PLT_SIZE, STRINGS, SYMBOLS, RELOCATIONS, RELOCATIONS_SIZE, PLT = 0, 2, 5, 6, 7, 8, 23
"""Tags of the dynamic section of an ELF library."""
SYMBOL_BYTES = 24
RELOCATION = np.dtype([("offset", "<u8"), ("info", "<u8"), ("addend", "<i8")])
_folders: list[Path] = []


def look_in(folder: Path) -> None:
    """Add a folder that may hold the pool, for machines that have no compiler."""
    _folders.append(folder)


@functools.cache
def pool() -> ctypes.CDLL:
    """Load the pool. If libgomp is missing, the pool takes its place: it has the same name, so oneDNN, loaded next, finds it."""
    with suppress(OSError):
        ctypes.CDLL(NAME)
    for path in _candidates():
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise LibraryMissing(f"{path} cannot be loaded: {error}", fix="delete this file; it is built again") from error
        if hasattr(library, "einsat_pool_interface") and library.einsat_pool_interface() == INTERFACE:
            return library
    raise AssertionError("what was just built has another interface")


def _candidates() -> Iterator[Path]:
    yield from (folder / STAND_IN for folder in _folders if (folder / STAND_IN).exists())
    yield build_openmp()


def _address(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


@functools.cache
def functions() -> tuple[int, ...]:
    """Return the addresses of ``FUNCTIONS``; called before oneDNN is loaded."""
    return tuple(_address(pool(), name) for name in FUNCTIONS)


def get_threads() -> int:
    return int(ctypes.CFUNCTYPE(ctypes.c_int)(functions()[4])())


def set_threads(count: int) -> None:
    """Set the calling thread's team size: oneDNN plans its primitives for the number that holds at creation."""
    ctypes.CFUNCTYPE(None, ctypes.c_int)(functions()[6])(count)


def lead_to_pool(library: ctypes.CDLL) -> None:
    """Redirect one library's calls of OpenMP to the pool; a library that was built for another runtime is unchanged."""
    functions = {name.encode(): _address(pool(), name) for name in IMPORTED}
    pages = set[int]()
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for slot, function in _slots(library, functions):
        page = slot & -mmap.PAGESIZE
        if page not in pages and protect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
            what = f"oneDNN's imports of {NAME} cannot be changed: errno {ctypes.get_errno()}"
            raise LibraryMissing(what, where=str(library._name), fix="allow this process to call mprotect on its own pages")
        pages.add(page)
        ctypes.c_void_p.from_address(slot).value = function


def _slots(library: ctypes.CDLL, functions: Mapping[bytes, int]) -> Iterator[tuple[int, int]]:
    """Yield the slots that hold addresses of imported functions in a library, each with the address to write there."""
    link_map = ctypes.c_void_p()
    information = ctypes.CDLL(None).dlinfo
    information.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if information(library._handle, RTLD_DI_LINKMAP, ctypes.byref(link_map)) or not link_map.value:
        return
    base, _, dynamic = (ctypes.c_uint64 * 3).from_address(link_map.value)
    entries: dict[int, int] = {}
    while (entry := (ctypes.c_uint64 * 2).from_address(dynamic))[0] != DYNAMIC_END:
        entries[entry[0]] = entry[1]
        dynamic += 16

    def address(tag: int) -> int:  # some loaders have added the base already
        return entries[tag] + (base if entries[tag] < base else 0)

    names: dict[int, bytes] = {}
    for tag, size in ((PLT, PLT_SIZE), (RELOCATIONS, RELOCATIONS_SIZE)):
        if tag not in entries:
            continue
        rows = np.frombuffer(memoryview((ctypes.c_char * entries[size]).from_address(address(tag))), RELOCATION)
        symbols = (rows["info"] >> 32).astype(np.int64)
        for symbol in np.unique(symbols[symbols > 0]).tolist():
            if symbol not in names:
                name_offset = ctypes.c_uint32.from_address(address(SYMBOLS) + SYMBOL_BYTES * symbol).value
                names[symbol] = ctypes.string_at(address(STRINGS) + name_offset)
            if names[symbol] in functions:
                yield from ((base + int(offset), functions[names[symbol]]) for offset in rows["offset"][symbols == symbol])
