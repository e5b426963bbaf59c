"""The native dispatcher's structures and calls (the C side is native/dispatch.c)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runtime.devices.cpu import openmp
from runtime.devices.cpu.caches import filler_bytes
from runtime.devices.cpu.native.build import build
from runtime.errors import ArtefactError, KernelError

INTERFACE = 9
"""The version of the interface that dispatch.c's ``einsat_interface`` must return."""
MOST_DIMENSIONS = 12
LIBRARY, KERNEL, COPY, NOTHING, SEQUENCE, SPLIT = 0, 1, 2, 3, 4, 5
TERMS = 3
"""The number of blocks into which the numbers of an operand are split."""
PATCH_POINTER, PATCH_MEMORY = 0, 1
INTEGER, DLTENSOR_POINTER = 1, 7
KERNEL_PREFIX = "__tvm_ffi_"
LAUNCH_VARIABLE = "__TVMBackendParallelLaunch"
RTLD_LAZY = 1


class PaceRecord(ctypes.Structure):
    """The dispatcher's record of a run from a step on."""

    _fields_ = [
        ("mean_ns", ctypes.c_int64 * 2),
        ("next_trial_ns", ctypes.c_int64),
        ("interval_ns", ctypes.c_int64),
        ("delays", ctypes.c_int32),
        ("was_calm", ctypes.c_int32),
        ("fresh", ctypes.c_int32),
        ("end_ns", ctypes.c_int64),
    ]


class StepRecord(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("function", ctypes.c_void_p),
        ("arguments", ctypes.c_void_p),
        ("runs_alone", ctypes.c_int32),
        ("pace", PaceRecord),
    ]


class ValueRecord(ctypes.Structure):
    """TVMFFIAny"""

    _fields_ = [("type_index", ctypes.c_int32), ("zero", ctypes.c_uint32), ("pointer", ctypes.c_void_p)]


class TensorRecord(ctypes.Structure):
    """DLTensor"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    ]


FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ValueRecord), ctypes.c_int32, ctypes.c_void_p)
"""The type of kernels: a function of an object that is not used, arguments, their number, and a result that is not used."""


class CopyRecord(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("element_bytes", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MOST_DIMENSIONS),
        ("source_strides", ctypes.c_int64 * MOST_DIMENSIONS),
        ("target_strides", ctypes.c_int64 * MOST_DIMENSIONS),
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
    ]


class SplitRecord(ctypes.Structure):
    """Where numbers lie, and where their two parts in bfloat16 go; in elements."""

    _fields_ = [
        ("rank", ctypes.c_int32),
        ("lower", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MOST_DIMENSIONS),
        ("source_strides", ctypes.c_int64 * MOST_DIMENSIONS),
        ("target_strides", ctypes.c_int64 * MOST_DIMENSIONS),
        ("block", ctypes.c_int64),
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
    ]


class PatchRecord(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("area", ctypes.c_int32), ("offset", ctypes.c_int64), ("target", ctypes.c_void_p)]


class ProgramRecord(ctypes.Structure):
    _fields_ = [
        ("execute", ctypes.c_void_p),
        ("set_handle", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("patches", ctypes.c_void_p),
        ("step_count", ctypes.c_int32),
        ("patch_count", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("keeps_subnormals", ctypes.c_int32),
        ("failed_step", ctypes.c_int32),
    ]


class Dispatcher:
    """The loaded dispatcher library."""

    can_flush = True

    def __init__(self, path: Path) -> None:
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            fix = "delete this file; it is built again"
            raise ArtefactError(f"the dispatcher cannot be loaded: {error}", where=str(path), fix=fix) from error
        interface = self.library.einsat_interface() if hasattr(self.library, "einsat_interface") else 0
        if interface != INTERFACE:
            fix = "optimise the model again, or delete this file: it is built anew where a compiler is installed"
            raise ArtefactError(f"the dispatcher has interface {interface}, this runtime needs {INTERFACE}", where=str(path), fix=fix)
        pointer, int32, times = ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64)
        for name, types in {
            "einsat_openmp": [pointer],
            "einsat_bind": [pointer, pointer],
            "einsat_run": [pointer, int32, int32],
            "einsat_time": [pointer, ctypes.c_int64, times, pointer, ctypes.c_int64],
            "einsat_flush": [pointer, ctypes.c_int64],
            "einsat_split": [ctypes.POINTER(SplitRecord)],
            "einsat_pass": [pointer, ctypes.c_int64, int32],
            "einsat_profile": [pointer, ctypes.c_int64, times],
            "einsat_subnormals": [int32],
            "einsat_restore": [ctypes.c_uint64],
        }.items():
            getattr(self.library, name).argtypes = types
        self.library.einsat_pass.restype = ctypes.c_int64
        self.library.einsat_subnormals.restype = ctypes.c_uint64
        addresses = (ctypes.c_void_p * len(openmp.FUNCTIONS))(*openmp.functions())
        self.library.einsat_openmp(addresses)

    def set_subnormals(self, *, keep: bool) -> int:
        """Keep subnormal numbers (denormals) in the calling thread, or flush them to zero; return what ``restore`` needs."""
        return int(self.library.einsat_subnormals(keep))

    def restore(self, control: int) -> None:
        """Restore the calling thread's floating-point control."""
        self.library.einsat_restore(control)

    def split(self, record: SplitRecord) -> None:
        """Split numbers now."""
        if status := self.library.einsat_split(record):
            raise KernelError(f"numbers could not be split: status {status}")

    def address(self, name: str) -> int:
        return ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0


@functools.cache
def load(path: Path | None = None) -> Dispatcher:
    """Load a dispatcher, building it when no path is given."""
    return Dispatcher(path if path is not None else build())


class KernelLibrary:
    """A library of generated kernels, with lazy binding, so that its compiler need not be present."""

    def __init__(self, path: Path, dispatcher: Dispatcher) -> None:
        process = ctypes.CDLL(None)
        self._process, self.path = process, path
        process.dlopen.restype = process.dlsym.restype = ctypes.c_void_p
        process.dlopen.argtypes, process.dlsym.argtypes = [ctypes.c_char_p, ctypes.c_int], [ctypes.c_void_p, ctypes.c_char_p]
        process.dlerror.restype = ctypes.c_char_p
        process.dlclose.argtypes = [ctypes.c_void_p]
        self._handle = process.dlopen(str(path).encode(), RTLD_LAZY)
        if not self._handle:
            raise ArtefactError(
                f"the kernel library cannot be loaded: {(process.dlerror() or b'').decode()}",
                where=str(path),
                fix="optimise the model again on this kind of machine",
            )
        if slot := process.dlsym(self._handle, LAUNCH_VARIABLE.encode()):
            ctypes.c_void_p.from_address(slot).value = dispatcher.address("einsat_parallel_launch")

    def kernel(self, symbol: str) -> int:
        """Return the address of a generated kernel."""
        return self._address(KERNEL_PREFIX + symbol, f"no kernel {symbol!r}")

    def function(self, name: str) -> int:
        """Return the address of a function."""
        return self._address(name, f"no function {name!r}")

    def _address(self, symbol: str, kind: str) -> int:
        address = self._process.dlsym(self._handle, symbol.encode())
        if not address:
            raise ArtefactError(f"the kernel library has {kind}", where=str(self.path), fix="optimise the model again")
        return int(address)

    def close(self) -> None:
        """Unload the library, so that one that is written to the same file later is not mistaken for it."""
        if self._handle:
            self._process.dlclose(self._handle)
            self._handle = None


class Table:
    """A program in native form: steps, and where to write the addresses of inputs and outputs before a run."""

    def __init__(self, dispatcher: Dispatcher, *, threads: int, keep_subnormals: bool = False) -> None:
        self.dispatcher = dispatcher
        self._library = dispatcher.library
        self._keep: list[Any] = []
        self._names: list[str] = []
        self._steps: list[StepRecord] = []
        self._patches: list[PatchRecord] = []
        self._filler: Any = None
        self.record = ProgramRecord(threads=threads, keeps_subnormals=keep_subnormals)

    def call_library(self, *, execute: int, set_handle: int, stream: int) -> None:
        """Set the functions that execute steps of the kind ``LIBRARY`` and change the addresses of their memory."""
        self.record.execute, self.record.set_handle, self.record.stream = execute, set_handle, stream

    def keep(self, value: Any) -> int:
        """Keep a ctypes object alive as long as the table; return its address."""
        self._keep.append(value)
        return ctypes.addressof(value)

    def add(self, name: str, kind: int, function: int = 0, arguments: Any = None) -> None:
        self._names.append(name)
        address = self.keep(arguments) if arguments is not None else 0
        count = len(arguments) if isinstance(arguments, ctypes.Array) else 0
        self._steps.append(StepRecord(kind, count, function, address))

    def add_calls(self, name: str, calls: Sequence[tuple[int, Any] | SplitRecord]) -> None:
        """Add one step of several calls: of the library's primitives with their arguments, and of splits of numbers."""
        if len(calls) == 1 and isinstance(calls[0], tuple):
            self.add(name, LIBRARY, *calls[0])
            return
        parts = [
            StepRecord(SPLIT, 0, 0, self.keep(call)) if isinstance(call, SplitRecord) else
            StepRecord(LIBRARY, len(call[1]), call[0], self.keep(call[1]))
            for call in calls
        ]  # fmt: skip
        self.add(name, SEQUENCE, 0, (StepRecord * len(parts))(*parts))

    def patch(self, kind: int, area: int, offset_bytes: int, target: int) -> None:
        self._patches.append(PatchRecord(kind, area, offset_bytes, target))

    def finish(self) -> None:
        """Freeze steps and patches into arrays."""
        steps = (StepRecord * len(self._steps))(*self._steps)
        patches = (PatchRecord * len(self._patches))(*self._patches)
        self.record.steps, self.record.patches = self.keep(steps), self.keep(patches)
        self.record.step_count, self.record.patch_count = len(steps), len(patches)
        self._address = ctypes.addressof(self.record)

    def bind(self, addresses: Sequence[int]) -> None:
        """Write the addresses of inputs and outputs, by area number."""
        self._library.einsat_bind(self._address, (ctypes.c_void_p * len(addresses))(*addresses))

    def run(self, first: int, last: int) -> None:
        self._check(self._library.einsat_run(self._address, first, last))

    def time(self, count: int, *, evict: bool = False, flushed: Sequence[tuple[int, int]] = ()) -> list[int]:
        """Run everything ``count`` times; return nanoseconds a run.

        With ``evict`` no operand is in a core's own caches; memory in ``flushed`` (addresses and sizes in bytes) is in no cache at all.
        """
        if flushed:
            return [self._time_flushed(flushed, evict=evict) for _ in range(count)]
        times = (ctypes.c_int64 * count)()
        if evict and self._filler is None:
            self._filler = (ctypes.c_char * (filler_bytes() * self.record.threads))()
            ctypes.memset(self._filler, 1, len(self._filler))  # pages that were never written are all mapped to one
        filler = ctypes.addressof(self._filler) if evict else None
        self._check(self._library.einsat_time(self._address, count, times, filler, filler_bytes()))
        return list(times)

    def _time_flushed(self, flushed: Sequence[tuple[int, int]], *, evict: bool) -> int:
        for address, size_bytes in flushed:
            self._library.einsat_flush(address, size_bytes)
        return self.time(1, evict=evict)[0]

    def profile(self, count: int) -> list[list[int]]:
        """Run everything ``count`` times; return nanoseconds a step for each run (with about 40 for the clock itself)."""
        steps = len(self._steps)
        times = (ctypes.c_int64 * (count * steps))()
        self._check(self._library.einsat_profile(self._address, count, times))
        return [list(times[run * steps : (run + 1) * steps]) for run in range(count)]

    def _check(self, status: int) -> None:
        if status:
            failed = self.record.failed_step
            raise KernelError(f"a kernel failed with status {status}", where=f"step {failed} {self._names[failed]}")
